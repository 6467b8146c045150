"""The class of tensors for modules that define its methods: the whole class for type checkers, the base class at runtime.

`jobflow.functional.tensor_class` composes the class from the methods, so these modules cannot import it.  `Tensor.new` creates tensors.
"""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from jobflow.functional.tensor_class import Tensor as Tensor
else:
    from jobflow.tensors.tensor import TensorBase as Tensor  # noqa: F401
