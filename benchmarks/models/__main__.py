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
import math
import os
import sys
import time
from pathlib import Path
from statistics import median
from typing import Any

HERE = Path(__file__).parents[1]
sys.path[0] = str(HERE)

from rich.console import Console  # noqa: E402
from rich.table import Table  # noqa: E402
from side import Side  # noqa: E402
from step_time import FOREIGN, RESULTS, environment, machine, one_round, quantile, running  # noqa: E402

from models.table import ROWS  # noqa: E402

#: seconds that a round should take on each side
ROUND = 0.3
CHECKED = 5
AGREE = 1e-4
PEER = "torch"


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python benchmarks/models", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--peer-python", required=True, help="a Python that has PyTorch")
    parser.add_argument("--only", nargs="+", choices=ROWS, default=list(ROWS), metavar="MODEL", help=", ".join(ROWS))
    parser.add_argument("--kernels", nargs="+", choices=("auto", "reference", "numpy", "llvm"), default=["auto"], help="tiers of jobflow's kernels")
    parser.add_argument("--rounds", type=int, default=11)
    parser.add_argument("--core", type=int, default=max(os.sched_getaffinity(0)))
    return parser.parse_args()


def sides_of(model: str, options: argparse.Namespace) -> list[Side]:
    script = str(HERE / "model_step.py")
    ours = [Side(tier, [[sys.executable, script, model, "--kernels", tier]], [options.core], environment()) for tier in options.kernels]
    return [*ours, Side(PEER, [[options.peer_python, script, model]], [options.core], {"BENCHMARK_LIBRARY": "torch"})]


def measure(model: str, options: argparse.Namespace) -> dict[str, Any]:
    """Milliseconds, ratios and memory by side, and how far the losses of the first steps are from PyTorch's."""
    with running(sides_of(model, options)) as sides:
        facts = {side.name: side.ask(do="facts") for side in sides}
        curves = {side.name: [facts[side.name]["first_loss"], *side.ask(do="losses", steps=CHECKED)["losses"]] for side in sides}
        slowest = max(min(side.ask(do="round", steps=3)["seconds"]) for side in sides)
        steps = max(3, round(ROUND / slowest))
        rounds = [one_round(sides, steps, turn, [options.core]) for turn in range(options.rounds)]
        memory = {side.name: side.peak_mib() for side in sides}
    calm = [times for times, foreign in rounds if foreign <= FOREIGN]
    kept = calm if len(calm) >= max(3, len(rounds) // 3) else [times for times, _ in rounds]
    found = {}
    for side in sides:
        ratios = [times[side.name] / times[PEER] for times in kept]
        found[side.name] = {
            "ms": 1e3 * median(times[side.name] for times in kept),
            "ratio": median(ratios),
            "spread": [quantile(ratios, 0.1), quantile(ratios, 0.9)],
            "mib": memory[side.name],
            "first_step_s": facts[side.name]["first_step_s"],
            "difference": max(abs(a - b) / abs(b) for a, b in zip(curves[side.name], curves[PEER], strict=True)),
        }
    return {"model": model, "disturbed": len(rounds) - len(calm), "sides": found}


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
    return math.exp(sum(math.log(min(result["sides"][tier]["ratio"] for tier in tiers)) for result in results) / len(results))


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
