"""Train one model with jobflow and print the time, memory and loss of its steps.

python run_jobflow.py MODEL BATCH PRECISION [--small] [--host]

It runs on the GPU if there is one.  With --host it runs on the CPU, which compares losses and no times.
"""

from __future__ import annotations

import argparse
import importlib
from typing import Any

import jobflow_models
import step_timing
import workloads

import jobflow as flow


def prepared(model: str, batch: int, precision: str, small: bool, host: bool) -> Any:
    """Return a function that trains one step and returns the loss."""
    size = workloads.sizes(small)[model]
    (flow.config.cpu_device_num if host else flow.config.gpu_device_num)(1)
    train_step = jobflow_models.job(size, batch, precision)
    flow.load_variables(workloads.weights(size))
    return lambda arrays: float(train_step(*arrays).item())


def page_locked(arrays: tuple[Any, ...]) -> tuple[Any, ...]:
    """Return copies in page-locked memory, as PyTorch gets them."""
    return tuple(flow.tensor(array).pin_memory().numpy() for array in arrays)


def peak_mib(host: bool) -> float | None:
    """Return the MiB reserved by CuPy's memory pool."""
    if host:
        return None
    pool = importlib.import_module("cupy").get_default_memory_pool()
    return float(pool.total_bytes()) / 2**20


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", choices=workloads.MODELS)
    parser.add_argument("batch", type=int)
    parser.add_argument("precision", choices=tuple(jobflow_models.PRECISIONS))
    parser.add_argument("--small", action="store_true", help="small models")
    parser.add_argument("--host", action="store_true", help="on the CPU")
    options = parser.parse_args()
    step = prepared(options.model, options.batch, options.precision, options.small, options.host)
    batches = workloads.batches(workloads.sizes(options.small)[options.model], options.batch)
    if not options.host:
        batches = [page_locked(arrays) for arrays in batches]
    warm, early = step_timing.run_steps(step, batches, workloads.WARM, 0)
    timed, late = step_timing.run_steps(step, batches, workloads.TIMED, workloads.WARM)
    row = step_timing.figures(options.model, options.small, options.batch, options.precision, "jobflow", warm, timed, [*early, *late])
    step_timing.emit(**row, peak_mib=peak_mib(options.host))


if __name__ == "__main__":
    main()
