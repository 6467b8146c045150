"""Compute the products of a GPT-2 layer by cublasLt, with their epilogues, and compare them with float64.

On the stub GPU, the imitated cublasLt of the tests multiplies small matrices, through the real CuPy.  There, the products of a training step are
counted too.  Without cublasLt, the step reports it as not there.
"""

from __future__ import annotations

import importlib
import json
import os
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

TESTS = Path(__file__).resolve().parents[2] / "tests"
sys.path[:0] = [str(TESTS / "gpu"), str(TESTS / "ops")]

import on_device  # noqa: E402

from jobflow.core.types import bfloat16, dtype_of, float32, type_of  # noqa: E402
from jobflow.kernels import registry  # noqa: E402
from jobflow.kernels.cuda import cublaslt_library  # noqa: E402
from jobflow.kernels.cuda.epilogue_product import EpilogueProduct  # noqa: E402
from jobflow.kernels.target import target_of  # noqa: E402
from jobflow.ops.matmul import MatMul  # noqa: E402
from jobflow.ops.op import types_tuple  # noqa: E402

#: tolerance of a result by its element type, relative to the largest element
TOLERANCES = {"float32": 2e-5, "bfloat16": 1.6e-2}
#: tokens, width, and width of the feed-forward network; small ones on the stub
SIZES, SMALL = (1024, 768, 3072), (16, 24, 40)
#: blocks of the GPT-2 on the stub, and the products of a block and of the head in a training step, without those of attention
BLOCKS, PRODUCTS_OF_A_BLOCK, PRODUCTS_OF_THE_HEAD = 2, 12, 3
#: name, operation, and shapes of the inputs in letters: t tokens, w width, f width of the feed-forward network
CASES = [
    ("bias", EpilogueProduct(MatMul(), bias=True), "tw wf f"),
    ("bias and residual", EpilogueProduct(MatMul(False, True), bias=True, addend=True), "tf wf w tw"),
    ("GELU and its input", EpilogueProduct(MatMul(), bias=True, gelu="forward", keeps=True), "tw wf f"),
    ("derivative of GELU", EpilogueProduct(MatMul(False, True), gelu="gradient"), "tw fw tf"),
    ("derivative of GELU and sums", EpilogueProduct(MatMul(False, True), gelu="gradient", sums="y"), "tw fw tf"),
    ("gradients of weight and bias", EpilogueProduct(MatMul(True), float32, sums="b"), "tw tf"),
    ("gradients of transposed weight and bias", EpilogueProduct(MatMul(True), float32, sums="a"), "tf tw"),
    ("gradient of a weight in float32", EpilogueProduct(MatMul(True), float32), "tw tf"),
]


def inputs_of(op: EpilogueProduct, letters: str, dtype: Any, sizes: Sequence[int]) -> list[Any]:
    """Return random inputs; the factors have the element type `dtype`, and all others the type of the result."""
    length = dict(zip("twf", sizes, strict=True))
    random = np.random.RandomState(len(letters))
    shapes = [tuple(length[axis] for axis in word) for word in letters.split()]
    result = dtype if op.result is None else op.result
    scale = 1 / sizes[1] ** 0.5
    return [(scale * random.standard_normal(shape)).astype((dtype if k < 2 else result).numpy) for k, shape in enumerate(shapes)]


def check(cupy: Any, name: str, op: EpilogueProduct, arrays: Sequence[Any]) -> float:
    """Return the largest distance of a result from float64, in parts of its tolerance."""
    inputs = [cupy.asarray(a) for a in arrays]
    outputs = [cupy.zeros(t.shape, t.dtype.numpy) for t in types_tuple(op.infer(*map(type_of, arrays)))]
    chosen = registry.choose(op, target_of("gpu"), inputs, outputs)
    calls = chosen.implementation.bind(op, on_device.Bench(cupy), inputs, outputs)
    for function, arguments in calls:
        function(*arguments)
    expected = [np.empty(y.shape, np.float64) for y in outputs]
    EpilogueProduct(op.product, None, op.bias, op.addend, op.gelu, op.keeps, op.sums).kernel(
        np, *(np.asarray(a, np.float64) for a in arrays), *expected
    )
    worst = 0.0
    for ours, theirs in zip(outputs, expected, strict=True):
        distance = float(np.max(np.abs(np.asarray(cupy.asnumpy(ours), np.float64) - theirs)) / np.max(np.abs(theirs)))
        worst = max(worst, distance / TOLERANCES[dtype_of(ours.dtype).name])
    print("RESULT " + json.dumps({"product": name, "type": str(arrays[0].dtype), "calls": len(calls), "distance / tolerance": worst}), flush=True)
    return worst


def check_step(imitation: Any, precision: str) -> None:
    """Train a small GPT-2 on the stub; exit unless its second step has the products of its plan, and its third only launches captured graphs."""
    sys.path.insert(0, str(TESTS.parent / "benchmarks" / "gpu"))
    models, workloads, flow = map(importlib.import_module, ("jobflow_models", "workloads", "jobflow"))
    flow.clear_default_session()
    flow.config.gpu_device_num(1)
    step = models.job(workloads.Gpt2(words=1001, length=64, width=64, heads=4, blocks=BLOCKS), 1, precision)
    words, counts = np.zeros((1, 64), np.int32), [imitation["products"]]
    for _ in range(3):
        step(words, words)
        counts.append(imitation["products"])
    _, second, third = np.diff(counts)
    print("RESULT " + json.dumps({"step": precision, "products": int(second), "of a replay": int(third)}), flush=True)
    if (second, third) != (PRODUCTS_OF_A_BLOCK * BLOCKS + PRODUCTS_OF_THE_HEAD, 0):
        raise SystemExit(f"a step in {precision} has {second} products, and a replayed one {third}: {imitation.error}")
    flow.clear_default_session()


def main() -> None:
    stub = "JOBFLOW_GPU_STUB" in os.environ
    cupy = importlib.import_module("cupy")
    with tempfile.TemporaryDirectory() as folder:
        if stub:
            fake = importlib.import_module("fake_cublaslt")
            cublaslt_library.LIBRARIES[13] = (str(fake.compiled(Path(folder))), "nowhere")
        search = cublaslt_library.find()
        if search.library is None:
            print(f"NOT THERE cublasLt: {search.reason}", flush=True)
            return
        print(f"cublasLt {search.library.version_text} at {search.library.path}", flush=True)
        sizes = SMALL if stub else SIZES
        far = {
            f"{name} ({dtype.name})": distance
            for dtype in (float32, bfloat16)
            for name, op, letters in CASES
            if (distance := check(cupy, name, op, inputs_of(op, letters, dtype, sizes))) > 1
        }
        if stub:
            imitation = fake.Imitation(Path(search.library.path))
            imitation["computes"] = 0
            for precision in ("float32", "bfloat16"):
                check_step(imitation, precision)
    if far:
        raise SystemExit(f"products are further from float64 than their tolerance: {far}")


if __name__ == "__main__":
    main()
