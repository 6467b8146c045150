"""The namespace `flow.nn.utils`: gradient clipping, normalized weights and parametrizations, pruning, and `rnn` for sequences."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from jobflow.core.errors import ArgumentError, ShapeError, user_line
from jobflow.core.lazy_imports import add_aliases
from jobflow.functional.dispatch import all_of, of_tensors
from jobflow.functional.gradient_clipping import clip_grad_norm_ as clip_grad_norm_
from jobflow.functional.gradient_clipping import clip_grad_value_ as clip_grad_value_
from jobflow.functional.gradient_clipping import clip_grads_with_norm_ as clip_grads_with_norm_
from jobflow.functional.gradient_clipping import get_total_norm as get_total_norm
from jobflow.functional.gradient_clipping import total_norm as total_norm
from jobflow.functional.joining import cat, split
from jobflow.functional.shapes import reshape
from jobflow.functional.tensor_class import Tensor
from jobflow.nn.modules.module import Module
from jobflow.nn.modules.state_dicts import take
from jobflow.nn.utils import parametrizations as parametrizations
from jobflow.nn.utils import parametrize as parametrize
from jobflow.nn.utils import prune as prune
from jobflow.nn.utils import rnn as rnn
from jobflow.nn.utils.fusing import fuse_conv_bn_eval as fuse_conv_bn_eval
from jobflow.nn.utils.fusing import fuse_conv_bn_weights as fuse_conv_bn_weights
from jobflow.nn.utils.fusing import fuse_linear_bn_eval as fuse_linear_bn_eval
from jobflow.nn.utils.fusing import fuse_linear_bn_weights as fuse_linear_bn_weights
from jobflow.nn.utils.older_norms import remove_spectral_norm as remove_spectral_norm
from jobflow.nn.utils.older_norms import remove_weight_norm as remove_weight_norm
from jobflow.nn.utils.older_norms import spectral_norm as spectral_norm
from jobflow.nn.utils.older_norms import weight_norm as weight_norm
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


def skip_init(module_cls: Callable[..., Module], *args: Any, **kwargs: Any) -> Module:
    """Return module_cls(*args, **kwargs); its parameters are initialized as usual, although PyTorch leaves them uninitialized."""
    if not (isinstance(module_cls, type) and issubclass(module_cls, Module)):
        raise ArgumentError(f"skip_init at {user_line()}: module_cls must be a class of modules; got {module_cls!r}")
    result: Module = module_cls(*args, **kwargs)
    return result


#: the older name
clip_grad_norm = clip_grad_norm_

globals().update(all_of(__name__, globals(), __name__, of_tensors))

add_aliases(__name__, "jobflow.nn.utils")
