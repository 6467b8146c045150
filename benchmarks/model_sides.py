"""Training steps of the models of `models/`: one process per side, in interleaved rounds on one core.

A side is jobflow in one mode (eager, graph or compile), perhaps of another checkout, or PyTorch eager. All sides run this checkout's
`model_step.py`, which uses public names only.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from statistics import median
from typing import Any

from side import Side
from step_time import FOREIGN, HERE, environment, one_round, quantile, running

#: seconds of a round on each side
ROUND = 0.3
#: steps whose losses are compared, and the largest relative difference
CHECKED, AGREE = 5, 1e-4
PEER = "torch"
SCRIPT = str(HERE / "model_step.py")


def ours(name: str, model: str, mode: str, core: int, root: Path = HERE.parent, kernels: str = "auto") -> Side:
    """A process of jobflow in a checkout."""
    return Side(name, [[sys.executable, "-P", SCRIPT, model, "--mode", mode, "--kernels", kernels]], [core], environment(root))


def peer(model: str, python: str, core: int) -> Side:
    return Side(PEER, [[python, SCRIPT, model]], [core], {"BENCHMARK_LIBRARY": "torch"})


def steps_of_a_round(sides: Iterable[Side]) -> int:
    """Return the number of steps that takes the slowest side about `ROUND` seconds."""
    slowest = max(min(side.ask(do="round", steps=3)["seconds"]) for side in sides)
    return max(3, round(ROUND / slowest))


def measure(sides: Sequence[Side], reference: str, rounds: int, core: int) -> dict[str, Any]:
    """Return milliseconds, ratios to the reference side, memory, and the difference of the first losses, by side."""
    with running(list(sides)):
        facts = {side.name: side.ask(do="facts") for side in sides}
        curves = {side.name: [facts[side.name]["first_loss"], *side.ask(do="losses", steps=CHECKED)["losses"]] for side in sides}
        steps = steps_of_a_round(sides)
        rounds_of_times = [one_round(list(sides), steps, turn, [core]) for turn in range(rounds)]
        memory = {side.name: side.peak_mib() for side in sides}
    calm = [times for times, foreign in rounds_of_times if foreign <= FOREIGN]
    used = calm if len(calm) >= max(3, rounds // 3) else [times for times, _ in rounds_of_times]
    figures = {}
    for name in memory:
        ratios = [times[name] / times[reference] for times in used]
        figures[name] = {
            "ms": 1e3 * median(times[name] for times in used),
            "ratio": median(ratios),
            "spread": [quantile(ratios, 0.1), quantile(ratios, 0.9)],
            "mib": memory[name],
            "first_step_s": facts[name]["first_step_s"],
            "difference": max(abs(a - b) / abs(b) for a, b in zip(curves[name], curves[reference], strict=True)),
        }
    return {"disturbed": rounds - len(calm), "sides": figures}


def geometric_mean(ratios: Iterable[float]) -> float:
    logarithms = [math.log(ratio) for ratio in ratios]
    return math.exp(sum(logarithms) / len(logarithms))
