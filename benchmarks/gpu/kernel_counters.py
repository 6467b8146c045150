"""Read hardware counters of the six slowest printed kernels of a bfloat16 GPT-2 step, by Nsight Compute.

python kernel_counters.py [--small]             # start ncu on the following
python kernel_counters.py --launch [--small]    # launch these kernels between cudaProfilerStart and cudaProfilerStop
"""

from __future__ import annotations

import argparse
import csv
import importlib
import subprocess
import sys
from pathlib import Path
from statistics import median
from typing import Any

sys.path.append(str(Path(__file__).resolve().parents[2] / "scripts" / "gpu_check_steps"))

import cuda_tools
import run_jobflow
import slowest_calls
import step_timing
import workloads

from jobflow.kernels.cuda.launches import KernelLaunch

KERNELS, WARM, TIMED = 6, 2, 3
#: duration, occupancy, memory throughput, sectors of 32 bytes per load and per store request
METRICS = (
    "gpu__time_duration.sum",
    "sm__warps_active.avg.pct_of_peak_sustained_active",
    "dram__throughput.avg.pct_of_peak_sustained_elapsed",
    "l1tex__average_t_sectors_per_request_pipe_lsu_mem_global_op_ld.ratio",
    "l1tex__average_t_sectors_per_request_pipe_lsu_mem_global_op_st.ratio",
)


def launch(small: bool) -> None:
    size = workloads.sizes(small)["gpt2"]
    step = run_jobflow.prepared("gpt2", size.batches[0], "bfloat16", small, host=False)
    batches = workloads.batches(size, size.batches[0])
    step_timing.run_steps(step, batches, WARM, 0)
    executor = slowest_calls.executor_of_the_job()
    times = [median(column) for column in zip(*slowest_calls.timed_calls(executor, step, batches, TIMED), strict=True)]
    calls = [*executor.body, *executor.epilogue]
    executor.replays = []  # single calls, no graphs
    printed = sorted((k for k, (function, _) in enumerate(calls) if isinstance(function, KernelLaunch)), key=lambda k: -times[k])[:KERNELS]
    profiler = importlib.import_module("cupy.cuda.profiler")

    def profiled(call: Any, what: str) -> Any:
        function, arguments = call

        def run() -> None:
            print(f"kernel: {what}", flush=True)
            profiler.start()
            function(*arguments)
            executor.device.synchronize()
            profiler.stop()

        return run, ()

    body = len(executor.body)
    for k in printed:
        words = slowest_calls.described(executor.call_instructions[k])
        part, index = (executor.body, k) if k < body else (executor.epilogue, k - body)
        part[index] = profiled(part[index], f"{words.kernel} {words.name} {words.what}")
    step(batches[0])


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--small", action="store_true", help="a small model")
    parser.add_argument("--launch", action="store_true")
    options = parser.parse_args()
    if options.launch:
        launch(options.small)
        return 0
    launching = [sys.executable, __file__, "--launch", *(["--small"] if options.small else [])]
    command = cuda_tools.find("ncu")
    if command is None:
        print("NOT THERE ncu is not installed; the kernels were launched without it", flush=True)
        return subprocess.run(launching, check=False).returncode
    counting = [command, "--csv", "--profile-from-start", "off", "--clock-control", "none", "--metrics", ",".join(METRICS)]
    done = subprocess.run([*counting, *launching], capture_output=True, text=True, check=False)
    print(done.stdout, done.stderr, flush=True)
    kernels = counters(done.stdout)
    for number, values in kernels.items():
        step_timing.emit(figure="counters", kernel=number, **values)
    if len(kernels) < KERNELS:
        print(f"ncu measured {len(kernels)} of {KERNELS} kernels, exit code {done.returncode}", file=sys.stderr)
        return 1
    return done.returncode


def counters(output: str) -> dict[str, dict[str, str]]:
    """Return the metrics of each launch from ncu's CSV output."""
    lines = output.splitlines()
    head = next((i for i, line in enumerate(lines) if line.startswith('"ID"')), len(lines))
    launches: dict[str, dict[str, str]] = {}
    for row in csv.DictReader(line for line in lines[head:] if line.startswith('"')):
        launches.setdefault(row["ID"], {})[row["Metric Name"]] = f"{row['Metric Value']} {row['Metric Unit']}".strip()
    return launches


if __name__ == "__main__":
    sys.exit(main())
