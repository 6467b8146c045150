"""Time of single operations: jobflow's tiers next to PyTorch on one core, in interleaved rounds of one run.

    python benchmarks/ops.py --peer-python ~/torch/bin/python
    python benchmarks/ops.py --peer-python ~/torch/bin/python --only gelu softmax --sizes 1e6

Every operation runs forward ("forward"), and forward with its gradients ("both"), on arrays of 10^4, 10^6 and 10^7 elements of float32.
jobflow's side is a compiled graph of 20 equal operations (4 of 10^6 elements, one of 10^7).  Only its prepared calls are timed.  PyTorch
runs as many, eagerly, and keeps as many results.  In a round the sides alternate.  A cell is the median over the rounds of the least time of
a round, and each round has a ratio.  "eager" is another table: microseconds of an eager operation on a tensor [4, 6].

Prints tables, and those whose ratio to PyTorch is above 1.5 with a reason if one is known; appends one JSON line to
benchmarks/results.jsonl (not with --dry), and asserts nothing about time.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from pathlib import Path
from statistics import median
from typing import Any

from op_cases import CASES, SIZES, Case
from rich.console import Console
from rich.table import Table
from side import Side
from step_time import HERE, RESULTS, environment, machine, quantile, running

TIERS = ("numpy", "llvm")
WAYS = ("forward", "both")
#: above this a row is listed
SLOW = 1.5
#: why rows of the tier numpy are, where nothing else is said
CALLS_APART = "NumPy's own functions, most of them several, each over a block at a time; llvm makes one loop"
#: runs of a round, by size, and calls of a small operation at once
RUNS = {"1e4": 20, "1e6": 3, "1e7": 2}
CALLS = 500


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--peer-python", help="a Python that has PyTorch; without it jobflow is timed alone")
    parser.add_argument("--only", nargs="+", metavar="OP", choices=[case.name for case in CASES], help="these operations")
    parser.add_argument("--sizes", nargs="+", choices=tuple(SIZES), default=[*RUNS, "eager"])
    parser.add_argument("--tiers", nargs="+", choices=TIERS, default=list(TIERS))
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--core", type=int, default=max(os.sched_getaffinity(0)))
    parser.add_argument("--dry", action="store_true", help="append nothing to the results")
    return parser.parse_args()


def sides_of(options: argparse.Namespace, *more: str) -> list[Side]:
    sides = [Side("jobflow", [[sys.executable, str(HERE / "ops_ours.py"), *more]], [options.core], environment())]
    if options.peer_python:
        sides.append(Side("torch", [[options.peer_python, str(HERE / "peers" / "torch_ops.py"), *more]], [options.core]))
    return sides


def compared(requests: list[tuple[str, Side, str]], runs: int, rounds: int) -> dict[str, Any]:
    """Of each that is asked its seconds, and its ratio to the last with its spread; a round's time is its least."""
    for _, side, order in requests:
        side.ask(do=order, steps=1)
    by_name: dict[str, list[float]] = {name: [] for name, *_ in requests}
    for turn in range(rounds):
        for k in range(len(requests)):
            name, side, order = requests[(k + turn) % len(requests)]
            by_name[name].append(min(side.ask(do=order, steps=runs)["seconds"]))
    row: dict[str, Any] = {name: median(seconds) for name, seconds in by_name.items()}
    if "torch" in by_name:
        for name in by_name.keys() - {"torch"}:
            ratios = [a / b for a, b in zip(by_name[name], by_name["torch"], strict=True)]
            row[f"{name} ratio"], row[f"{name} spread"] = median(ratios), [quantile(ratios, 0.1), quantile(ratios, 0.9)]
    return row


def measure(case: Case, size: str, way: str, sides: list[Side], options: argparse.Namespace) -> dict[str, Any]:
    ours, *others = sides
    requests = [(tier, ours, f"{tier}|{case.name}|{size}|{way}") for tier in options.tiers]
    requests += [("torch", peer, f"torch|{case.name}|{size}|{way}") for peer in others]
    return compared(requests, RUNS[size], options.rounds)


def table(title: str, names: list[str]) -> Table:
    grid = Table("operation", title=title, title_justify="left")
    for name in (*names, *(f"{name} / torch" for name in names if name != "torch")):
        grid.add_column(name, justify="right")
    return grid


def cells(row: dict[str, Any], names: list[str]) -> list[str]:
    ratios = [f"{row[f'{n} ratio']:.2f} ({row[f'{n} spread'][0]:.2f}-{row[f'{n} spread'][1]:.2f})" for n in names if f"{n} ratio" in row]
    return [*(f"{row[name] * 1e6:,.2f}" for name in names), *ratios]


def main() -> None:
    options = arguments()
    cases = [case for case in CASES if not options.only or case.name in options.only]
    console, results = Console(width=150), dict[str, Any]()
    reasons: dict[str, str] = {}
    for size in options.sizes:
        eager = size == "eager"
        names = [*(["jobflow"] if eager else options.tiers), *(["torch"] if options.peer_python else [])]
        shown = table("microseconds at once, float32[4,6]" if eager else f"microseconds, {size} elements", names)
        with running(sides_of(options, *(["--eager"] if eager else []))) as sides:
            for case in cases:
                for way in WAYS[: 1 if eager or not case.backward else 2]:
                    if eager:
                        row = compared([(side.name, side, case.name) for side in sides], CALLS, options.rounds)
                    else:
                        row = measure(case, size, way, sides, options)
                    name = f"{case.name} {size} {way}"
                    results[name], reasons[name] = row, case.reason
                    shown.add_row(f"{case.name}{', both' if way == 'both' else ''}", *cells(row, names))
        console.print(shown)
    slow(results, reasons, console)
    if not options.dry:
        line = {"when": time.strftime("%Y-%m-%dT%H:%M:%S"), "machine": machine(), "ops": results}
        with Path(RESULTS).open("a", encoding="utf-8") as file:
            file.write(json.dumps(line) + "\n")


def slow(results: dict[str, Any], reasons: dict[str, str], console: Console) -> None:
    """The rows above the limit in the fastest tier that was asked for."""
    listed = Table("operation", "ratio", "reason", title=f"above {SLOW} of PyTorch", title_justify="left")
    for name, row in results.items():
        tier = next((tier for tier in ("llvm", "jobflow", "numpy") if f"{tier} ratio" in row), "")
        if tier and row[f"{tier} ratio"] > SLOW and " eager " not in f" {name} ":
            listed.add_row(name, f"{row[f'{tier} ratio']:.2f}", reasons[name] or (CALLS_APART if tier == "numpy" else ""))
    console.print(listed)


if __name__ == "__main__":
    main()
