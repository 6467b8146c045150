"""Training steps of recurrent networks: jobflow, compiled and eager, next to PyTorch eager on one core, in interleaved rounds of one run.

    python benchmarks/sequences.py --peer-python ~/torch/bin/python
    python benchmarks/sequences.py --peer-python ~/torch/bin/python --modules LSTM --sizes 32x256 --rounds 15
    python benchmarks/sequences.py --first

A step is forward and backward of one layer with a batch of 32, for sizes of steps x features.  In a round the sides alternate.  A cell is the
median over the rounds of the least time of a round, and each round has a ratio to PyTorch.  `--first` measures the first call of the compiled
function with 32 and with 256 steps instead, each in a new process with an empty cache.

Prints tables, appends one JSON line to benchmarks/results.jsonl (not with --dry), and asserts nothing about time.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from statistics import geometric_mean, median
from typing import Any

from side import ONE_THREAD, Side
from step_time import HERE, RESULTS, environment, machine, quantile, running

MODULES, SIZES, MODES = ("LSTM", "GRU"), ("32x32", "64x128", "100x64", "32x256"), ("compiled", "eager")
WORKER = str(HERE / "peers" / "sequence_steps.py")
#: seconds of a side's part of a round; steps before the first round, after which eager operations are prepared
PART, WARM = 0.2, 40
#: steps of the sequences whose first calls are compared
FIRST = (32, 256)


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--peer-python", help="a Python that has PyTorch; without it jobflow is timed alone")
    parser.add_argument("--modules", nargs="+", choices=(*MODULES, "RNN"), default=list(MODULES))
    parser.add_argument("--sizes", nargs="+", default=list(SIZES), metavar="STEPSxFEATURES")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--core", type=int, default=max(os.sched_getaffinity(0)))
    parser.add_argument("--first", action="store_true", help="measure first calls")
    parser.add_argument("--dry", action="store_true", help="append nothing to the results")
    return parser.parse_args()


def sides_of(options: argparse.Namespace) -> list[Side]:
    sides = [Side(mode, [[sys.executable, WORKER, "jobflow", mode]], [options.core], environment()) for mode in MODES]
    if options.peer_python:
        sides.append(Side("torch", [[options.peer_python, WORKER, "torch", "eager"]], [options.core]))
    return sides


def compared(sides: list[Side], order: str, rounds: int) -> dict[str, Any]:
    """Return by side the median seconds of a step, and the ratio to the last side with its spread."""
    runs = {side.name: max(2, round(PART / min(side.ask(do=order, steps=WARM)["seconds"]))) for side in sides}
    seconds: dict[str, list[float]] = {side.name: [] for side in sides}
    for turn in range(rounds):
        for k in range(len(sides)):
            side = sides[(k + turn) % len(sides)]
            seconds[side.name].append(min(side.ask(do=order, steps=runs[side.name])["seconds"]))
    base = seconds[sides[-1].name]
    ratios = {name: [a / b for a, b in zip(values, base, strict=True)] for name, values in seconds.items()}
    return {
        name: {"seconds": median(values), "ratio": median(ratios[name]), "from": quantile(ratios[name], 0.1), "to": quantile(ratios[name], 0.9)}
        for name, values in seconds.items()
    }


def steps(options: argparse.Namespace) -> dict[str, Any]:
    results: dict[str, Any] = {}
    with running(sides_of(options)) as sides:
        names = [side.name for side in sides]
        print(f"{'ms per step':<16}" + "".join(f"{name:>12}" for name in names) + "".join(f"{f'{n} / {names[-1]}':>30}" for n in names[:-1]))
        for module in options.modules:
            for size in options.sizes:
                row = results[f"{module} {size}"] = compared(sides, f"{module} {size}", options.rounds)
                times = "".join(f"{row[name]['seconds'] * 1e3:12.3f}" for name in names)
                ratios = "".join(f"{each['ratio']:16.2f} ({each['from']:.2f} to {each['to']:.2f})" for name, each in row.items() if name != names[-1])
                print(f"{module + ' ' + size:<16}{times}{ratios}", flush=True)
    for name in names[:-1]:
        print(f"{name}: geometric mean of the ratios {geometric_mean(row[name]['ratio'] for row in results.values()):.2f}")
    return results


def first_calls(options: argparse.Namespace) -> dict[str, Any]:
    """Return by module the median seconds of the first call, by number of steps."""
    results: dict[str, Any] = {}
    for module in options.modules:
        seconds: dict[int, list[float]] = {count: [] for count in FIRST}
        for _ in range(options.rounds):
            for count in FIRST:
                with tempfile.TemporaryDirectory() as cache:
                    command = [sys.executable, WORKER, "jobflow", "compiled", "--first", f"{module} {count}x64"]
                    variables = os.environ | ONE_THREAD | environment() | {"JOBFLOW_CACHE": cache}
                    answer = subprocess.run(command, env=variables, capture_output=True, text=True, check=True)
                    seconds[count].append(float(answer.stdout))
        results[module] = {str(count): median(values) for count, values in seconds.items()}
        short, long = results[module].values()
        print(f"{module}: first call with {FIRST[0]} steps {short:.2f} s, with {FIRST[1]} steps {long:.2f} s, ratio {long / short:.2f}", flush=True)
    return results


def main() -> None:
    options = arguments()
    results = first_calls(options) if options.first else steps(options)
    if not options.dry:
        line = {
            "benchmark": "sequences",
            "time": time.strftime("%Y-%m-%d %H:%M:%S"),
            "machine": machine(),
            "first": options.first,
            "results": results,
        }
        with RESULTS.open("a") as file:
            file.write(json.dumps(line) + "\n")


if __name__ == "__main__":
    main()
