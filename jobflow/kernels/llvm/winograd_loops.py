"""Convolutions by array functions, with Winograd's transforms as compiled loops: the tier "llvm" of CPUs."""

from __future__ import annotations

from functools import lru_cache

from jobflow.core.types import DType, dtype_of
from jobflow.kernels.argument_block import address, argument_block
from jobflow.kernels.cpu.convolutions import register_algorithms
from jobflow.kernels.cpu.winograd import ImageTile, TileTransform, WinogradBackend
from jobflow.kernels.llvm import product_loops
from jobflow.kernels.llvm.machine_code import Function, Printed, compiler
from jobflow.kernels.llvm.winograd_text import Rows, TransformForm, constants, print_transform
from jobflow.ops.op import Call

#: bytes of a block's values that stay in a core's own cache, along with inputs and outputs
NEAR = 5 << 18


def transformed(transform: TileTransform) -> list[Call]:
    """Return the calls of a transform, one per tile."""
    down, along = (_exact(tuple(map(tuple, matrix.tolist()))) for matrix in (transform.down, transform.along))
    function = _compiled(dtype_of(transform.tiles[0][0].image.dtype), down, along)
    return [(function, (_arguments(transform, x, y),)) for x, y in transform.tiles]


def _refused() -> str | None:
    return None if compiler().has_fma else "this machine has no fused multiply-adds"


def _arguments(transform: TileTransform, x: ImageTile, y: ImageTile) -> object:
    words: list[int] = []
    for part, sizes in ((x, (transform.down.shape[1], transform.along.shape[1])), (y, (transform.down.shape[0], transform.along.shape[0]))):
        words += part.image.strides[:3]
        for first, there, size in zip((part.top, part.left), part.image.shape[1:3], sizes, strict=True):
            words += [max(0, -first), min(size, there - first)]
    starts = [address(part.image) + part.top * part.image.strides[1] + part.left * part.image.strides[2] for part in (x, y)]
    return argument_block([*starts, x.image.shape[0], x.image.shape[3], *words], (x.image, y.image))


_exact = lru_cache(constants)  # cached, because all blocks of a convolution have the same matrices


@lru_cache
def _compiled(dtype: DType, down: Rows, along: Rows) -> Function:
    form = TransformForm(dtype, compiler().vector_bytes // dtype.itemsize, down, along)
    return compiler().printed(f"transform {form}", lambda: Printed(print_transform(form)))[0]


register_algorithms("llvm", WinogradBackend(transformed, product_loops.added, NEAR), _refused)
