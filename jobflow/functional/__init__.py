"""Functions of tensors with PyTorch's names; many are methods of `Tensor` too.  A thin layer over `jobflow.ops`.

`__init__.pyi` lists the public functions `flow.<name>`; `jobflow.nn.functional` has the functions of modules.
"""

from jobflow.core.lazy_imports import attach as _attach
from jobflow.functional.dispatch import as_public as _as_public

__getattr__, __dir__, __all__ = _attach(__name__, __file__, convert=_as_public)

import jobflow.functional.tensor_class as _tensor  # noqa: E402, F401 - composes the class of tensors
