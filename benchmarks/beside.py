"""Comparison with another checkout: times of steps, small ops, layout changes and compiling, and memory, in interleaved rounds.

    git worktree add ../before COMMIT
    python benchmarks/beside.py ../before
    python benchmarks/beside.py ../before --only step compile --models gpt --rounds 31

step      a training step of each model as a job, on one rank and on two MPI ranks, and the peak memory of its largest process
eager     small ops with and without backward, changes of layout, and a step of the MLP: at once, and as nn.Graph
reduce    an all_reduce between two MPI ranks, by size
compile   a process of its own in each round: import, session and compile, first step, its peak memory; a deep GPT for many ranks
models    whole eager training steps of the models of benchmarks/models on one core, and the peak memory of the process
first     time, number of modules and peak memory of a new process until the first tensor, eager operation or job step
cold      the first eager step of these models in a new process, with an empty and with a filled cache of compiled loops

Every side is the other checkout's own benchmarks/ours.py, eager_ours.py and reduce.py on its own jobflow. The last three parts run this
checkout's programs on both; they use public names only.  In a round the sides alternate, and each round has a ratio of their times.
The tables show the median of the ratios with the 95 % interval of the median.  Rounds in which other processes used the cores for more
than a tenth of the time are left out, unless most did.

A time is as it should be if its interval reaches below 1.03; compile times and memory if the median ratio is at most 1.05.  The exit code is 1
if anything is not.  Appends one JSON line to benchmarks/results.jsonl (not with --dry).
"""

from __future__ import annotations

import argparse
import copy
import json
import math
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from statistics import median

import eager
import model_sides
import models
import parallel
import step_time
from models.table import ROWS
from side import Side, own_cores
from step_time import FOREIGN, HERE, RESULTS, environment, machine, running

NOW, BEFORE = "now", "before"
RANKS = 2
#: the interval of a time's ratio begins below the first; median ratios of compile times and memory are at most the second
FASTEST, MOST = 1.03, 1.05
CERTAIN = 0.95
#: routes of changes of layout that are timed, and their sizes
SIZES = {"1 KiB": 100, "1 MiB": 20}
#: what a process of its own is asked for, with its unit
FACTS = {
    "import_s": ("import", "s"),
    "compile_s": ("session and compile", "s"),
    "first_step_s": ("first step", "s"),
    "mib": ("memory by then", "MiB"),
}
#: figures of benchmarks/first_use.py: words, unit, and whether the median ratio is judged
USES = {
    "wall_s": ("time", "s", False),
    "cpu_s": ("processor time", "s", False),
    "modules": ("modules", "", True),
    "mib": ("peak memory", "MiB", True),
}
#: compiles a deep GPT for many ranks in a process of its own
DEEP = "import json, parallel, worker; print(worker.PREFIX + json.dumps(parallel.compile(None)))"

#: a side of a checkout, by its name
Make = Callable[[Path, str], Side]


@dataclass(frozen=True)
class Row:
    """A measured figure of both checkouts, with its ratio in every round."""

    name: str
    unit: str
    now: float
    before: float
    ratios: tuple[float, ...]
    #: whether the median must be at most `MOST`; if not, the interval must begin below `FASTEST`
    strict: bool = False
    disturbed: int = 0

    @property
    def interval(self) -> tuple[float, float]:
        """The confidence interval of the median of the ratios, from order statistics and the binomial distribution."""
        n, ordered = len(self.ratios), sorted(self.ratios)
        outside, k = 0.0, 0
        while k < (n - 1) // 2 and outside + math.comb(n, k) / 2**n <= (1 - CERTAIN) / 2:
            outside += math.comb(n, k) / 2**n
            k += 1
        first = max(k - 1, 0)
        return ordered[first], ordered[n - 1 - first]

    @property
    def good(self) -> bool:
        return median(self.ratios) <= MOST if self.strict else self.interval[0] < FASTEST

    def __str__(self) -> str:
        interval = "{:.3f} - {:.3f}".format(*self.interval)
        cells = f"  {self.name:44}{self.now:12.3f}{self.before:12.3f} {self.unit:4}{median(self.ratios):9.3f}{interval:>18}"
        return f"{cells}  {len(self.ratios):3} rounds{'' if self.good else '   WORSE'}"


def row(name: str, unit: str, pairs: Sequence[tuple[float, float]], strict: bool = False, disturbed: int = 0) -> Row:
    """Return the row of the measurements (now, before) of each round."""
    now, before = (median(column) for column in zip(*pairs, strict=True))
    return Row(name, unit, now, before, tuple(a / b for a, b in pairs), strict, disturbed)


def turns(name: str, sides: Sequence[Side], order: str, calls: int, options: argparse.Namespace) -> Row:
    """Return the time of a call on each side, from rounds without load by other processes."""
    for side in sides:  # warm
        side.ask(do=order, steps=calls)
    rounds = [eager.one_turn(sides, [order] * len(sides), calls, turn, options.cores) for turn in range(options.rounds)]
    calm = [times for times, foreign in rounds if foreign <= FOREIGN]
    calm_rounds = calm if len(calm) >= max(3, len(rounds) // 3) else [times for times, _ in rounds]
    pairs = [(1e3 * times[NOW], 1e3 * times[BEFORE]) for times in calm_rounds]
    return row(name, "ms", pairs, disturbed=len(rounds) - len(calm))


def both(make: Make, options: argparse.Namespace) -> list[Side]:
    return [make(HERE.parent, NOW), make(options.other, BEFORE)]


def on(options: argparse.Namespace, ranks: int) -> argparse.Namespace:
    """Return a copy of the options for this number of ranks."""
    copied = copy.copy(options)
    copied.ranks, copied.cores = ranks, options.cores[-ranks:]
    return copied


# -------------------------------------------------------------------- parts


def step(options: argparse.Namespace) -> Iterator[Row]:
    for model in options.models:
        for ranks in (1, RANKS):
            own = on(options, ranks)
            with running(both(lambda root, name: step_time.ours(model, own, False, root, name), options)) as sides:  # noqa: B023 - called at once
                for side in sides:
                    side.ask(do="facts")
                yield turns(f"step of {model}, {ranks} rank(s)", sides, "round", step_time.STEPS[model], own)
                peaks = {side.name: side.peak_mib() for side in sides}
            yield row(f"peak memory of {model}, {ranks} rank(s)", "MiB", [(peaks[NOW], peaks[BEFORE])], strict=True)


def at_once(options: argparse.Namespace) -> Iterator[Row]:
    small = [*eager.OPS, *(f"{op} backward" for op in eager.OPS)]
    routes = [(f"{route} {size}", calls) for size, calls in SIZES.items() for route in eager.ROUTES]
    parts: list[tuple[str, int, list[tuple[str, int]]]] = [
        ("ops", 1, [(f"local {op}", eager.SMALL_CALLS) for op in small]),
        ("ops", RANKS, [(f"global {op}", eager.SMALL_CALLS) for op in small]),
        ("routes", RANKS, routes),
        ("step", 1, [("local", eager.STEPS)]),
        ("step", RANKS, [(case, eager.STEPS) for case in ("global", "averaged")]),
        ("graph", 1, [(case, eager.STEPS) for case in ("graph", "local graph")]),
        ("graph", RANKS, [("graph", eager.STEPS)]),
    ]
    for part, ranks, cases in parts:
        own = on(options, ranks)
        with running(both(lambda root, name: eager.ours(part, ranks, own, root, name), options)) as sides:  # noqa: B023 - called at once
            for side in sides:
                side.ask(do="facts")
            for case, calls in cases:
                yield turns(f"{part}: {case}, {ranks} rank(s)", sides, case, calls, own)


def reduce(options: argparse.Namespace) -> Iterator[Row]:
    def make(root: Path, name: str) -> Side:
        return Side(name, [parallel.launched("reduce.py", "jobflow", root=root)], options.cores, environment(root))

    with running(both(make, options)) as sides:
        for nbytes in parallel.SIZES:
            yield turns(f"all_reduce of {nbytes >> 10} KiB, {RANKS} ranks", sides, "round", nbytes, options)


def compiling(options: argparse.Namespace) -> Iterator[Row]:
    for model in options.models:
        own = on(options, 1)
        measured: list[dict[str, dict[str, float]]] = []
        for turn in range(options.rounds):
            sides = both(lambda root, name: step_time.ours(model, own, False, root, name), options)  # noqa: B023 - called at once
            measured.append({side.name: _first(side) for side in (sides if turn % 2 else sides[::-1])})
        for fact, (words, unit) in FACTS.items():
            yield row(f"{model}: {words}", unit, [(turn_result[NOW][fact], turn_result[BEFORE][fact]) for turn_result in measured], strict=True)
    yield from _deep(options)


def _first(side: Side) -> dict[str, float]:
    """Measure a new process from its start to its first step."""
    with running([side]):
        facts = side.ask(do="facts")
        return {fact: float(facts[fact]) for fact in FACTS if fact in facts} | {"mib": side.peak_mib()}


def _deep(options: argparse.Namespace) -> Iterator[Row]:
    """Measure layout inference of a deep GPT for many ranks, and the planning of one rank."""
    measured: list[dict[str, dict[str, float]]] = []
    for turn in range(options.rounds):
        roots = [(NOW, HERE.parent), (BEFORE, options.other)]
        measured.append({name: _compiled(name, root, options) for name, root in (roots if turn % 2 else roots[::-1])})
    for fact in ("layout_s", "plan_s"):
        pairs = [(turn_result[NOW][fact], turn_result[BEFORE][fact]) for turn_result in measured]
        yield row(f"{fact.removesuffix('_s')} of a GPT of {parallel.BLOCKS} blocks, {parallel.PLANNED_RANKS} ranks", "s", pairs, strict=True)


def _compiled(name: str, root: Path, options: argparse.Namespace) -> dict[str, float]:
    path = {"PYTHONPATH": os.pathsep.join([str(root / "benchmarks"), environment(root)["PYTHONPATH"]])}
    with running([Side(name, [[sys.executable, "-P", "-c", DEEP]], options.cores[-1:], path)]) as (side,):
        return {key: float(value) for key, value in side.ask(do="compile").items()}


def model_steps(options: argparse.Namespace) -> Iterator[Row]:
    own = on(options, 1)
    for model in options.eager_models:
        sides = both(lambda root, name: model_sides.ours(name, model, "eager", own.cores[0], root), options)  # noqa: B023 - called at once
        for side in sides:
            side.environment["BENCHMARK_CLOCK"] = "cpu" if options.cpu else "elapsed"
        with running(sides):
            for side in sides:
                side.ask(do="facts")
            yield turns(f"eager step of {model}", sides, "round", model_sides.steps_of_a_round(sides), own)
            peaks = {side.name: side.peak_mib() for side in sides}
        yield row(f"peak memory of eager {model}", "MiB", [(peaks[NOW], peaks[BEFORE])], strict=True)


def first_uses(options: argparse.Namespace) -> Iterator[Row]:
    for root in (HERE.parent, options.other):  # writes the bytecode of both checkouts
        _first_use("job", options.cores[-1], root, NOW)
    for use in ("tensor", "operation", "job"):
        pairs = in_processes(partial(_first_use, use, options.cores[-1]), options)
        for fact, (words, unit, strict) in USES.items():
            yield row(f"{words} of the first {use}", unit, [(pair[NOW][fact], pair[BEFORE][fact]) for pair in pairs], strict)


def _first_use(use: str, core: int, root: Path, name: str) -> dict[str, float]:
    command = [sys.executable, "-P", str(HERE / "first_use.py"), use]
    with running([Side(name, [command], [core], environment(root))]) as (side,):
        return side.ask()


def first_steps(options: argparse.Namespace) -> Iterator[Row]:
    for model in options.eager_models:
        pairs = in_processes(partial(_first_step, model, options.cores[-1]), options)
        for state in ("empty", "filled"):
            yield row(f"first eager step of {model}, {state} cache", "s", [(pair[NOW][state], pair[BEFORE][state]) for pair in pairs], strict=True)


def _first_step(model: str, core: int, root: Path, name: str) -> dict[str, float]:
    """Measure two processes, one after the other, which share a new cache."""
    seconds = {}
    with tempfile.TemporaryDirectory() as cache:
        for state in ("empty", "filled"):
            side = model_sides.ours(name, model, "eager", core, root)
            side.environment["JOBFLOW_CACHE"] = cache
            with running([side]):
                seconds[state] = float(side.ask(do="facts")["first_step_s"])
    return seconds


def in_processes(measure: Callable[[Path, str], dict[str, float]], options: argparse.Namespace) -> list[dict[str, dict[str, float]]]:
    """Return the measurements by side for each round; the sides alternately start a round."""
    roots = [(NOW, HERE.parent), (BEFORE, options.other)]
    return [{name: measure(root, name) for name, root in (roots if turn % 2 else roots[::-1])} for turn in range(options.rounds)]


PARTS: dict[str, Callable[[argparse.Namespace], Iterator[Row]]] = {
    "step": step,
    "eager": at_once,
    "reduce": reduce,
    "compile": compiling,
    "models": model_steps,
    "first": first_uses,
    "cold": first_steps,
}


# -------------------------------------------------------------------- the run


def checkout(text: str) -> Path:
    """Return the path of a checkout; raise an error if its processes would import another jobflow."""
    root = Path(text).resolve()
    question = "import jobflow; print(jobflow.__file__)"
    done = subprocess.run([sys.executable, "-P", "-c", question], env=os.environ | environment(root), capture_output=True, text=True, check=False)
    if not done.stdout.strip().startswith(f"{root}{os.sep}"):
        raise argparse.ArgumentTypeError(f"{root} is no checkout of jobflow: there `import jobflow` finds {done.stdout.strip() or 'nothing'}")
    return root


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("other", type=checkout, metavar="PATH", help="another checkout")
    parser.add_argument("--only", nargs="+", choices=tuple(PARTS), default=list(PARTS))
    parser.add_argument("--models", nargs="+", choices=models.MODELS, default=list(models.MODELS))
    parser.add_argument(
        "--eager-models", nargs="+", choices=tuple(ROWS), default=list(ROWS), metavar="MODEL", help=f"of eager steps: {', '.join(ROWS)}"
    )
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--cores", type=int, nargs="+", help="two; default: the last ones")
    parser.add_argument("--cpu", action="store_true", help="compare processor time in the part models, on a machine that others use")
    parser.add_argument("--dry", action="store_true", help="append nothing to the results")
    options = parser.parse_args()
    options.cores = own_cores(options.cores, RANKS)
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)  # else each process would compile the package anew
    print(f"{'':46}{NOW:>12}{BEFORE:>12}{'ratio':>14}{'95 %':>18}")
    rows: list[Row] = []
    for part in options.only:
        start = len(rows)
        for result_row in PARTS[part](options):
            print(result_row, flush=True)
            rows.append(result_row)
        times = [median(each.ratios) for each in rows[start:] if each.unit in ("s", "ms")]
        print(f"  {part}: geometric mean of the ratios of {len(times)} times {model_sides.geometric_mean(times):.3f}")
    worse = [result_row.name for result_row in rows if not result_row.good]
    print(f"{len(worse)} of {len(rows)} worse{': ' + '; '.join(worse) if worse else ''}")
    if not options.dry:
        table = {
            result_row.name: {"now": result_row.now, "before": result_row.before, "ratio": median(result_row.ratios), "interval": result_row.interval}
            for result_row in rows
        }
        line = {"when": time.strftime("%Y-%m-%dT%H:%M:%S"), "machine": machine(), "beside": {"rounds": options.rounds, "rows": table}}
        with RESULTS.open("a", encoding="utf-8") as file:
            file.write(json.dumps(line) + "\n")
    return int(bool(worse))


if __name__ == "__main__":
    sys.exit(main())
