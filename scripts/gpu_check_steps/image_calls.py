"""Compute convolutions, their gradients, and batch normalization with the channels innermost, and compare them with float64 on the host.

The shapes are those of ResNet-50, for few images.  Each result is computed by the implementation that programs use.  Where cuDNN computes it, the
printed kernel computes it, too.  On the stub, the kernels are bound and compiled, and compute nothing.
"""

from __future__ import annotations

import importlib
import json
import os
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

TESTS = Path(__file__).resolve().parents[2] / "tests"
sys.path[:0] = [str(TESTS / "gpu"), str(TESTS / "ops")]

import on_device  # noqa: E402

from jobflow.core.types import bfloat16, float32, type_of  # noqa: E402
from jobflow.kernels import registry  # noqa: E402
from jobflow.kernels.cuda.convolution_kernels import ConvolutionKernel  # noqa: E402
from jobflow.kernels.target import target_of  # noqa: E402
from jobflow.ops.batch_norm import BatchMoments, BatchNormalize, BatchNormalizeGrad, BatchNormalizeSums  # noqa: E402
from jobflow.ops.conv import Conv, ConvOp  # noqa: E402
from jobflow.ops.op import Op, types_tuple  # noqa: E402

IMAGES = 4
#: channels, filters, side of the image, side of the kernel, stride
CONVOLUTIONS = [
    (3, 64, 224, 7, 2),
    (64, 64, 56, 1, 1),
    (64, 64, 56, 3, 1),
    (128, 128, 56, 3, 2),
    (256, 512, 56, 1, 2),
    (1024, 256, 14, 1, 1),
    (512, 512, 7, 3, 1),
]
#: convolutions on the stub
FEW = 2
#: channels and side of the images of batch normalization
NORMALIZED = [(64, 112), (256, 56), (2048, 7)]
#: largest distance relative to the largest element
TOLERANCE = {"float32": 1e-4, "bfloat16": 2e-2}


def normal(random: Any, *shape: int) -> Any:
    return random.standard_normal(shape, np.float32)


def convolutions(count: int) -> Iterator[tuple[str, Op, list[Any]]]:
    random = np.random.default_rng(0)
    for channels, filters, side, kernel, stride in CONVOLUTIONS[:count]:
        around = (kernel // 2, kernel // 2)
        op = Conv((stride, stride), (around, around), (1, 1))
        x, w = normal(random, IMAGES, channels, side, side), normal(random, filters, channels, kernel, kernel)
        w /= np.sqrt(channels) * kernel
        dy = normal(random, *types_tuple(op.infer(type_of(x), type_of(w)))[0].shape)
        what = f"{channels}x{side}x{side} to {filters}, {kernel}x{kernel} by {stride}"
        yield f"conv {what}", op, [x, w]
        if channels > 3:  # the gradient of the images themselves is not part of a training step
            yield f"input gradient {what}", op._input_gradient((side, side)), [dy, w]
        yield f"filter gradient {what}", op._weight_gradient((kernel, kernel)), [x, dy]


def normalizations(count: int) -> Iterator[tuple[str, Op, list[Any]]]:
    """Yield the four operations of a batch normalization.  Programs in half precision cast the operands of the last three to float32."""
    random = np.random.default_rng(1)
    for channels, side in NORMALIZED[:count]:
        x, dy = (normal(random, IMAGES, channels, side, side) + shift for shift in (3.0, 0.0))
        mean, gamma, beta = x.mean((0, 2, 3)), *(normal(random, channels) for _ in range(2))
        variance = x.var((0, 2, 3))
        sums = [part.astype(np.float32) for part in _sums(dy, x, mean, variance)]
        what = f"{channels}x{side}x{side}"
        yield f"moments {what}", BatchMoments(1), [x]
        yield f"normalize {what}", BatchNormalize(1, 1e-5), [x, mean, variance, gamma, beta]
        yield f"sums {what}", BatchNormalizeSums(1, 1e-5), [dy, x, mean, variance]
        yield f"normalize gradient {what}", BatchNormalizeGrad(1, 1e-5, IMAGES * side * side), [dy, x, mean, variance, gamma, *sums]


def _sums(dy: Any, x: Any, mean: Any, variance: Any) -> list[Any]:
    return in_float64(BatchNormalizeSums(1, 1e-5), [dy, x, mean, variance])


def in_float64(op: Op, arrays: Sequence[Any]) -> list[Any]:
    wide = [array.astype(np.float64) for array in arrays]
    outputs = [np.zeros(each.shape) for each in types_tuple(op.infer(*map(type_of, wide)))]
    op.kernel(np, *wide, *outputs)
    return outputs


def channels_last(cupy: Any, array: Any) -> Any:
    """Return a copy on the device that stores the channels innermost; vectors are copied as they are."""
    if array.ndim < 4:
        return cupy.asarray(array)
    return cupy.asarray(np.ascontiguousarray(array.transpose(0, 2, 3, 1))).transpose(0, 3, 1, 2)


def distance(ours: Any, theirs: Any, terms: int) -> float:
    """Return the largest distance relative to the largest element, or infinity for values that are not finite.

    Sums of `terms` elements that are nearly 0 are compared with the root of their number.
    """
    single = on_device.single(ours).astype(np.float64)
    return float(np.max(np.abs(single - theirs)) / max(np.max(np.abs(theirs)), terms**0.5)) if np.isfinite(single).all() else np.inf


def check(cupy: Any, name: str, op: Op, arrays: Sequence[Any], expected: Sequence[Any] | None) -> Iterator[str]:
    """Compute the operation by each implementation; yield the results that are too far from the expected ones."""
    inputs = [channels_last(cupy, array) for array in arrays]
    types = types_tuple(op.infer(*map(type_of, arrays)))
    outputs = [channels_last(cupy, np.full(each.shape, np.nan, each.dtype.numpy)) for each in types]
    bench, target = on_device.Bench(cupy), target_of("gpu", "auto")
    chosen = registry.choose(op, target, inputs, outputs).implementation
    others = [ConvolutionKernel()] if chosen.name.startswith("cuDNN") else []
    for implementation in (chosen, *others):
        for output in outputs:
            output[...] = np.nan
        for function, arguments in implementation.bind(op, bench, inputs, outputs):
            function(*arguments)
        if expected is None:
            continue
        kind = str(arrays[0].dtype)
        terms = arrays[0].size // arrays[0].shape[1] if isinstance(op, BatchNormalizeSums) else 0
        far = max(distance(ours.get(), theirs, terms) for ours, theirs in zip(outputs, expected, strict=True))
        print("RESULT " + json.dumps({"operation": name, "type": kind, "by": implementation.name, "distance": far}), flush=True)
        if not far <= TOLERANCE[kind]:
            yield f"{name} in {kind} by {implementation.name}: {far:.2e}"


def main() -> None:
    stub = "JOBFLOW_GPU_STUB" in os.environ
    cupy = importlib.import_module("cupy")
    wrong: list[str] = []
    cases = [*convolutions(FEW if stub else len(CONVOLUTIONS)), *normalizations(1 if stub else len(NORMALIZED))]
    for name, op, arrays in cases:
        for dtype in (float32, bfloat16) if isinstance(op, ConvOp | BatchMoments) else (float32,):
            rounded = [array.astype(dtype.numpy) if array.ndim == 4 else array for array in arrays]
            expected = None if stub else in_float64(op, rounded)
            wrong += check(cupy, name, op, rounded, expected)
    if wrong:
        raise SystemExit(f"results are far from float64: {'; '.join(wrong)}")
    if stub:
        print("NOT THERE the stub computes nothing; the kernels were bound", flush=True)


if __name__ == "__main__":
    main()
