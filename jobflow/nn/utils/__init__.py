"""The namespace `flow.nn.utils`: gradient clipping, conversion between parameters and one vector, and `rnn` for sequences."""

from __future__ import annotations

from collections.abc import Iterable

from jobflow.core.errors import ShapeError, user_line
from jobflow.core.lazy_imports import add_aliases
from jobflow.functional.dispatch import all_of, of_tensors
from jobflow.functional.gradient_clipping import clip_grad_norm_ as clip_grad_norm_
from jobflow.functional.gradient_clipping import clip_grad_value_ as clip_grad_value_
from jobflow.functional.gradient_clipping import total_norm as total_norm
from jobflow.functional.joining import cat, split
from jobflow.functional.shapes import reshape
from jobflow.functional.tensor_class import Tensor
from jobflow.nn.modules.state_dicts import take
from jobflow.nn.utils import rnn as rnn
from jobflow.tensors.state import gradients, state


def parameters_to_vector(parameters: Iterable[Tensor]) -> Tensor:
    """Return all elements of the parameters as one tensor with a single axis, in order."""
    return cat([reshape(p, (-1,)) for p in parameters], 0)


def vector_to_parameters(vec: Tensor, parameters: Iterable[Tensor]) -> None:
    """Copy the elements of a vector into the parameters, in order.

    Raises: ShapeError unless the vector has as many elements as the parameters together.
    """
    tensors = list(parameters)
    sizes = [p.tensor_type.size for p in tensors]
    if vec.tensor_type.shape != (sum(sizes),):
        raise ShapeError(
            f"vector_to_parameters at {user_line()}: vec must be a vector of {sum(sizes)} elements, as many as the "
            f"parameters have; got {vec.tensor_type}"
        )
    with gradients(False):
        for p, part in zip(tensors, split(vec, sizes, 0), strict=True):
            take(state(), p, reshape(part, tuple(p.shape)))


globals().update(all_of(__name__, globals(), __name__, of_tensors))

add_aliases(__name__, "jobflow.nn.utils")
