"""The cost of guarded updates (variables do not change if a gradient is not finite): with and without, alone and on two ranks.

    python benchmarks/halting.py [--rounds 3] [--models mlp lenet]

Every run is a separate process (two under mpiexec), pinned to a core; the kinds alternate.  Prints the median step of each and the
ratio, and asserts nothing.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import time
from pathlib import Path
from statistics import median

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE), str(HERE.parent)]

from jobflow.distributed import mpiexec  # noqa: E402

STEPS = {"mlp": 600, "lenet": 40}


def one(model: str, halts: bool) -> None:
    """Print the median milliseconds of a step, after a quarter of the steps."""
    import models
    import ours

    import jobflow as flow

    os.sched_setaffinity(0, {int(os.environ.get("PMI_RANK", "0"))})
    if halts:
        plain = flow.optimizer.SGD
        flow.optimizer.SGD = lambda *args, **named: plain(*args, loss_scale_policy=flow.optimizer.loss_scale.halt_where_not_finite(), **named)
    flow.config.cpu_device_num(int(os.environ.get("PMI_SIZE", "1")))
    job, arguments = ours.job(model, False), models.batch(model)
    flow.load_variables(models.weights(model))
    durations = []
    for _ in range(STEPS[model]):
        start = time.perf_counter()
        job(*arguments)
        durations.append(time.perf_counter() - start)
    print(1e3 * median(durations[len(durations) // 4 :]))


def started(model: str, halts: bool, ranks: int) -> float:
    command = [sys.executable, __file__, "--one", model, str(int(halts))]
    if ranks > 1:
        command = [mpiexec.find() or "mpiexec", "-n", str(ranks), *command]
    threads = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
    done = subprocess.run(command, env=os.environ | threads, stdout=subprocess.PIPE, text=True, check=True)
    return float(done.stdout)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--models", nargs="+", choices=tuple(STEPS), default=list(STEPS))
    parser.add_argument("--one", nargs=2, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.one:
        return one(options.one[0], options.one[1] == "1")
    for model in options.models:
        for ranks in (1, 2):
            pairs = [(started(model, False, ranks), started(model, True, ranks)) for _ in range(options.rounds)]
            without, with_check = (median(side) for side in zip(*pairs, strict=True))
            ratios = sorted(b / a for a, b in pairs)
            spread = f"{ratios[0]:.2f} - {ratios[-1]:.2f}"
            print(f"{model:6} {ranks} rank(s)  without {without:7.3f} ms  halting {with_check:7.3f} ms  ratio {median(ratios):.2f} ({spread})")


if __name__ == "__main__":
    main()
