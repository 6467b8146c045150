"""Attention with logarithms of sums near -100, at key lengths near multiples of 128, forward and backward, compared with float64 on the host.

A library once returned NaN there (cudnn-frontend#628).  On the stub, the kernels are bound and compiled, and compute nothing.
"""

from __future__ import annotations

import importlib
import json
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

TESTS = Path(__file__).resolve().parents[2] / "tests"
sys.path[:0] = [str(TESTS / "gpu"), str(TESTS / "ops")]

import on_device  # noqa: E402

from jobflow.core.types import bfloat16, float32, type_of  # noqa: E402
from jobflow.kernels import registry  # noqa: E402
from jobflow.kernels.target import target_of  # noqa: E402
from jobflow.ops.attention import Attention, AttentionGrad  # noqa: E402
from jobflow.ops.op import types_tuple  # noqa: E402

KEYS = (64, 128, 192, 1000, 1024)
HEADS, QUERIES, SIZE = 2, 128, 64
#: the logarithm of the sum of each row
LOGARITHM = -100.0
#: largest distance of results, and of gradients, relative to the largest element.  The terms of the queries' gradient are near 100 and cancel, and
#: a library rounds them to the type of its operands.
TOLERANCE = {"float32": (3e-3, 3e-3), "bfloat16": (2e-2, 0.3)}


def operands(keys: int, dtype: Any) -> list[Any]:
    """Return queries, keys, values and an output gradient whose scores are near LOGARITHM - log(keys)."""
    random = np.random.RandomState(keys)
    q, k, v, dy = (random.standard_normal((1, HEADS, count, SIZE)) for count in (QUERIES, keys, keys, QUERIES))
    q[..., 0], k[..., 0] = 8.0, (LOGARITHM - np.log(keys)) * SIZE**0.5 / 8.0
    return [array.astype(dtype.numpy) for array in (q, k, v, dy)]


def by_kernels(cupy: Any, op: Any, arrays: Sequence[Any]) -> list[Any]:
    inputs = [cupy.asarray(array) for array in arrays]
    outputs = [cupy.zeros(each.shape, each.dtype.numpy) for each in types_tuple(op.infer(*map(type_of, arrays)))]
    for function, arguments in registry.bind(op, target_of("gpu", "auto"), on_device.Bench(cupy), inputs, outputs):
        function(*arguments)
    return [cupy.asnumpy(output) for output in outputs]


def in_float64(op: Any, arrays: Sequence[Any]) -> list[Any]:
    wide = [array.astype(np.float64) for array in arrays]
    outputs = [np.empty(each.shape) for each in types_tuple(op.infer(*map(type_of, wide)))]
    op.kernel(np, *wide, *outputs)
    return outputs


def distance(ours: Sequence[Any], theirs: Sequence[Any]) -> float:
    """Return the largest relative distance of an output, and infinity for values that are not finite."""
    pairs = [(on_device.single(a).astype(np.float64), b) for a, b in zip(ours, theirs, strict=True)]
    return max(float(np.max(np.abs(a - b)) / np.max(np.abs(b))) if np.isfinite(a).all() else np.inf for a, b in pairs)


def main() -> None:
    stub = "JOBFLOW_GPU_STUB" in os.environ
    cupy = importlib.import_module("cupy")
    wrong = []
    for keys in KEYS[:1] if stub else KEYS:
        for dtype in (float32, bfloat16):
            q, k, v, dy = operands(keys, dtype)
            forward, backward = (cls(SIZE**-0.5) for cls in (Attention, AttentionGrad))
            y, logarithms = by_kernels(cupy, forward, (q, k, v))
            gradients = by_kernels(cupy, backward, (q, k, v, y, logarithms, dy))
            if stub:
                continue
            expected = in_float64(forward, (q, k, v))
            # the rounded result is an input of the gradient
            far = distance((y, logarithms), expected), distance(gradients, in_float64(backward, (q, k, v, y, logarithms, dy)))
            print("RESULT " + json.dumps({"keys": keys, "type": dtype.name, "distance": far[0], "of gradients": far[1]}), flush=True)
            if not all(own <= most for own, most in zip(far, TOLERANCE[dtype.name], strict=True)):
                wrong.append(f"{keys} keys in {dtype.name}: {far[0]:.2e}, gradients {far[1]:.2e}")
    if wrong:
        raise SystemExit(f"attention is far from float64: {'; '.join(wrong)}")
    if stub:
        print("NOT THERE the stub computes nothing; the kernels were bound", flush=True)


if __name__ == "__main__":
    main()
