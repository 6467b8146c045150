"""Steps of the GPU check: commands and time limits."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from step_runner import Step

ROOT = Path(__file__).resolve().parents[2]
STEPS = ROOT / "scripts" / "gpu_check_steps"
BENCHMARKS = ROOT / "benchmarks" / "gpu"
TESTS = "tests/gpu/test_on_gpu.py"
#: seconds that each part may take
BUDGET = {"correct": 330.0, "speed": 400.0, "diagnose": 400.0, "dry": 180.0}
#: test processes at once: each has a CUDA context of about half a gigabyte
MOST_WORKERS = 14
#: doctor output for a working GPU and for the stub
GPU_WORKS, GPU_IS_A_STUB = r"^OK +GPU", r"^problem +GPU .*a kernel returned wrong values"
#: seconds per test and mode of `diagnose`, and the most tests that fit
DIAGNOSED, MOST_TESTS = 90.0, 10


@dataclass(frozen=True)
class Setup:
    """Options shared by the steps of a part.  `dry`: on the stub GPU, with small models."""

    out: Path
    temporary: Path
    #: `dry`: record of compiled kernels
    cache: Path = Path()
    dry: bool = False
    peer_python: str = sys.executable
    inductor_cache: Path | None = None
    python: str = sys.executable
    workers: int = field(default_factory=lambda: min(MOST_WORKERS, len(os.sched_getaffinity(0))))

    def program(self, path: Path, *arguments: str) -> tuple[str, ...]:
        return (self.python, str(path), *arguments)

    def tests(self, chosen: str, *options: str, workers: int | None = None) -> tuple[str, ...]:
        """Return the pytest command for GPU tests whose names match `chosen`; it prints each result at once."""
        parallel = ("-p", "xdist", "-n", str(min(workers or self.workers, self.workers))) if (workers or self.workers) > 1 else ()
        return (self.python, "-m", "pytest", "-v", "--tb=short", "-p", "no:cacheprovider", TESTS, "-k", chosen, *parallel, *options)

    @property
    def size(self) -> tuple[str, ...]:
        return ("--small",) if self.dry else ()


def correct(setup: Setup) -> list[Step]:
    """Return the correctness steps: machine, operations, ranks, programs, memory errors, capture."""
    arrays = {"CUPY_ACCELERATORS": ""}
    return [
        Step("facts", 12, setup.program(STEPS / "machine_facts.py", str(setup.out))),
        Step("doctor", 35, (setup.python, "-m", "jobflow", "doctor"), expects=GPU_IS_A_STUB if setup.dry else GPU_WORKS),
        Step("device", 12, setup.tests("Device or whole_numbers", workers=1)),
        Step("ops", 100, setup.tests("kernel", f"--junitxml={setup.out / 'ops.xml'}"), arrays),
        Step("host", 12, setup.tests("ThroughTheHost", workers=6)),
        Step("programs", 32, setup.tests("test_one_gpu or (test_processes and (hybrid_mlp or gpt))", workers=7)),
        Step("ipc", 12, setup.tests("(test_one_gpu or test_processes) and hybrid_mlp", workers=1), {"JOBFLOW_GPU_IPC": "1"}),
        Step("products", 12, setup.program(STEPS / "product_calls.py")),
        Step("sanitizer", 12, setup.program(STEPS / "sanitized_kernels.py")),
        Step("capture", 8, setup.program(STEPS / "captured_graph.py")),
        Step("tensors", 20, setup.tests("test_tensors", workers=8)),
        Step("adversarial", 20, setup.program(STEPS / "attention_edges.py")),
        Step("images", 35, setup.program(STEPS / "image_calls.py")),
        # repeat with CUB reductions, CuPy's default
        Step("ops-cub", 30 if setup.dry else None, setup.tests("test_the_kernel_gives_what_it_gives_on_numpy"), {"CUPY_ACCELERATORS": "cub"}),
    ]


def speed(setup: Setup) -> list[Step]:
    """Return the performance steps: ceilings of the machine, both models in PyTorch and jobflow, the slowest calls."""
    cache = ("--inductor-cache", str(setup.inductor_cache)) if setup.inductor_cache else ()
    peers = setup.program(BENCHMARKS / "all_torch.py", "--peer-python", setup.peer_python, "--out", str(setup.out), *cache, *setup.size)
    slowest = str(setup.out / "slowest_calls.md")
    return [
        Step("card", 10, setup.program(STEPS / "machine_facts.py")),
        Step("ceilings", 12, setup.program(BENCHMARKS / "ceilings.py", *setup.size)),
        Step("peers", 170, peers),
        Step("jobflow", 100, setup.program(BENCHMARKS / "all_jobflow.py", *setup.size)),
        Step("calls", 45, setup.program(BENCHMARKS / "slowest_calls.py", "--out", slowest, *setup.size)),
        Step("ncu", 60, setup.program(BENCHMARKS / "kernel_counters.py", *setup.size)),
    ]


def diagnose(setup: Setup, tests: Sequence[str]) -> list[Step]:
    """Return two steps per test: blocking launches, then memcheck."""
    limit = min(DIAGNOSED, BUDGET["diagnose"] / (2 * len(tests)))
    one_test = (setup.python, "-m", "pytest", "-vv", "--tb=long", "--showlocals", "-p", "no:cacheprovider")
    blocking = {"CUDA_LAUNCH_BLOCKING": "1", "CUPY_DUMP_CUDA_SOURCE_ON_ERROR": "1"}
    steps = []
    for test in tests:
        name = test.rpartition("::")[2]
        steps.append(Step(f"blocking:{name}", limit, (*one_test, test), blocking))
        steps.append(Step(f"memcheck:{name}", limit, setup.program(STEPS / "sanitized_tests.py", test)))
    return steps


def dry(setup: Setup) -> list[Step]:
    """Return all steps on the stub, then the machine code of hot kernels, and NVRTC compilation of all kernels."""
    example = f"{TESTS}::TestDevice::test_empty_values"
    texts = setup.program(STEPS / "compiled_texts.py", str(setup.temporary / "stub" / "texts"), "--cache", str(setup.cache))
    code = setup.program(STEPS / "kernel_code.py", "--cache", str(setup.cache))
    launches = Step("launches", 20, setup.program(STEPS / "tensor_launches.py"))
    extra = [launches, *speed(setup), *diagnose(setup, [example])]
    return [*correct(setup), *extra, Step("code", None, code), Step("compile", None, texts)]
