"""Convolutions on GPUs by printed kernels: one launch, or two for weight gradients whose reduction several blocks share."""

from __future__ import annotations

from collections.abc import Sequence

from jobflow.core.dataclass import dataclass
from jobflow.core.types import Array, dtype_of
from jobflow.kernels.cuda.compiled_text import compiler
from jobflow.kernels.cuda.convolution_tiles import THREADS, ConvolutionText
from jobflow.kernels.cuda.fused import placeholders
from jobflow.kernels.cuda.launches import KernelLaunch, refused_arrays
from jobflow.kernels.cuda.pooling_kernels import addresses
from jobflow.kernels.registry import register
from jobflow.ops.conv import Conv, ConvGradInput, ConvGradWeight, ConvOp
from jobflow.ops.op import Binder, Call, Op

NAME = "convolution"


@dataclass(frozen=True)
class ConvolutionKernel:
    """An implementation by kernels printed for the sizes and strides of the arrays; no windows are copied into memory."""

    name: str = "printed convolution"

    def refuses(self, op: Op, inputs: Sequence[Array], outputs: Sequence[Array]) -> str | None:
        return refused_arrays((*inputs, *outputs))

    def bind(self, op: Op, device: Binder, inputs: Sequence[Array], outputs: Sequence[Array]) -> list[Call]:
        assert isinstance(op, ConvOp)
        arrays = [*inputs, *outputs]
        here = compiler(int(outputs[0].device.id))
        text = ConvolutionText(op, placeholders(arrays), NAME)
        if text.scratch:
            arrays.append(device.scratch((text.scratch,), dtype_of(outputs[0].dtype).arithmetic))
        module, pointers = here.module(text.text()), addresses(placeholders(arrays))
        return [
            (KernelLaunch(module.function(each.name), arrays), ((min(each.blocks, here.blocks),), (THREADS,), pointers)) for each in text.launches()
        ]


for _op in (Conv, ConvGradInput, ConvGradWeight):
    register(_op, "cuda", "nvrtc", ConvolutionKernel())
