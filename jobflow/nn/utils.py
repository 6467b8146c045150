"""nn.utils: gradient clipping, and parameters as one vector."""

from __future__ import annotations

from collections.abc import Iterable

from jobflow.core.errors import ShapeError, user_line
from jobflow.eager.state import gradients, state
from jobflow.functional.dispatch import all_of, of_tensors
from jobflow.functional.gradient_clipping import clip_grad_norm_ as clip_grad_norm_
from jobflow.functional.gradient_clipping import clip_grad_value_ as clip_grad_value_
from jobflow.functional.gradient_clipping import total_norm as total_norm
from jobflow.functional.joining import cat, split
from jobflow.functional.shapes import reshape
from jobflow.functional.tensor_class import Tensor
from jobflow.nn.modules.state_dicts import take


def parameters_to_vector(parameters: Iterable[Tensor]) -> Tensor:
    """All elements one after another."""
    return cat([reshape(p, (-1,)) for p in parameters], 0)


def vector_to_parameters(vec: Tensor, parameters: Iterable[Tensor]) -> None:
    """Parameters with the elements of a vector, one after another."""
    given = list(parameters)
    sizes = [p.tensor_type.size for p in given]
    if vec.tensor_type.shape != (sum(sizes),):
        raise ShapeError(f"vector_to_parameters at {user_line()}: {vec.tensor_type} has not the {sum(sizes)} elements of the parameters")
    with gradients(False):
        for p, part in zip(given, split(vec, sizes, 0), strict=True):
            take(state(), p, reshape(part, tuple(p.shape)))


globals().update(all_of(__name__, globals(), __name__, of_tensors))
