"""Records of the programs of `halfway`: the checkpoint of each, and its later losses.

A loaded checkpoint must have the saved tensors bit by bit, and the losses of the following steps.
"""

from __future__ import annotations

import hashlib
import json
import sys
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from halfway import BEFORE, JOBS, RUNS, TENSORS, Program

import jobflow as flow

AFTER = 3
#: written by ranks that are threads; those of several ranks by processes too
BY_THREADS = {**JOBS, **TENSORS, **RUNS}
BY_PROCESSES = {f"{name}, processes": way for name, way in {**JOBS, **TENSORS}.items() if way.ranks == 2}
WAYS = {**BY_THREADS, **BY_PROCESSES}


#: names of state that older checkpoints lack: schedules of graphs, and later options of optimizers and schedules
ADDED = ("System-Train-LearningRate", "/param_groups/", "/schedule/")
#: current names of values of optimizers
RENAMED = {"m": "exp_avg", "v": "exp_avg_sq", "max_v": "max_exp_avg_sq", "momentum_buf": "momentum_buffer"}


@dataclass
class CheckpointRecord:
    """The record of a checkpoint: type, shape and hash of its tensors, and the losses of the following steps."""

    tensors: dict[str, str]
    losses: list[str]

    def check(self, program: Program, path: Path, close: float) -> None:
        """Load the checkpoint and resume."""
        program.load(path)
        result = described(program.tensors())
        expected = {renamed(name): value for name, value in self.tensors.items()}
        expected = {name: value for name, value in expected.items() if name in result or not name.endswith("/step")}  # states of SGD have no steps
        result = {name: value for name, value in result.items() if name in expected or not any(part in name for part in ADDED)}
        assert result == expected, sorted(result.items() ^ expected.items())
        losses = [program.step(number) for number in range(BEFORE + 1, BEFORE + AFTER + 1)]
        np.testing.assert_allclose(losses, [float.fromhex(loss) for loss in self.losses], rtol=close)


def renamed(name: str) -> str:
    """Return the current name of an entry of the state of a program."""
    parent, slash, last = name.rpartition("/")
    return f"{parent}{slash}{RENAMED.get(last, last)}" if "/state/" in name else name


def described(tensors: Mapping[str, Any]) -> dict[str, str]:
    result = {}
    for name, value in sorted(tensors.items()):
        array = np.asarray(value)
        result[name] = f"{array.dtype}{list(array.shape)} {hashlib.sha256(array.tobytes()).hexdigest()[:16]}"
    return result


def write(program: Program, path: Path) -> CheckpointRecord:
    """Train, save, and continue without a break."""
    for number in range(1, BEFORE + 1):
        program.step(number)
    program.save(path)
    tensors = described(program.tensors())
    return CheckpointRecord(tensors, [program.step(number).hex() for number in range(BEFORE + 1, BEFORE + AFTER + 1)])


def path_in(folder: Path, name: str) -> Path:
    return folder / name.replace(", ", "-").replace(" ", "_")


def facts(folder: Path) -> dict[str, CheckpointRecord]:
    return {name: CheckpointRecord(**known) for name, known in json.loads((folder / "facts.json").read_text()).items()}


def processes(what: str, folder: Path) -> None:
    """Run one of two processes: write its checkpoints, or check that it resumes from them and from those of two threads."""
    flow.env.client("multi")
    if what == "write":
        result = {name: asdict(write(way.begin(2), path_in(folder, name))) for name, way in BY_PROCESSES.items()}
        if flow.env.get_rank() == 0:
            (folder / "facts.json").write_text(json.dumps(result))
    else:
        known = facts(folder)
        for name in (name for name, way in WAYS.items() if way.ranks == 2 and name not in RUNS):
            known[name].check(WAYS[name].begin(2), path_in(folder, name), WAYS[name].close)
    print("done", flush=True)


if __name__ == "__main__":
    processes(sys.argv[1], Path(sys.argv[2]))
