"""Run sixteen printed kernels, each form once, under compute-sanitizer's memcheck and racecheck.

python sanitized_kernels.py            # start compute-sanitizer on the following
python sanitized_kernels.py --launch   # launch the kernels

The forms: elements; rows that 16, 32 and 256 threads share; sums of columns; pooling; writes in place; sorted sums; scans; sorts; copies of parts.
Arrays are allocated one by one, because memcheck cannot see accesses beyond an array inside CuPy's pool.
"""

from __future__ import annotations

import importlib
import json
import re
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import cuda_tools
import numpy as np

TESTS = Path(__file__).resolve().parents[2] / "tests"
sys.path[:0] = [str(TESTS / "gpu"), str(TESTS / "ops")]

import on_device  # noqa: E402

from jobflow.core.types import bfloat16, type_of  # noqa: E402
from jobflow.kernels import registry  # noqa: E402
from jobflow.kernels.cuda.launches import KernelLaunch  # noqa: E402
from jobflow.kernels.target import target_of  # noqa: E402
from jobflow.ops import arithmetic, index, norm, pool, reduce, scan, slices, softmax, sort  # noqa: E402
from jobflow.ops.op import Op, types_tuple  # noqa: E402

LAUNCHED = "launched: "
#: the summary of a tool of compute-sanitizer that found nothing
CLEAN = {
    "memcheck": re.compile(r"ERROR SUMMARY: 0 errors"),
    "racecheck": re.compile(r"RACECHECK SUMMARY: 0 hazards displayed|ERROR SUMMARY: 0 errors"),
}


def cases() -> Iterator[tuple[str, Op, tuple[Any, ...]]]:
    """Yield name, operation and arguments for each kernel form."""
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
        yield f"rows of {threads} threads, three results", norm.LayerNorm(1), (floats(70, width), floats(width), floats(width))
    norm_arrays = (floats(70, 1000), floats(70, 1000), floats(1000), floats(70), floats(70) ** 2 + 1)
    yield "rows and sums of columns", norm.LayerNormGrad(1), norm_arrays
    yield "sums of columns", reduce.ReduceSum((0,)), (floats(2000, 300),)
    images, window = floats(4, 3, 20, 20), ((3, 3), (2, 2), ((1, 1), (1, 1)))
    yield "pooling", pool.MaxPool(*window), (images,)
    yield "pooling, gradient", pool.MaxPoolGrad(*window), (images, floats(4, 3, 10, 10), floats(4, 3, 10, 10))
    yield "sorted sums", index.UnsortedSegmentSum(0, 300), (floats(5000, 37), random.randint(-1, 301, 5000))
    yield "scans", scan.CumSum(1), (floats(7, 1000),)
    yield "sorts", sort.Sort(1), (floats(7, 1000),)
    yield "copies of parts", slices.Concat(1), (floats(70, 9), floats(70, 30))


def launch(cupy: Any, name: str, op: Op, arrays: Sequence[Any]) -> None:
    """Bind and launch a printed kernel; raise RuntimeError if CuPy computes the operation, or the kernel has another form."""
    inputs = [cupy.asarray(array) for array in arrays]
    outputs = [cupy.empty(t.shape, t.dtype.numpy) for t in types_tuple(op.infer(*map(type_of, arrays)))]
    if "in place" in name:
        outputs[0] = inputs[0]
    calls = registry.bind(op, target_of("gpu", "auto"), on_device.Bench(cupy), inputs, outputs)
    blocks = [arguments[1][0] for function, arguments in calls if isinstance(function, KernelLaunch)]
    if not blocks:
        raise RuntimeError(f"{op} has no printed kernel")
    threads = re.search(r"rows of (\d+) threads", name)
    if threads and blocks[0] != int(threads[1]):
        raise RuntimeError(f"{name}: the kernel has {blocks[0]} threads a row")
    for function, arguments in calls:
        function(*arguments)


def launch_all() -> None:
    cupy = importlib.import_module("cupy")
    cupy.cuda.set_allocator(None)
    for name, op, arrays in cases():
        launch(cupy, name, op, arrays)
        cupy.cuda.runtime.deviceSynchronize()
        print(f"{LAUNCHED}{name}", flush=True)


def problem(tool: str, code: int, output: str) -> str:
    """Return the reason a run under compute-sanitizer failed, or ""; a tool that checked nothing has failed too."""
    launched = [line for line in output.splitlines() if line.startswith(LAUNCHED)]
    if len(launched) != len(list(cases())):
        return f"{tool}: {len(launched)} of {len(list(cases()))} kernels were launched, exit code {code}"
    if not CLEAN[tool].search(output):
        return f"{tool}: reported errors, or no summary, exit code {code}"
    return ""


def main() -> int:
    command = cuda_tools.find("compute-sanitizer")
    launching = [sys.executable, __file__, "--launch"]
    if command is None:
        print("NOT THERE compute-sanitizer is not installed; the kernels were launched without it", flush=True)
        return subprocess.run(launching, check=False).returncode
    # both at once: each takes several seconds to start
    options = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
    processes = {tool: subprocess.Popen([command, "--tool", tool, *launching], **options) for tool in CLEAN}
    problems = []
    for tool, process in processes.items():
        output, _ = process.communicate()
        print(output, flush=True)
        problems.append(problem(tool, process.returncode, output))
        print("RESULT " + json.dumps({"tool": tool, "problem": problems[-1] or "none"}), flush=True)
    return int(any(problems))


if __name__ == "__main__":
    sys.exit(launch_all() if "--launch" in sys.argv else main())
