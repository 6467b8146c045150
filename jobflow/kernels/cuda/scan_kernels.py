"""Running results along an axis on GPUs: one kernel per operation, whose texts `scan_text` prints."""

from __future__ import annotations

from collections.abc import Sequence

from jobflow.core.dataclass import dataclass
from jobflow.core.types import Array
from jobflow.kernels.cuda.compiled_text import compiler
from jobflow.kernels.cuda.fused import placeholders
from jobflow.kernels.cuda.kernel_text import THREADS
from jobflow.kernels.cuda.launches import KernelLaunch
from jobflow.kernels.cuda.pooling_kernels import addresses
from jobflow.kernels.cuda.scan_text import NAME, by_blocks, print_scan
from jobflow.kernels.registry import register
from jobflow.ops.op import Binder, Call, Op
from jobflow.ops.running_extremes import CumExtreme, LogCumSumExp
from jobflow.ops.scan import CumProdTail, Scan


@dataclass(frozen=True)
class ScanKernel:
    """An implementation by one kernel, printed for the sizes and strides of the arrays."""

    name: str = "scan"

    def refuses(self, op: Op, inputs: Sequence[Array], outputs: Sequence[Array]) -> str | None:
        return "an operand has no elements" if any(0 in a.shape for a in (*inputs, *outputs)) else None

    def bind(self, op: Op, device: Binder, inputs: Sequence[Array], outputs: Sequence[Array]) -> list[Call]:
        arrays = [*inputs, *outputs]
        here, views = compiler(int(outputs[0].device.id)), placeholders(arrays)
        function = here.module(print_scan(op, views)).function(NAME)
        return [(KernelLaunch(function, arrays), ((min(blocks_of(op, views), here.blocks),), (THREADS,), addresses(views)))]


def blocks_of(op: Op, arrays: Sequence[Array]) -> int:
    """Return the number of blocks with which every line has its threads at once."""
    x = arrays[0]
    lines = int(x.size) // x.shape[int(vars(op)["axis"]) % x.ndim]
    return lines if by_blocks(op, arrays) else -(-lines // THREADS)


for _op in (Scan, CumProdTail, CumExtreme, LogCumSumExp):
    register(_op, "cuda", "nvrtc", ScanKernel())
