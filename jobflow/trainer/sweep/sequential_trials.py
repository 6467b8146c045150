"""The trials of a sweep in sequence, each as a normal run in this process, on all ranks.

A repeated sweep skips complete trials and continues unfinished ones.  A trial that fails is reported with its cause, and the next one starts.
Under mpiexec this applies to errors that all ranks raise alike.  Any other error ends all ranks, because other ranks may wait for the failed one.
"""

from __future__ import annotations

import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import field, replace
from pathlib import Path
from typing import TypeVar

from jobflow.core.dataclass import dataclass
from jobflow.core.errors import ConfigError, JobflowError, counted, is_users
from jobflow.core.notices import notice
from jobflow.runtime.interrupts import is_interrupt
from jobflow.runtime.world.launched import launched
from jobflow.storage.remote import is_remote
from jobflow.trainer.callbacks import Callback
from jobflow.trainer.config import Loaded
from jobflow.trainer.config.sweep_rules import MOST_TRIALS
from jobflow.trainer.evaluate import rows_of
from jobflow.trainer.folders import make_directory
from jobflow.trainer.jobs import prepared, session_of
from jobflow.trainer.lock import lock_of
from jobflow.trainer.loop import train
from jobflow.trainer.resume import together
from jobflow.trainer.run_file import RunRecord
from jobflow.trainer.sweep.parallel_trials import Processes
from jobflow.trainer.sweep.tpe import suggested
from jobflow.trainer.sweep.trial_results import Result, SweepResult, earlier_trials, is_complete, record_of, result_of
from jobflow.trainer.sweep.trials import Trial, Trials
from jobflow.trainer.units import metric_text

T = TypeVar("T")
#: attempts to find values that no trial had
TRIES = 20


def run_sweep(
    file: str | Path,
    settings: Sequence[str] = (),
    *,
    resume: str | None = None,
    jobs: int | None = None,
    time_limit: float | None = None,
    callbacks: Callable[[Loaded], Sequence[Callback]] = lambda loaded: (),
    say: Callable[[str], None] = print,
) -> SweepResult:
    """Run all trials of the section `sweep` of a configuration file, and return their results.

    `jobs` replaces sweep.jobs.  `callbacks` returns callbacks of a trial in addition to those of its configuration; with several jobs, each
    trial is the command `jobflow train` without them.  `say` is called with a line per start and end of a trial.
    Raises: ConfigErrors with the problems of all trials before the first one; ConfigError if another sweep uses the folder.
    """
    trials = Trials(str(file), settings)
    planned = trials.planned()
    if is_remote(trials.base.config.output):
        source = trials.base.origin("output")
        raise ConfigError(f"{source}: output: {trials.base.config.output} is remote; pass a local directory (checkpoint.directory may be remote)")
    if resume not in (None, "auto", "never"):
        raise ConfigError(f"--resume {resume}: a sweep resumes each trial from its own checkpoints; pass auto or never")
    check_metric(trials)
    jobs = trials.sweep.jobs if jobs is None else jobs
    if jobs > 1 and launched() is not None:
        if _is_first():
            notice(f"sweep.jobs {jobs}: the trials run one after another, each on all ranks")
        jobs = 1
    with _locked(trials):
        sweep = Running(trials, resume or trials.base.config.checkpoint.resume, time_limit, callbacks, say if _is_first() else lambda text: None)
        sweep.plan(planned)
        return sweep.one_by_one() if jobs == 1 else sweep.several(jobs)


def check_metric(trials: Trials) -> None:
    """Raise ConfigError if the model of the file does not return the metric of the sweep."""
    if trials.sweep.metric is not None and not trials.sweep.metric.endswith("/loss"):
        with prepared(trials.base, only=("train",)) as jobs:
            job = jobs.train(rows_of(jobs.samples["train"], trials.base.config.data.batch_size))
            jobs.session.compiled(job, job.declared_shapes(jobs.session))
            jobs.check_metrics()


def _is_first() -> bool:
    started = launched()
    return started is None or started.rank == 0


@contextmanager
def _locked(trials: Trials) -> Iterator[None]:
    """Create the folder of the sweep, and lock it against other sweeps."""
    lock = lock_of(trials.folder)

    def take() -> None:
        make_directory("output", trials.base.origin("output"), trials.folder)
        lock.take()

    on_first_rank(trials, take)
    try:
        yield
    finally:
        if _is_first():
            lock.release()


def on_first_rank(trials: Trials, ask: Callable[[], T]) -> T:
    """Call `ask` on rank 0, and return its result or raise its error on all ranks."""
    if launched() is None:
        return ask()
    with session_of(trials.base.config) as session:
        return together(session, ask)


@dataclass
class Running:
    """A sweep in progress."""

    trials: Trials
    resume: str
    time_limit: float | None
    callbacks: Callable[[Loaded], Sequence[Callback]]
    say: Callable[[str], None]
    results: list[Result] = field(default_factory=list)
    #: trials that have not started, in order
    waiting: list[Trial] = field(default_factory=list)
    started: list[Trial] = field(default_factory=list)
    stopped: str = "end"

    # ---------------------------------------------------------------- order

    def plan(self, planned: Sequence[Trial]) -> None:
        """Set the order of the trials: failed ones of an earlier sweep last, and complete ones skipped."""
        earlier = on_first_rank(self.trials, lambda: earlier_trials(self.trials.folder))
        if self.trials.sweep.method == "tpe":
            same = [values for values, _ in earlier if values.keys() == self.trials.sweep.values.keys()]
            planned = [self.trials.trial(i, values) for i, values in enumerate(same[: self.trials.sweep.trials])]
        failed = (
            {self.trials.trial(0, values).name for values, end in earlier if end in ("failed", "nan")} if self.trials.sweep.method != "tpe" else set()
        )
        records = on_first_rank(self.trials, lambda: [record_of(trial) for trial in planned])
        for trial, record in zip(planned, records, strict=True):
            if record is not None and is_complete(trial, record) and self.resume != "never":
                self.results.append(self._result(trial, record))
            else:
                self.waiting.append(trial)
        self.waiting.sort(key=lambda trial: trial.name in failed)
        if self.results:
            self.say(f"{counted(len(self.results), 'complete trial')} of {self.count} stay unchanged")

    @property
    def count(self) -> int:
        """The number of trials of the sweep."""
        known = len(self.results) + len(self.waiting) + len(self.started)
        return max(known, self.trials.sweep.trials or 0) if self.trials.sweep.method == "tpe" else known

    def next(self) -> Trial | None:
        """Return the next trial to start, or None if no trial remains."""
        trial = self.waiting.pop(0) if self.waiting else self._suggested()
        if trial is not None:
            self.started.append(trial)
            self._write()
            self.say(f"trial {len(self.results) + len(self.started)} of {self.count}: {trial.name}")
        return trial

    def _suggested(self) -> Trial | None:
        sweep = self.trials.sweep
        known = [*(one.trial for one in self.results), *self.started]
        number = max((trial.number for trial in known), default=-1) + 1
        if sweep.method != "tpe" or number >= (sweep.trials or 0):
            return None
        names = {trial.name for trial in known}
        complete = [(one.trial.values, one.value) for one in sorted(self.results, key=lambda one: one.trial.number) if one.is_complete]
        finished = [(values, value) for values, value in complete if value is not None]
        for attempt in range(TRIES):
            seed = number + attempt * MOST_TRIALS
            values = on_first_rank(self.trials, lambda seed=seed: suggested(sweep.values, sweep.mode, sweep.seed, seed, finished))  # type: ignore[misc]
            trial = self.trials.trial(number, values)
            if trial.name not in names:
                return trial
        notice(f"the sweep ends after {counted(number, 'trial')}: {TRIES} suggestions repeat the values of earlier trials")
        return None

    # ---------------------------------------------------------------- running

    def one_by_one(self) -> SweepResult:
        """Run all trials in sequence in this process."""
        while self.stopped == "end" and (trial := self.next()) is not None:
            self.ended(trial, self._here(trial))
        return self.over()

    def several(self, jobs: int) -> SweepResult:
        """Run up to `jobs` trials at the same time, each in a process."""
        processes = Processes(self.trials.file, jobs, self.resume, self.time_limit, self.say)
        self.stopped = processes.run(self.next, self.ended)
        return self.over()

    def _here(self, trial: Trial) -> RunRecord:
        try:
            run = train(trial.loaded, resume=self.resume, callbacks=self.callbacks(trial.loaded), time_limit=self.time_limit)
        except Exception as error:
            if is_interrupt(error) or (launched() is not None and not isinstance(error, ConfigError)):
                raise
            return self._failure(trial, cause_of(error))
        record = on_first_rank(self.trials, lambda: record_of(trial)) or RunRecord(trial.loaded.config.name, trial.loaded.plain)
        return replace(record, stopped=run.stopped or "", message=run.message, step=run.step, metrics=dict(run.metrics))

    def _failure(self, trial: Trial, cause: str) -> RunRecord:
        record = on_first_rank(self.trials, lambda: record_of(trial)) or RunRecord(trial.loaded.config.name, trial.loaded.plain)
        return replace(record, stopped="failed", message=cause)

    # ---------------------------------------------------------------- results

    def ended(self, trial: Trial, record: RunRecord) -> None:
        """Record the end of a trial."""
        result = self._result(trial, record)
        self.started.remove(trial)
        self.results.append(result)
        if result.is_interrupted:
            self.stopped = result.stopped
        self._write()
        what = result.cause if result.cause else f"{self.trials.metric} {metric_text(self.trials.metric, result.value or 0.0)}"
        state = "interrupted" if result.is_interrupted else "failed" if not result.is_complete else "done"
        self.say(f"trial {trial.name} {state}{f': {what}' if not result.is_interrupted else ''}")

    def _result(self, trial: Trial, record: RunRecord) -> Result:
        return result_of(trial, record, self.trials.metric, self.trials.sweep.mode)

    def over(self) -> SweepResult:
        """Return the results of the sweep."""
        self._write()
        return self._summary()

    def _summary(self) -> SweepResult:
        waiting = [*self.started, *self.waiting]
        return SweepResult(self.trials.metric, self.trials.sweep.mode, self.trials.folder, list(self.results), waiting, self.stopped)

    def _write(self) -> None:
        if _is_first():
            self._summary().write()


def cause_of(error: BaseException) -> str:
    """Describe an error of a trial, with the user's line that raised it."""
    if isinstance(error, JobflowError):
        return str(error)
    frames = [frame for frame in traceback.walk_tb(error.__traceback__) if is_users(frame[0])]
    at = f"{frames[-1][0].f_code.co_filename}:{frames[-1][1]}: " if frames else ""
    return f"{at}{type(error).__name__}: {error}"
