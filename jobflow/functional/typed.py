"""The class of tensors for the modules that define methods: with all methods for type checkers, and their base class when they run.

`jobflow.functional.tensor_class` composes the class of the methods, so that these modules cannot import it. `Tensor.new` makes tensors.
"""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from jobflow.functional.tensor_class import Tensor as Tensor
else:
    from jobflow.eager.tensor import TensorBase as Tensor  # noqa: F401
