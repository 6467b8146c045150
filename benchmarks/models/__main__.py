"""Time of a training step of small models of every common kind: jobflow's tiers of kernels next to PyTorch eager, one thread.

    python benchmarks/models --peer-python ~/torch/bin/python
    python benchmarks/models --peer-python ~/torch/bin/python --only encoder mixer --kernels numpy llvm

Every side is a process on the same core.  In a round they take turns; the table shows the median of the rounds' ratios, jobflow / PyTorch,
and their 10th and 90th percentile.  The losses of the first steps must agree, or the row is an error.  Appends one JSON line to
benchmarks/results.jsonl.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from pathlib import Path
from typing import Any

HERE = Path(__file__).parents[1]
sys.path[0] = str(HERE)

import model_sides  # noqa: E402
from model_sides import AGREE, PEER  # noqa: E402
from rich.console import Console  # noqa: E402
from rich.table import Table  # noqa: E402
from side import Side  # noqa: E402
from step_time import RESULTS, machine  # noqa: E402

from models.table import ROWS  # noqa: E402


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python benchmarks/models", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--peer-python", required=True, help="a Python that has PyTorch")
    parser.add_argument("--only", nargs="+", choices=ROWS, default=list(ROWS), metavar="MODEL", help=", ".join(ROWS))
    parser.add_argument("--kernels", nargs="+", choices=("auto", "reference", "numpy", "llvm"), default=["auto"], help="tiers of jobflow's kernels")
    parser.add_argument("--rounds", type=int, default=11)
    parser.add_argument("--core", type=int, default=max(os.sched_getaffinity(0)))
    return parser.parse_args()


def sides_of(model: str, options: argparse.Namespace) -> list[Side]:
    ours = [model_sides.ours(tier, model, "graph", options.core, kernels=tier) for tier in options.kernels]
    return [*ours, model_sides.peer(model, options.peer_python, options.core)]


def measure(model: str, options: argparse.Namespace) -> dict[str, Any]:
    """Milliseconds, ratios and memory by side, and how far the losses of the first steps are from PyTorch's."""
    return {"model": model} | model_sides.measure(sides_of(model, options), PEER, options.rounds, options.core)


def table_of(results: list[dict[str, Any]], options: argparse.Namespace) -> Table:
    table = Table("model", "torch ms", "torch MiB")
    for tier in options.kernels:
        for heading in (f"{tier} ms", "ratio", "p10 - p90", "MiB", "losses differ"):
            table.add_column(heading, justify="right", no_wrap=True)
    for result in results:
        peer = result["sides"][PEER]
        cells = [result["model"], f"{peer['ms']:.2f}", f"{peer['mib']:.0f}"]
        for side in (result["sides"][tier] for tier in options.kernels):
            wrong = side["difference"] > AGREE
            spread = "{:.2f} - {:.2f}".format(*side["spread"])
            cells += [f"{side['ms']:.2f}", "ERROR" if wrong else f"{side['ratio']:.2f}", spread, f"{side['mib']:.0f}", f"{side['difference']:.0e}"]
        table.add_row(*cells)
    return table


def mean_ratio(results: list[dict[str, Any]], tiers: list[str]) -> float:
    """The geometric mean, over the models, of the ratio of the best of these tiers."""
    return model_sides.geometric_mean(min(result["sides"][tier]["ratio"] for tier in tiers) for result in results)


def main() -> int:
    options = arguments()
    console, results = Console(width=None if sys.stdout.isatty() else 200), []
    for model in options.only:
        results.append(measure(model, options))
        console.print(f"{model}: " + ", ".join(f"{name} {side['ratio']:.2f}" for name, side in results[-1]["sides"].items()), highlight=False)
    console.print(table_of(results, options))
    means = {tier: mean_ratio(results, [tier]) for tier in options.kernels} | {"best of each": mean_ratio(results, options.kernels)}
    console.print("geometric mean: " + ", ".join(f"{name} {mean:.3f}" for name, mean in means.items()), highlight=False)
    line = {"when": time.strftime("%Y-%m-%dT%H:%M:%S"), "machine": machine(), "models": results, "means": means}
    with RESULTS.open("a", encoding="utf-8") as file:
        file.write(json.dumps(line) + "\n")
    return int(any(side["difference"] > AGREE for result in results for side in result["sides"].values()))


if __name__ == "__main__":
    sys.exit(main())
