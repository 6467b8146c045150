"""Attention on GPUs by cuDNN, through its Python frontend, for operands on which its results are safe.

One call computes the output and the logarithms, and one call the gradients.  cuDNN computes in half precision with float32 sums, on the strides of
the operands.  The printed kernels (`attention_kernels`) compute the rest:

* masks, dropout and finite scores beyond the diagonal, which cuDNN computes from other random numbers, or not at all;
* gradients whose key length is not a multiple of 128, or of a single query: some versions returned NaN there (cudnn-frontend#628, #1072).

Gradients use cuDNN's deterministic algorithm, so equal inputs give equal bits.
"""

from __future__ import annotations

import importlib
import math
from collections.abc import Sequence
from typing import Any

from jobflow.core.dataclass import dataclass
from jobflow.core.notices import notice
from jobflow.core.types import Array, bfloat16, dtype_of, uint8
from jobflow.kernels.cuda.attention_kernels import AttentionKernel
from jobflow.kernels.cuda.cudnn_library import CudnnLaunch, handle_of, missing
from jobflow.kernels.cuda.fused import placeholders
from jobflow.kernels.registry import register
from jobflow.ops.attention import Attention, AttentionBase, AttentionGrad
from jobflow.ops.op import Binder, Call, Op

#: elements of a head, and bytes of an address and a stride, are multiples of these
SIZES, ALIGNMENT = 8, 16
LARGEST = 128
#: key lengths of gradients
KEYS = 128


def refused_operands(op: AttentionBase, inputs: Sequence[Array], outputs: Sequence[Array]) -> str:
    """Return the reason cuDNN does not compute the operation on these operands, or ""."""
    q, k, v = inputs[:3]
    if not dtype_of(q.dtype).is_half:
        return f"elements of type {q.dtype} are not float16 or bfloat16"
    if op.has_mask or op.rate or (op.diagonal is not None and op.fill != -math.inf):
        return "a mask, dropout or a finite score beyond the diagonal"
    if op.diagonal is not None and (op.diagonal != 0 or q.shape[-2] != k.shape[-2]):
        return f"diagonal {op.diagonal} of {q.shape[-2]} queries and {k.shape[-2]} keys"
    if q.ndim != 4 or q.shape[-1] != v.shape[-1] or q.shape[-1] % SIZES or q.shape[-1] > LARGEST:
        return f"heads of {q.shape[-1]} and {v.shape[-1]} elements are not equal multiples of {SIZES} up to {LARGEST}"
    if any(0 in a.shape for a in inputs) or q.shape[-2] == 1:
        return "an empty operand, or a single query"
    if isinstance(op, AttentionGrad) and k.shape[-2] % KEYS:
        return f"gradients of {k.shape[-2]} keys, which are not a multiple of {KEYS}"
    return next((f"strides {a.strides} or the address of an operand" for a in (*inputs, *outputs) if a.ndim == 4 and not _is_aligned(a)), "")


def _is_aligned(array: Array) -> bool:
    *strides, last = array.strides
    address = array.__array_interface__["data"][0]
    return last == array.dtype.itemsize and all(stride > 0 and stride % ALIGNMENT == 0 for stride in strides) and address % ALIGNMENT == 0


class AttentionGraph:
    """The cuDNN graph of an operation for arrays of these shapes and strides; `options` are those of the frontend's graph, such as a handle."""

    def __init__(self, op: AttentionBase, arrays: Sequence[Array], **options: Any) -> None:
        self.cudnn = importlib.import_module("cudnn")
        types = self.cudnn.data_type
        half = types.BFLOAT16 if dtype_of(arrays[0].dtype) is bfloat16 else types.HALF
        self.graph = self.cudnn.pygraph(io_data_type=half, intermediate_data_type=types.FLOAT, compute_data_type=types.FLOAT, **options)
        shared = {"attn_scale": float(op.scale), "use_causal_mask": op.diagonal is not None}
        if isinstance(op, Attention):
            tensors = self._inputs(arrays[:3], half)
            results = self.graph.sdpa(*tensors, generate_stats=True, **shared)
        else:
            q, k, v, y, lse, dy = tensors = self._inputs(arrays[:6], half)
            results = self.graph.sdpa_backward(q, k, v, y, dy, lse, use_deterministic_algorithm=True, **shared)
        for uid, (tensor, array) in enumerate(zip(results, arrays[len(tensors) :], strict=True), len(tensors)):
            shape, strides = _four_axes(array)
            tensor.set_output(True).set_dim(shape).set_stride(strides).set_uid(uid).set_data_type(half if array.ndim == 4 else types.FLOAT)

    def _inputs(self, arrays: Sequence[Array], half: Any) -> list[Any]:
        tensors = []
        for uid, array in enumerate(arrays):
            shape, strides = _four_axes(array)
            dtype = half if array.ndim == 4 else self.cudnn.data_type.FLOAT
            tensors.append(self.graph.tensor(name=f"x{uid}", dim=shape, stride=strides, data_type=dtype, uid=uid))
        return tensors

    def build(self) -> int:
        """Build the plan; return the bytes of its workspace.  Raises: the frontend's error if cuDNN does not support the graph."""
        self.graph.validate()
        self.graph.build_operation_graph()
        self.graph.create_execution_plans([self.cudnn.heur_mode.A])
        self.graph.check_support()
        self.graph.build_plans()
        return int(self.graph.get_workspace_size())


def _four_axes(array: Array) -> tuple[list[int], list[int]]:
    """Return the shape and the strides in elements; a number per query has a last axis of size 1."""
    shape, strides = list(array.shape), [stride // array.dtype.itemsize for stride in array.strides]
    return (shape, strides) if array.ndim == 4 else ([*shape, 1], [*strides, 1])


@dataclass(frozen=True)
class CudnnAttention:
    """An implementation by one call of cuDNN."""

    name: str = "cuDNN attention"

    def refuses(self, op: Op, inputs: Sequence[Array], outputs: Sequence[Array]) -> str | None:
        assert isinstance(op, AttentionBase)
        return missing() or refused_operands(op, placeholders(inputs), placeholders(outputs)) or None

    def bind(self, op: Op, device: Binder, inputs: Sequence[Array], outputs: Sequence[Array]) -> list[Call]:
        assert isinstance(op, AttentionBase)
        arrays, handle = [*inputs, *outputs], handle_of(int(outputs[0].device.id))
        graph = AttentionGraph(op, placeholders(arrays), handle=handle.handle)
        try:
            nbytes = graph.build()
        except graph.cudnn.cudnnGraphNotSupportedError as error:
            notice(f"cuDNN has no plan for {op} of {arrays[0].shape} on this GPU, so a printed kernel computes it: {str(error).splitlines()[0]}")
            return AttentionKernel().bind(op, device, inputs, outputs)
        workspace = device.scratch((max(nbytes, 1),), uint8)
        return [(CudnnLaunch(graph.graph, handle, arrays, workspace), ())]


for _op in (Attention, AttentionGrad):
    register(_op, "cuda", "nvrtc", CudnnAttention(), rank=1)
