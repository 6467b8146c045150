"""GPT-2 124M on a stub GPU whose memory it exceeds: prints the error.

JOBFLOW_GPU_STUB_MEMORY=BYTES python stub_memory.py FOLDER FRACTION

FRACTION of the memory is the limit of the program.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]
sys.path[:0] = [str(ROOT / "tests" / "gpu" / "without_gpu"), str(ROOT / "benchmarks" / "gpu"), str(ROOT)]

import host_runtime  # noqa: E402


def main(folder: str, fraction: str) -> None:
    host_runtime.install(Path(folder))
    import jobflow_models
    import workloads

    import jobflow as flow

    flow.config.gpu_device_num(1)
    flow.cuda.set_per_process_memory_fraction(float(fraction))
    size = workloads.FULL["gpt2"]
    step = jobflow_models.job(size, 1, "bfloat16")
    try:
        step(*workloads.batches(size, 1)[0])
    except MemoryError as error:
        print(f"{type(error).__name__}: {error}", flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
    os._exit(0)  # CuPy frees memory when the interpreter has already removed the stub's functions
