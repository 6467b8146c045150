"""Generation with a key-value cache: jobflow next to PyTorch eager on one core, in interleaved rounds of one run.

    python benchmarks/generation.py --peer-python ~/torch/bin/python
    python benchmarks/generation.py --peer-python ~/torch/bin/python --cpu          # on a machine that others use

The model is `flow.models.GPT` with the sizes of examples/gpt.py and a window of 1,024 tokens. Both sides have the same weights and generate the same,
most likely tokens. "whole N" is the time per token of a generation up to N tokens, after a prompt of 16 tokens. "at P" is the time of a token near
position P. A cell is the median over the rounds, and each round has a ratio of the sides. The last lines compare tokens at two positions.

Prints a table, appends one JSON line to benchmarks/results.jsonl (not with --dry), and asserts nothing about time.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from statistics import median
from typing import Any

from side import Side
from step_time import HERE, RESULTS, environment, machine, quantile, running

WORKER = str(HERE / "peers" / "generation_steps.py")
ORDERS = {"whole 128": 1, "whole 1024": 1, "at 100": 30, "at 500": 30, "at 990": 30}
#: tokens that are compared before the timing
CHECKED = 200


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--peer-python", help="a Python that has PyTorch; without it jobflow is timed alone")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--core", type=int, default=max(os.sched_getaffinity(0)))
    parser.add_argument("--cpu", action="store_true", help="compare processor time instead of elapsed time, on a machine that others use")
    parser.add_argument("--dry", action="store_true", help="append nothing to the results")
    return parser.parse_args()


def sides_of(options: argparse.Namespace) -> list[Side]:
    sides = [Side("jobflow", [[sys.executable, WORKER, "jobflow"]], [options.core], environment())]
    if options.peer_python:
        sides.append(Side("torch", [[options.peer_python, WORKER, "torch"]], [options.core]))
    return sides


def rounds_of(sides: list[Side], rounds: int) -> dict[str, dict[str, list[float]]]:
    """Return {order: {side: seconds per token by round}}; in a round, the sides alternate for each order."""
    seconds: dict[str, dict[str, list[float]]] = {order: {side.name: [] for side in sides} for order in ORDERS}
    for turn in range(rounds):
        for order, steps in ORDERS.items():
            for k in range(len(sides)):
                side = sides[(k + turn) % len(sides)]
                seconds[order][side.name].append(median(side.ask(do=order, steps=steps)["seconds"]))
    return seconds


def main() -> None:
    options = arguments()
    if options.cpu:
        os.environ["BENCHMARK_CLOCK"] = "cpu"  # inherited by every side
    with running(sides_of(options)) as sides:
        tokens = [side.ask(do="tokens", steps=CHECKED)["tokens"] for side in sides]
        seconds = rounds_of(sides, options.rounds)
    if any(each != tokens[0] for each in tokens):
        raise SystemExit("the sides generate different tokens")
    results: dict[str, Any] = {}
    print(f"{'ms per token':<14}" + "".join(f"{side.name:>10}" for side in sides) + "   ratio  p10 - p90")
    for order, by_side in seconds.items():
        row = results[order] = {name: median(values) for name, values in by_side.items()}
        text = f"{order:<14}" + "".join(f"{value * 1e3:10.3f}" for value in row.values())
        if len(sides) > 1:
            ratios = [a / b for a, b in zip(*by_side.values(), strict=True)]
            row |= {"ratio": median(ratios), "from": quantile(ratios, 0.1), "to": quantile(ratios, 0.9)}
            text += f"{row['ratio']:8.2f}  {row['from']:.2f} - {row['to']:.2f}"
        print(text)
    for side in sides:
        later = [a / b for a, b in zip(seconds["at 990"][side.name], seconds["at 100"][side.name], strict=True)]
        results[f"{side.name} 990 / 100"] = median(later)
        spread = f"{quantile(later, 0.1):.2f} - {quantile(later, 0.9):.2f}"
        print(f"{side.name}: a token at position 990 takes {median(later):.2f} times one at 100 ({spread})")
    if not options.dry:
        line = {"benchmark": "generation", "time": time.strftime("%Y-%m-%d %H:%M:%S"), "machine": machine(), "cpu": options.cpu, "results": results}
        with RESULTS.open("a") as file:
            file.write(json.dumps(line) + "\n")


if __name__ == "__main__":
    main()
