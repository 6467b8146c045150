"""The class of tensors for modules that define methods: with all methods for type checkers, and its base class at runtime.

`jobflow.functional.tensor_class` composes the class from the methods, so these modules cannot import it.  `Tensor.new` creates tensors.
"""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from jobflow.functional.tensor_class import Tensor as Tensor
else:
    from jobflow.tensors.tensor import TensorBase as Tensor  # noqa: F401
