"""Tensor functions under PyTorch's names, built on the operations of `jobflow.ops`.

`__init__.pyi` lists the public functions `flow.<name>`; many are also methods of `Tensor`.  `jobflow.nn.functional` exports the functions
of modules.
"""

from jobflow.core.lazy_imports import attach as _attach
from jobflow.functional.dispatch import as_public as _as_public

__getattr__, __dir__ = _attach(__name__, __file__, convert=_as_public)

import jobflow.functional.tensor_class as _tensor  # noqa: E402, F401 - defines the class of tensors
