"""CPU time of a program's first step by stage; each figure is the least of several processes.

    python benchmarks/first_step.py                                    # every program in every tier, and with an empty cache of loops
    python benchmarks/first_step.py --programs gpt --tiers llvm --rounds 9
    python benchmarks/first_step.py --other ../before                  # beside another checkout, in turn

A stage is a function of the compiler or of the runtime; what it calls of the other stages is counted there.  "the rest" is what no stage is
entered for: the call around the plan, and messages between the client and its ranks.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
#: module, and function or method in it, by stage; what a checkout lacks is left out
STAGES = {
    "trace": [("engine.job", "Job.trace")],
    "differentiate": [("compiler.compile", "differentiate"), ("compiler.compile", "prepared"), ("compiler.compile", "unroll")],
    "simplify": [("compiler.compile", name) for name in ("guard", "simplify", "update_rows", "pipeline", "recompute")],
    "layouts": [("compiler.compile", "shard")],
    "boxing": [("compiler.compile", "box"), ("compiler.compile", "bucket")],
    "to the ranks": [("engine.session", "physical_to_wire"), ("program.commands", "physical_from_wire")],
    "variables": [("runtime.variable_buffers", "State.declare"), ("runtime.variable_buffers", "State.write"), ("engine.session", "Session.write")],
    "lower": [("compiler.compile", name) for name in ("divide_updates", "view_shared_arguments", "lower", "write", "zero_copy_feeds")],
    "fuse": [("compiler.compile", "fuse")],
    "order": [("compiler.compile", "order"), ("compiler.compile", "overlap")],
    "regions": [("compiler.rank.regions", "form_regions")],
    "memory": [("compiler.compile", "plan_memory"), ("program.program", "compare_plans"), ("program.program", "summary")],
    "bind": [("runtime.executor", "Executor.__init__")],
    "LLVM": [("kernels.llvm.loops", "compiler"), ("kernels.llvm.machine_code", "Compiler.function")],
    "run": [("runtime.executor", "Executor.run")],
}
REST, IMPORT = "the rest", "import jobflow"


def mlp() -> Any:
    import ours

    return ours.job("mlp", False), "mlp"


def lenet() -> Any:
    import ours

    return ours.job("lenet", False), "lenet"


def gpt_of(blocks: int) -> Callable[[], Any]:
    def begin() -> Any:
        import models
        import ours

        models.GPT_BLOCKS = blocks
        return ours.job("gpt", False), "gpt"

    return begin


PROGRAMS: dict[str, Callable[[], Any]] = {"mlp": mlp, "lenet": lenet, "gpt2": gpt_of(2), "gpt": gpt_of(4), "gpt12": gpt_of(12)}


class Clock:
    """CPU time of this process by stage, of which one is running at a time."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = dict.fromkeys((*STAGES, REST), 0.0)
        self.running = [REST]
        self.since = time.process_time()

    def switch(self) -> None:
        now = time.process_time()
        self.seconds[self.running[-1]] += now - self.since
        self.since = now

    def timed(self, stage: str, function: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **named: Any) -> Any:
            self.switch()
            self.running.append(stage)
            try:
                return function(*args, **named)
            finally:
                self.switch()
                self.running.pop()

        return call

    def wrap(self) -> None:
        for stage, places in STAGES.items():
            for module, path in places:
                *owner, name = path.split(".")
                try:
                    target = import_module(f"jobflow.{module}")
                    for part in owner:
                        target = getattr(target, part)
                    setattr(target, name, self.timed(stage, getattr(target, name)))
                except (ImportError, AttributeError):
                    continue


def first_step(program: str, tier: str) -> dict[str, float]:
    """Run the first step of a program in this process, and return the times of the stages."""
    start = time.process_time()
    import jobflow as flow

    imported = time.process_time() - start
    import models

    flow.config.kernels(tier)
    declared, model = PROGRAMS[program]()
    arguments = models.batch(model)
    clock = Clock()
    clock.wrap()
    clock.since = time.process_time()
    declared(*arguments)
    clock.switch()
    return {IMPORT: imported, **clock.seconds}


def in_a_process(root: Path, program: str, tier: str, cache: Path) -> dict[str, float]:
    threads = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS"), "1")
    path = os.pathsep.join([str(root), str(HERE)])
    command = [sys.executable, "-P", __file__, "--one", program, tier]
    environment = os.environ | threads | {"PYTHONPATH": path, "JOBFLOW_CACHE": str(cache)}
    environment.pop("PYTHONDONTWRITEBYTECODE", None)  # else the package would be compiled in each process
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    return json.loads(done.stdout.splitlines()[-1])


def measured(program: str, tier: str, roots: list[Path], rounds: int) -> list[tuple[str, dict[str, float]]]:
    """By column: with a warm cache in each checkout, and with an empty one in this one."""
    columns: list[tuple[str, list[dict[str, float]]]] = [(f"{program} {tier}{'' if root == roots[0] else ' other'}", []) for root in roots]
    cold: list[dict[str, float]] = []
    with tempfile.TemporaryDirectory() as folder:
        for turn in range(rounds + 1):
            for at, (root, (_, warm)) in enumerate(zip(roots, columns, strict=True)):
                stage_seconds = in_a_process(root, program, tier, Path(folder) / str(at))
                (warm if turn else cold).append(stage_seconds)
            if tier == "llvm" and turn < min(rounds, 3):
                with tempfile.TemporaryDirectory() as empty:
                    cold.append(in_a_process(roots[0], program, tier, Path(empty)))
    if tier == "llvm":
        columns.append((f"{program} {tier} cold", cold[:1] + cold[len(roots) :]))
    return [(name, {stage: min(row[stage] for row in warm) for stage in warm[0]} | {"whole": _whole(warm)}) for name, warm in columns]


def _whole(rows: list[dict[str, float]]) -> float:
    return min(sum(seconds for stage, seconds in row.items() if stage != IMPORT) for row in rows)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--programs", nargs="+", choices=PROGRAMS, default=["mlp", "lenet", "gpt2", "gpt", "gpt12"])
    parser.add_argument("--tiers", nargs="+", default=["numpy", "llvm"])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--other", type=Path, help="another checkout")
    parser.add_argument("--one", nargs=2, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.one:
        print(json.dumps(first_step(*options.one)))
        return
    roots = [HERE.parent, *([options.other.resolve()] if options.other else [])]
    columns = [column for program in options.programs for tier in options.tiers for column in measured(program, tier, roots, options.rounds)]
    print("milliseconds of CPU time\n" + " " * 16 + "".join(f"{name:>18}" for name, _ in columns))
    for stage in columns[0][1]:
        print(f"{stage:16}" + "".join(f"{1e3 * seconds[stage]:18.1f}" for _, seconds in columns))


if __name__ == "__main__":
    main()
