"""In-place writes and their gradients: the tape nodes of overwritten tensors and their views.

After x = x.add_(y), the node of x is the node of the sum; earlier nodes still refer to the old value.  A view represents a part of its base.
A write through a view also gives its base a new node, "the base with that part replaced".  After a write to its memory, a view is derived
again from its base before the view is read.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from jobflow.core.dataclass import dataclass
from jobflow.core.errors import JobError, PlacementError, user_line
from jobflow.ops.arithmetic import Add
from jobflow.ops.op import ViewOp, apply
from jobflow.ops.scalar import fill_like
from jobflow.ops.slice_update import SliceUpdate
from jobflow.ops.slices import Slice
from jobflow.tensors.gpus import device_name, fill, gpu_of
from jobflow.tensors.state import EagerState, building_now, mixed
from jobflow.tensors.tape import Gradients, follow, record, stand_at
from jobflow.tensors.tensor import TensorBase, own


def may_write(here: EagerState, x: TensorBase, what: str) -> None:
    """Raise JobError for a leaf that requires gradients, or a view of such a leaf, while gradients are recorded."""
    if not here.grad_enabled:
        return
    root, leaf = x, x._needs_gradient and x.is_leaf  # a view may be a leaf although its base is not
    while root.base is not None:
        root = root.base[0]
    if leaf or (root._needs_gradient and root.is_leaf):
        whose = f"a leaf {x.tensor_type}" if leaf else f"a view of a leaf {root.tensor_type}"
        raise JobError(
            f"{what} at {user_line()}: {whose} that requires gradients cannot be overwritten, because its gradient would be lost; "
            f"overwrite it inside no_grad(), or compute a new tensor"
        )


def add_into(here: EagerState, x: TensorBase, value: TensorBase, what: str) -> None:
    """Add the elements of `value` to x in place; both tensors have the same layout.

    Raises: JobError if the types differ, or if x cannot be overwritten, as `check_memory` does; PlacementError if the devices differ.
    """
    if x.tensor_type != value.tensor_type:
        raise JobError(
            f"{what} at {user_line()}: the gradient {value.tensor_type} cannot be added to grad, which is {x.tensor_type}; set grad = None first"
        )
    array = own(x, what)
    gpu = gpu_of(array)
    if gpu_of(value.array) is not gpu:
        raise PlacementError(
            f"{what} at {user_line()}: the gradient {value.tensor_type} is on {device_name(value.array)}, but grad is on {device_name(array)}; "
            f"set grad = None first, or move it with x.grad = x.grad.to(device)"
        )
    if gpu is None:
        np.add(array, value.array, out=array)
    else:
        gpu.activate()
        gpu.calls_like(Add(), array).run(None, (array, value.array), (array,))
    written(here, x, value, what)


def zero_gradient(x: TensorBase, set_to_none: bool) -> None:
    """Set the gradient of x to None if `set_to_none`, or else fill its memory with zeros."""
    recorder = building_now()
    if recorder is not None and recorder.differentiates:
        recorder.zero_gradient(x, set_to_none)
        return
    gradient = x._gradient
    if set_to_none or gradient is None:
        x._gradient = None
    else:
        fill(own(gradient, "zero_grad"), 0)
        gradient.wrote()
        gradient._needs_gradient, gradient.node, gradient.index = False, None, 0


def written(here: EagerState, x: TensorBase, value: TensorBase, what: str) -> None:
    """Update the versions and the tape nodes of x and of its bases after `value` was written to the memory of x."""
    chain = [x]
    while chain[-1].base is not None:
        follow(chain[-1])
        chain.append(chain[-1].base[0])
    x.wrote()
    for tensor in chain:
        tensor._synced_version = x.version
        tensor._provenance = mixed(tensor._provenance, value._provenance)
    if not here.grad_enabled or not (value._needs_gradient or x._needs_gradient):
        return
    if x.memory.reshaped:
        raise JobError(
            f"{what} at {user_line()}: a tensor with views changed its shape in place, so gradients of {x.tensor_type} are unknown; copy it"
        )
    if value.node is not None:
        stand_at(x, value.node, value.index)
    else:
        record(what, (value,), (x,), passed_on)
    for view, base in zip(chain, chain[1:], strict=False):
        assert view.base is not None
        record("write", (base, view), (base,), _PartGradient(view.base[1]))


def passed_on(saved: Sequence[TensorBase], gradients: Gradients) -> Gradients:
    """Return the gradients of the outputs as the gradients of the inputs: the gradient function of a copy."""
    return gradients


@dataclass(frozen=True, slots=True)
class _PartGradient:
    """The gradient function of a write through a view, which the view operation `op` derives from its base.

    The results are the gradients of the base before the write and of the written value.
    """

    op: ViewOp

    def __call__(self, saved: Sequence[TensorBase], gradients: Gradients) -> Gradients:
        (gradient,) = gradients
        assert gradient is not None
        part = apply(self.op, gradient)
        if not isinstance(self.op, Slice):
            return None, part  # the whole base was replaced
        return apply(SliceUpdate(Slice(self.op.starts, self.op.stops, self.op.steps)), gradient, fill_like(part, 0.0)), part
