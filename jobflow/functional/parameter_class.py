"""Parameters of modules."""

from __future__ import annotations

import numpy as np

from jobflow.core.errors import DtypeError, JobError, user_line
from jobflow.functional.tensor_class import Tensor


class Parameter(Tensor):
    """A tensor that becomes a parameter of a module when it is assigned to an attribute of the module.

    The parameter shares memory and layout with `data`.
    Raises: JobError unless `data` is a tensor; DtypeError for `requires_grad=True` unless `data` is a floating point tensor.
    """

    def __init__(self, data: Tensor, requires_grad: bool = True) -> None:
        if not isinstance(data, Tensor):
            raise JobError(f"Parameter at {user_line()}: data must be a tensor; got {type(data).__name__}")
        if not isinstance(requires_grad, bool | np.bool_):
            raise DtypeError(f"Parameter at {user_line()}: requires_grad must be True or False; got {requires_grad!r}")
        if requires_grad and not data.tensor_type.dtype.is_float:
            raise DtypeError(
                f"Parameter at {user_line()}: only floating point tensors have gradients; got data {data.tensor_type}; pass requires_grad=False"
            )
        super().__init__(data.tensor_type, data.layout, data.array, data.traced)
        self._device = data._device
        if data.traced is None:
            data.shares(self)
        self._needs_gradient = bool(requires_grad)
