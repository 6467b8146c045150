"""Attention on GPUs by printed kernels: one launch forward, and three launches for the gradients."""

from __future__ import annotations

from collections.abc import Sequence

from jobflow.core.dataclass import dataclass
from jobflow.core.types import Array, dtype_of, float32
from jobflow.kernels.cuda.attention_text import LARGEST, THREADS, AttentionText
from jobflow.kernels.cuda.compiled_text import compiler
from jobflow.kernels.cuda.fused import placeholders
from jobflow.kernels.cuda.launches import KernelLaunch
from jobflow.kernels.cuda.pooling_kernels import addresses
from jobflow.kernels.registry import register
from jobflow.ops.attention import Attention, AttentionBase, AttentionGrad
from jobflow.ops.op import Binder, Call, Op

NAME = "attention"
#: most blocks of a launch
MOST = 1 << 31


@dataclass(frozen=True)
class AttentionKernel:
    """An implementation by kernels printed for the sizes and strides of the arrays, without a value of [..., queries, keys]."""

    name: str = "printed attention"

    def refuses(self, op: Op, inputs: Sequence[Array], outputs: Sequence[Array]) -> str | None:
        q, _, v = inputs[:3]
        if dtype_of(q.dtype) is not float32 and not dtype_of(q.dtype).is_half:
            return f"elements of type {q.dtype} are not float32, float16 or bfloat16"
        if not 0 < min(q.shape[-1], v.shape[-1]) <= max(q.shape[-1], v.shape[-1]) <= LARGEST:
            return f"heads of {q.shape[-1]} and {v.shape[-1]} elements are not of 1 to {LARGEST}"
        if any(stride % a.dtype.itemsize for a in (*inputs, *outputs) for stride in a.strides):
            return "a stride is not a multiple of the element size"
        assert isinstance(op, AttentionBase)
        text = AttentionText(op, [*inputs, *outputs], NAME)
        return f"{text.launches()[0].blocks} blocks are too many" if any(launch.blocks >= MOST for launch in text.launches()) else None

    def bind(self, op: Op, device: Binder, inputs: Sequence[Array], outputs: Sequence[Array]) -> list[Call]:
        assert isinstance(op, AttentionBase)
        arrays = [*inputs, *outputs]
        if not any(a.size for a in outputs):
            return []
        text = AttentionText(op, placeholders(arrays), NAME)
        if not isinstance(op, Attention):
            arrays.append(device.scratch(inputs[4].shape, float32))  # one number per query
        module = compiler(int(outputs[0].device.id)).module(text.text())
        pointers = addresses(placeholders(arrays))
        return [(KernelLaunch(module.function(each.name), arrays), ((each.blocks,), (THREADS,), pointers)) for each in text.launches()]


for _op in (Attention, AttentionGrad):
    register(_op, "cuda", "nvrtc", AttentionKernel())
