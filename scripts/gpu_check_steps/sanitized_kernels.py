"""Run twelve printed kernels, each form once, under compute-sanitizer's memcheck and racecheck.

python sanitized_kernels.py            # start compute-sanitizer on the following
python sanitized_kernels.py --launch   # launch the kernels

The forms: elements; rows that 16, 32 and 256 threads share; sums of columns; pooling; writes in place.
"""

from __future__ import annotations

import importlib
import json
import shutil
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

TESTS = Path(__file__).resolve().parents[2] / "tests"
sys.path[:0] = [str(TESTS / "gpu"), str(TESTS / "ops")]

import on_device  # noqa: E402

from jobflow.core.types import bfloat16, type_of  # noqa: E402
from jobflow.kernels import registry  # noqa: E402
from jobflow.kernels.cuda.fused import KernelLaunch  # noqa: E402
from jobflow.kernels.target import target_of  # noqa: E402
from jobflow.ops import arithmetic, norm, pool, reduce, softmax  # noqa: E402
from jobflow.ops.op import Op, types_tuple  # noqa: E402

#: exit code of compute-sanitizer if it reports an error
ERRORS = 9


def cases() -> Iterator[tuple[str, Op, tuple[Any, ...]]]:
    """Names, operations, and arguments of shapes that use each form of kernel."""
    random = np.random.RandomState(0)

    def floats(*shape: int) -> Any:
        return random.standard_normal(shape).astype(np.float32)

    def halves(*shape: int) -> Any:
        return floats(*shape).astype(bfloat16.numpy)

    yield "elements", arithmetic.Add(), (floats(1000, 37), floats(1000, 37))
    yield "elements in bfloat16", arithmetic.Add(), (halves(1000, 37), halves(1000, 37))
    yield "elements in place", arithmetic.Multiply(), (floats(1000, 37), floats(1000, 37))
    for threads, width in ((16, 100), (32, 1000), (256, 9000)):
        yield f"rows of {threads} threads", softmax.Softmax(1), (floats(70, width),)
        norm_arrays = (floats(70, width), floats(70, width), floats(width), floats(70), floats(70) ** 2 + 1)
        yield f"rows of {threads} threads and sums of columns", norm.LayerNormGrad(1), norm_arrays
    yield "sums of columns", reduce.ReduceSum((0,)), (floats(2000, 300),)
    images, window = floats(4, 3, 20, 20), ((3, 3), (2, 2), ((1, 1), (1, 1)))
    yield "pooling", pool.MaxPool(*window), (images,)
    yield "pooling, gradient", pool.MaxPoolGrad(*window), (images, floats(4, 3, 10, 10), floats(4, 3, 10, 10))


def launch(cupy: Any, op: Op, arrays: Sequence[Any], in_place: bool) -> None:
    """Bind and launch an operation by the kernels printed for GPUs; RuntimeError if CuPy would compute it."""
    inputs = [cupy.asarray(array) for array in arrays]
    outputs = [cupy.empty(t.shape, t.dtype.numpy) for t in types_tuple(op.infer(*map(type_of, arrays)))]
    if in_place:
        outputs[0] = inputs[0]
    calls = registry.bind(op, target_of("gpu", "auto"), on_device.Bench(cupy), inputs, outputs)
    if not any(isinstance(function, KernelLaunch) for function, _ in calls):
        raise RuntimeError(f"{op} has no printed kernel")
    for function, arguments in calls:
        function(*arguments)


def launch_all() -> None:
    cupy = importlib.import_module("cupy")
    for name, op, arrays in cases():
        print(name, flush=True)
        launch(cupy, op, arrays, "in place" in name)
    cupy.cuda.runtime.deviceSynchronize()


def main() -> int:
    command = shutil.which("compute-sanitizer")
    launching = [sys.executable, __file__, "--launch"]
    if command is None:
        print("NOT THERE compute-sanitizer is not installed; the kernels were launched without it", flush=True)
        return subprocess.run(launching, check=False).returncode
    # both at once: each takes several seconds to start
    processes = [subprocess.Popen([command, "--tool", tool, f"--error-exitcode={ERRORS}", *launching]) for tool in ("memcheck", "racecheck")]
    codes = [process.wait() for process in processes]
    print(f"RESULT {json.dumps(dict(zip(('memcheck', 'racecheck'), codes, strict=True)))}", flush=True)
    return max(codes, key=abs)


if __name__ == "__main__":
    sys.exit(launch_all() if "--launch" in sys.argv else main())
