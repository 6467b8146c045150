"""Runs that are killed at any step and resume on another number of ranks, with the same samples and losses as an undisturbed run.

A run has 30 steps over 130 samples in batches of 16, so epochs end within it, with a batch of 2.  It has dropout, momentum, a schedule,
evaluations, and an asynchronous checkpoint every third step.
"""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
from crashing import MPI_LIMIT, ROOT, in_child
from faults import DEATHS, FAILURES, NEVER, Fault

from jobflow.distributed import mpiexec
from jobflow.trainer.callbacks import Callback
from jobflow.trainer.config import load
from jobflow.trainer.jobs import Jobs
from jobflow.trainer.loop import train
from jobflow.trainer.training_run import Outcome, StepReport, TrainingRun

STEPS = 30
SAMPLES = 130
#: steps that are lost at most: what was done since the last checkpoint, and while that was being written, or in place of one that failed
LATE = 9
#: what the losses of two runs may differ by, of 1 or of the loss itself if that is more
CLOSE = 1e-6
CONFIG = """
seed: 11
model:
  loss: softmax_cross_entropy
  layers:
    - dense: {units: 16, activation: tanh}
    - dropout: {rate: 0.2}
    - dense: {units: 3}
data:
  train: {reader: python, function: "resuming:samples"}
  validation: {reader: python, function: "resuming:samples"}
  batch_size: 16
optimizer: {name: momentum, lr: 0.1, schedule: {name: cosine}, warmup_steps: 5}
training: {steps: 30}
evaluation: {every_steps: 10}
checkpoint: {every_steps: 3, keep_last: 2}
logging: {progress: none, jsonl: false, csv: false, report: false}
"""
#: changes of files by rank 0 in such a run, or fewer
CHANGES = 240
#: ways to spread the work over so many devices
SPREADS: dict[int, tuple[str, ...]] = {
    1: ("devices=1",),
    2: ("devices=2", "devices=2 tensor=2", "devices=2 zero=1"),
    4: ("devices=4", "devices=4 tensor=2", "devices=4 zero=3"),
}


def samples() -> dict[str, Any]:
    """Return three clusters of points; the first feature of a sample is its number, to identify it."""
    source = np.random.default_rng(0)
    labels = source.integers(0, 3, SAMPLES).astype(np.int32)
    points = (source.normal(size=(SAMPLES, 8)) + labels[:, None]).astype(np.float32)
    points[:, 0] = np.arange(SAMPLES) / SAMPLES
    return {"points": points, "labels": labels}


@dataclass(frozen=True)
class Strike:
    """A fault of a run: a kill `delay` seconds after step `at`, or a fault at change `change` of the files of `rank`."""

    at: int = 0
    delay: float = 0.0
    change: int = NEVER
    rank: int = 0
    how: str = ""

    def __str__(self) -> str:
        return f"{self.how} at change {self.change} of rank {self.rank}" if self.how else f"killed {self.delay * 1000:.0f} ms after step {self.at}"


@dataclass(frozen=True)
class Trial:
    """A run with a fault, and the numbers of ranks of both of its halves."""

    strike: Strike
    first: str
    then: str
    mpi: bool = False
    #: a bit of the newest checkpoint is flipped in between, so that an older one must do
    spoiled: bool = False

    def __str__(self) -> str:
        more = (", processes" if self.mpi else "") + (", its newest checkpoint damaged" if self.spoiled else "")
        return f"[{self.strike} on {self.first}, then on {self.then}{more}]"


class Diary(Callback):
    """A callback that records step, loss and sample numbers of each step; it can end the process after one of them."""

    observes = True

    def __init__(self, path: Path, strike: Strike) -> None:
        self.path, self.strike = path, strike
        self.sample_ids: list[int] = []
        self._timer: threading.Timer | None = None

    def seen(self, batch: Any) -> None:
        self.sample_ids = np.rint(np.asarray(batch["points"][:])[:, 0] * SAMPLES).astype(int).tolist()

    def on_step(self, run: TrainingRun, report: StepReport) -> None:
        with open(self.path, "a") as file:
            file.write(json.dumps({"step": report.step, "loss": report.loss, "samples": self.sample_ids}) + "\n")
        if report.step == self.strike.at and not self.strike.delay:
            os.kill(os.getpid(), signal.SIGKILL)
        if report.step == self.strike.at:
            self._timer = threading.Timer(self.strike.delay, os.kill, (os.getpid(), signal.SIGKILL))
            self._timer.daemon = True
            self._timer.start()

    def on_end(self, run: TrainingRun, outcome: Outcome) -> None:
        if self._timer is not None:
            self._timer.cancel()


def work(folder: Path, spread: str, diary: Path, strike: Strike) -> None:
    """Train from the newest checkpoint, in one process of the run."""
    settings = [f"strategy.{word}" for word in spread.split()]
    diary_callback = Diary(diary, strike)
    if strike.how:
        Fault(strike.rank, strike.change, strike.how, strike.change).install()
    call = Jobs.call

    def recorded(self: Jobs, job: Any, batch: Any) -> Any:
        if job.name == "train":
            diary_callback.seen(batch)
        return call(self, job, batch)

    with mock.patch.object(Jobs, "call", recorded):
        train(load(folder / "run.yaml", [f"output={folder / 'out'}", *settings]), callbacks=[diary_callback])


def launch(folder: Path, spread: str, diary: Path, strike: Strike, *, mpi: bool = False) -> int:
    """Run in a new process, or in several; return the exit code."""
    (folder / "run.yaml").write_text(CONFIG)
    if not mpi:
        return in_child(lambda: work(folder, spread, diary, strike))
    ranks = spread.split()[0].partition("=")[2]
    words = [mpiexec.find() or "mpiexec", "-n", ranks, sys.executable, __file__]
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
    arguments = json.dumps([str(folder), spread, str(diary), asdict(strike)])
    job = subprocess.Popen([*words, arguments], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, env=environment, start_new_session=True)
    try:
        out, _ = job.communicate(timeout=MPI_LIMIT)
    except subprocess.TimeoutExpired:
        os.killpg(job.pid, 9)
        out, _ = job.communicate()
    if job.returncode and strike == Strike():
        sys.stderr.write(out.decode(errors="replace"))
    return job.returncode


def entries(diary: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in diary.read_text().splitlines()] if diary.exists() else []


def whole(folder: Path, spread: str = "devices=1") -> list[dict[str, Any]]:
    """Return the records of an undisturbed run."""
    folder.mkdir(parents=True)
    diary = folder / "diary"
    code = launch(folder, spread, diary, Strike())
    result = entries(diary)
    if code or [entry["step"] for entry in result] != list(range(1, STEPS + 1)):
        raise RuntimeError(f"the run without a kill ended with {code} after {len(result)} steps")
    return result


def attempt(trial: Trial, folder: Path, expected: list[dict[str, Any]]) -> tuple[bool, list[str], float]:
    """Return True if the run was killed, its problems, and the largest difference of a loss; `folder` is created and removed."""
    folder.mkdir(parents=True)
    try:
        code = launch(folder, trial.first, folder / "first", trial.strike, mpi=trial.mpi)
        if trial.spoiled:
            spoil(folder / "out" / "checkpoints", trial.strike.at)
        killed = code != 0 or trial.strike.how in FAILURES
        if launch(folder, trial.then, folder / "second", Strike(), mpi=trial.mpi):
            return killed, [f"{trial} other: the second run fails"], 0.0
        first, second = entries(folder / "first"), entries(folder / "second")
        problems, largest = _compared(expected, first, second, LATE + (3 if trial.spoiled else 0))
        left = [entry.name for entry in (folder / "out" / "checkpoints").iterdir() if not entry.name.startswith("step-")]
        if left:
            problems.append(f"debris: {left} are left in the end")
        return killed, [f"{trial} {problem}" for problem in problems], largest
    finally:
        shutil.rmtree(folder)


def spoil(checkpoints: Path, seed: int) -> None:
    """Flip a bit of the newest checkpoint, unless no other one is left to resume from."""
    source = random.Random(seed)
    steps = sorted(checkpoints.glob("step-*"))
    if len(steps) > 1:
        file = source.choice(sorted(path for path in steps[-1].iterdir() if path.stat().st_size))
        content = bytearray(file.read_bytes())
        content[source.randrange(len(content))] ^= 1 << source.randrange(8)
        file.write_bytes(content)


def _compared(expected: list[dict[str, Any]], first: list[dict[str, Any]], second: list[dict[str, Any]], late: int) -> tuple[list[str], float]:
    """Return the differences between the halves of a run and an undisturbed run."""
    problems, largest = [], 0.0
    begun = second[0]["step"] if second else STEPS + 1
    reached = first[-1]["step"] if first else 0
    if [entry["step"] for entry in second] != list(range(begun, STEPS + 1)) or begun > reached + 1:
        problems.append(f"lost: the second run does steps {[entry['step'] for entry in second]} after {reached}")
    if begun <= reached - late:
        problems.append(f"lost: the second run begins at step {begun}, though {reached} were done and every third was saved")
    for entry in (*first, *second):
        whole_entry = expected[entry["step"] - 1]
        if entry["samples"] != whole_entry["samples"]:
            problems.append(f"mixed: step {entry['step']} has the samples {entry['samples']}, not {whole_entry['samples']}")
        far = abs(entry["loss"] - whole_entry["loss"]) / max(1.0, abs(whole_entry["loss"]))
        largest = max(largest, far)
        if far > CLOSE:
            problems.append(f"mixed: the loss of step {entry['step']} is {entry['loss']!r}, not {whole_entry['loss']!r}")
    return problems, largest


def trials(seed: int, steps: int = STEPS, faults: int = STEPS, mpi: int = 0) -> Iterator[Trial]:
    """Yield kills after a sample of the steps, file faults while training, and kills of processes; each resumes on another number of ranks."""
    source = random.Random(seed)
    places = list(range(1, STEPS + 1))
    source.shuffle(places)
    strikes = [Strike(at, source.choice((0.0, source.uniform(0, 0.02)))) for at in places[:steps]]
    for number in range(faults):
        how = source.choice(DEATHS) if number % 2 else source.choice(FAILURES)
        strikes.append(Strike(0, 0.0, source.randrange(CHANGES), 0, how))
    strikes += [Strike(source.choice(places)) for _ in range(mpi)]
    for number, strike in enumerate(strikes):
        before, after = source.sample(sorted(SPREADS), 2)
        processes, spoiled = number >= steps + faults, number < steps and source.random() < 0.3
        yield Trial(strike, source.choice(SPREADS[before]), source.choice(SPREADS[after]), processes, spoiled)


if __name__ == "__main__":
    folder_, spread_, diary_, strike_ = json.loads(sys.argv[1])
    work(Path(folder_), spread_, Path(diary_), Strike(**strike_))
