"""The training loop: steps, evaluations and checkpoints until the last step or a request to stop.

After each step the loop calls the callbacks. The ranks exchange requests to stop periodically, not after every step. A due evaluation follows,
and early stopping uses its metric. Then the loop saves the complete state if a checkpoint is due or the run ends. A resumed run continues with
the same samples, random numbers, learning rates and decisions as an uninterrupted run. The schedule depends on steps and epochs alone.
"""

from __future__ import annotations

import math
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import field, replace
from functools import partial
from pathlib import Path
from typing import NamedTuple

import numpy as np

from jobflow.core.dataclass import dataclass
from jobflow.core.errors import CheckpointError, ConfigError, at_line, counted
from jobflow.core.notices import notice
from jobflow.data.ahead import Reading
from jobflow.data.batch import Batch, Position
from jobflow.data.batches import Batches
from jobflow.data.samples import Samples
from jobflow.engine.compiled import Compiled
from jobflow.storage import drafts, sessions
from jobflow.storage.remote import AnyPath, RemotePath, is_remote
from jobflow.trainer.chrome_trace import Tracing
from jobflow.trainer.config import Loaded, load
from jobflow.trainer.config.schema import Checkpoint, Evaluation
from jobflow.trainer.evaluate import batches_of, measure, rows_of
from jobflow.trainer.fingerprint import Fingerprint
from jobflow.trainer.finite import first_not_finite
from jobflow.trainer.freezing import frozen_text
from jobflow.trainer.jobs import COUNTER, HALTED, TRAIN, Jobs, Means, prepared
from jobflow.trainer.lock import Lock, lock_of
from jobflow.trainer.network import line_of
from jobflow.trainer.optimizing import schedule_from, slow_start
from jobflow.trainer.resume import Progress, check_alike, check_configurations, chosen, follow, read, series_of, set_aside_behind, together
from jobflow.trainer.start_from import start
from jobflow.trainer.stopping import Agreement, Clock, Early, Signals
from jobflow.trainer.training_batches import batches_of_training
from jobflow.trainer.units import metric_text, metrics_text
from jobflow.trainer.watching import Outcome, RunInfo, StepReport, Stopped, Watcher


def train(
    loaded: Loaded | str | Path,
    *,
    resume: str | None = None,
    callbacks: Sequence[Watcher] = (),
    time_limit: float | None = None,
    tracing: Tracing | None = None,
) -> Outcome:
    """Train the model of a configuration or of a configuration file, or resume its training.

    `resume` replaces checkpoint.resume: "auto", "never" or the path of a checkpoint.  `time_limit` is in seconds from the start of this process; an
    earlier end of a Slurm or PBS allocation takes precedence.  Callbacks run on rank 0.
    Raises: ConfigErrors before the start; ConfigError if the run cannot resume from its checkpoint; errors of the training itself.
    """
    loaded = load(loaded) if isinstance(loaded, str | Path) else loaded
    if loaded.config.sweep is not None:
        source = loaded.origin("sweep")
        raise ConfigError(f"{source}: sweep: train() runs one training; call jobflow.trainer.sweep.run_sweep, or load with the setting sweep=null")
    with at_line(line_of(loaded, "")), Signals() as signals, prepared(loaded, only=("train", "validation")) as jobs:
        return Loop(jobs, callbacks, Clock.of(time_limit), signals, tracing).run(resume or loaded.config.checkpoint.resume)


def make_directory(key: str, origin: object, path: AnyPath) -> None:
    """Create a local directory, and check that the local or remote directory is writable; raise ConfigError if not.

    `key` and `origin` name the configuration value in the message.
    """
    try:
        if isinstance(path, RemotePath):
            drafts.check_writable(path)
            return
        path.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=path):
            pass
    except OSError as error:
        raise ConfigError(f"{origin}: {key}: {path} is not writable: {error.strerror or error}; set a writable directory") from None


def without_failure(change: Callable[[], None], path: AnyPath) -> None:
    """Call `change`, which checks or acquires the lock at `path`; raise ConfigError if the call raises OSError."""
    try:
        change()
    except OSError as error:
        raise ConfigError(f"{path} cannot be read and written: {error.strerror or error}; correct its permissions") from None


def distinct(folders: Sequence[Path]) -> list[Path]:
    """Return the distinct folders that are not inside another folder of the list."""
    once = list(dict.fromkeys(folders))
    return [folder for folder in once if not any(other != folder and folder.is_relative_to(other) for other in once)]


class Before(NamedTuple):
    """The state of a run before a step, and the batch of that step."""

    progress: Progress
    #: number of runs of the train job
    run: int
    batch: Batch


@dataclass
class Loop:
    """The training run of one rank; all ranks take the same decisions."""

    jobs: Jobs
    callbacks: Sequence[Watcher]
    clock: Clock
    signals: Signals
    tracing: Tracing | None = None
    progress: Progress = field(default_factory=Progress)
    #: None during training
    stopped: Stopped | None = None
    message: str = ""

    def __post_init__(self) -> None:
        self.loaded, self.config, self.session = self.jobs.loaded, self.jobs.config, self.jobs.session
        self.series = series_of(self.config)
        self.watchers: Sequence[Watcher] = ()
        stopping = self.config.evaluation.early_stopping
        self.early = None if stopping is None else Early(stopping.metric, stopping.mode, stopping.patience, stopping.min_delta)
        self.rates = schedule_from(self.config.optimizer, self.jobs.steps)
        self.agreement = Agreement(self.session, self.clock, lambda: (self.signals.request, self.signals.announced))
        validation = self.jobs.samples.get("validation")
        self._validation = None if validation is None else batches_of(self.jobs, validation)
        self._saving: tuple[int, sessions.Saving, float] | None = None
        self._saved: AnyPath | None = None
        self._saved_step = -1
        self._steps: tuple[Before, ...] = ()
        self._seconds = 0.0
        self._compiled: Compiled | None = None
        self._program: Fingerprint | None = None
        self._before = ""

    # ---------------------------------------------------------------- the run

    def run(self, resume: str) -> Outcome:
        """Run the whole training, and return its outcome."""
        self._check_alike()
        first = self._writes
        job = self.jobs.train(rows_of(self.jobs.samples["train"], self.config.data.batch_size))
        self._compiled = self.session.compiled(job, job.declared_shapes(self.session))
        self.jobs.check_metrics()
        self.jobs.check_lengths()
        self._program = self.jobs.fingerprint()
        for warning in slow_start(self.loaded, self.jobs.steps):
            self._notice(warning)
        with self._only_one():
            checkpoint = self._resume(resume)
            if checkpoint is None and self.config.start_from is not None:
                self._before = start(self.jobs)
            if self._is_complete:
                return self._complete(checkpoint)
            return self._watched(self._info(checkpoint), first)

    def _watched(self, info: RunInfo, first: bool) -> Outcome:
        """Run the remaining steps; only the rank whose `first` is True calls the callbacks."""
        self.info = info
        self.watchers = tuple(self.callbacks) if first else ()
        try:
            self._tell(lambda watcher: watcher.started(info))
            self._train()
            outcome = self._outcome()
            self._tell(lambda watcher: watcher.finished(info, outcome))
            return outcome
        finally:
            self._tell(lambda watcher: watcher.closed(info))

    @contextmanager
    def _only_one(self) -> Iterator[None]:
        """Lock the output and checkpoint directories against other trainings."""
        if is_remote(self.config.output):
            raise ConfigError(
                f"{self.loaded.origin('output')}: output: {self.config.output} is remote; pass a local directory "
                f"(only checkpoint.directory may be remote)"
            )
        places: dict[str, AnyPath] = {"output": Path(self.config.output), "checkpoint.directory": self.series.directory}
        for key, path in places.items():
            together(self.session, partial(make_directory, key, self.loaded.origin(key), path))
        output, *saved = (path.resolve() for path in places.values() if isinstance(path, Path))
        own: list[AnyPath] = [*distinct([output, *saved]), *(path for path in places.values() if isinstance(path, RemotePath))]
        held: list[Lock] = []
        try:
            for lock in map(lock_of, own):
                together(self.session, partial(without_failure, lock.take, lock.path))
                held.append(lock)
            # a run may save in the output directory of another one, or vice versa
            for folder in {output, *saved, *(path.parent for path in saved)} - set(own):
                other = lock_of(folder)
                together(self.session, partial(without_failure, partial(other.check, time.time()), other.path))
            yield
        finally:
            for lock in held if self._writes else ():
                lock.release()

    @property
    def _is_complete(self) -> bool:
        """True if no work remains; a run that was stopped may lack its last evaluation."""
        over = self._over or (self.early is not None and self.early.is_over)
        return over and self.progress.step > 0 and (self._validation is None or self.progress.evaluated == self.progress.step)

    def _complete(self, checkpoint: AnyPath | None) -> Outcome:
        """Return the outcome of a run that was already complete; its files remain unchanged."""
        step, steps = self.progress.step, self.jobs.steps
        self.stopped = "end" if self._over else "early"
        done = f"step {step:,} of {steps:,}" if step <= steps else f"{step:,} steps, and {steps:,} are configured"
        longer = "training.epochs or training.steps" if self._over else "evaluation.early_stopping.patience"
        self.message = (
            f"{self.config.output} is complete ({'stopped early at ' if not self._over else ''}{done}; {metrics_text(self.progress.metrics)}) and "
            f"stays unchanged; increase {longer} to continue, or start again with --resume never"
        )
        self._saved = checkpoint
        return self._outcome()

    def _train(self) -> None:
        if (self._due(self.config.evaluation) or (self._over and self.progress.step)) and self._evaluate():
            self._saved_step = -1  # an interrupted run saves the omitted evaluation with its checkpoint
        if self.early is not None and self.early.is_over:
            self.stopped = "early"
        if self._over:
            self.stopped = self.stopped or "end"
        if self.stopped:
            self._save()
            return
        with self._batches().start(Position(self.progress.epoch, self.progress.sample)) as reading:
            began = time.perf_counter()
            while not self.stopped:
                began = self._step(reading, began)
        self._settle()
        if self.tracing is not None:
            self.tracing.close()

    def _step(self, reading: Reading[Batch], began: float) -> float:
        """Run one step, and an evaluation and a checkpoint if they are due; return the start time of the next step.

        `began` is the start time of this step.
        """
        step, waited = self.progress.step + 1, reading.waited
        batch = next(reading)
        waited = reading.waited - waited
        if self.tracing is not None:
            self.tracing.before(step)
        self._steps = (*self._steps[-1:], Before(replace(self.progress, metrics=dict(self.progress.metrics)), self.session.runs.get(TRAIN, 0), batch))
        with batch.told(), at_line(line_of(self.loaded, "data.train")):
            outputs = self.jobs.call(self.jobs.train(batch.size), batch.arguments)
        if self.tracing is not None:
            self.tracing.after(step)
        halted = int(outputs.pop(HALTED)[0])
        means = Means()
        means.add(outputs, batch.size, self.jobs.pieces(batch.size))
        values = means.values()
        if halted or not math.isfinite(values["loss"]):
            self._not_finite(self._steps[0 if halted else -1], None if halted else values["loss"])
            return began
        seconds = time.perf_counter() - began
        self._account(batch, values, seconds, waited)
        self._decide()
        evaluates = (self._due(self.config.evaluation) or self._over) and self.stopped not in ("interrupt", "terminated")
        saves = self._due(self.config.checkpoint) or self.stopped is not None
        if (evaluates or saves) and self._halted():
            self._not_finite(self._steps[-1], None)
            return began
        if evaluates:
            self._evaluate()
        if saves or self.stopped:
            self._save()
        self.clock.stepped(seconds)
        return time.perf_counter()

    def _account(self, batch: Batch, values: dict[str, float], seconds: float, waited: float) -> None:
        """Update the progress after a step, and report the step to the callbacks.

        `values` are the means of loss and metrics. `seconds` is the duration of the step, and `waited` is the part of it spent waiting for the batch.
        """
        progress, before = self.progress, self.progress.step
        progress.step += 1
        progress.epoch, progress.sample = batch.position_after
        progress.metrics.update({f"train/{name}": value for name, value in values.items()})
        progress.seconds += seconds
        self._seconds += seconds
        others = {name: value for name, value in values.items() if name != "loss"}
        rate = float(self.rates.rate(before))
        report = StepReport(progress.step, batch.position.epoch, values["loss"], others, seconds, batch.size, rate, waited)
        self._tell(lambda watcher: watcher.step(self.info, report))

    def _decide(self) -> None:
        """Exchange requests to stop, and finish a completed asynchronous checkpoint."""
        if self._over:
            self.stopped = self.stopped or "end"
        saving = self._saving
        agreed = self.agreement.ask(self.progress.step, saving is None or saving[1].done)
        if agreed is None:
            return
        if agreed.stop and not self.stopped:
            self.stopped = "interrupt" if agreed.stop == "interrupt" else "terminated"
            self.message = agreed.why
        if agreed.done and saving is not None:
            self._settle()

    @property
    def _over(self) -> bool:
        return self.progress.step >= self.jobs.steps

    @property
    def _writes(self) -> bool:
        return self.session.writes_files

    def _due(self, interval: Evaluation | Checkpoint) -> bool:
        """Return True if every_steps or every_epochs of the section `interval` is due after the current step; False before the first step."""
        progress = self.progress
        by_steps = interval.every_steps is not None and progress.step % interval.every_steps == 0
        by_epochs = interval.every_epochs is not None and progress.sample == 0 and progress.epoch % interval.every_epochs == 0
        return progress.step > 0 and (by_steps or by_epochs)

    def _tell(self, what: Callable[[Watcher], None]) -> None:
        for watcher in self.watchers:
            what(watcher)

    # ---------------------------------------------------------------- beginning

    def _batches(self) -> Batches:
        return batches_of_training(self.jobs)

    def _check_alike(self) -> None:
        """Raise ConfigError unless all ranks have the same configuration and samples with equal fingerprints."""
        check_configurations(self.session, self.loaded)
        prints = {f"data.{place}": samples.fingerprint for place, samples in self.jobs.samples.items() if isinstance(samples, Samples)}
        check_alike(self.session, prints)

    def _resume(self, resume: str) -> AnyPath | None:
        with at_line(line_of(self.loaded, "checkpoint")):
            checkpoint = follow(self.session, lambda: chosen(self.series, resume), self._read)
        if checkpoint is None:
            return None
        together(self.session, lambda: set_aside_behind(self.series, self.progress.step))
        self._saved, self._saved_step = checkpoint, self.progress.step
        if self.early is not None and self.progress.early is not None:
            self.early.restore(self.progress.early)
        return checkpoint

    def _read(self, path: AnyPath) -> None:
        self.progress = read(self.session, path, self.loaded, self._program)

    def _info(self, checkpoint: AnyPath | None) -> RunInfo:
        run, config = self.jobs, self.config
        samples = run.samples["train"]
        count = len(samples) if isinstance(samples, Samples) else 0
        if config.data.drop_last:
            count = run.steps_per_epoch * config.data.batch_size
        return RunInfo(
            config.name, self.loaded, Path(config.output), run.ranks, run.steps, self.progress.step, run.steps_per_epoch, count,
            rows_of(samples, config.data.batch_size), checkpoint, lambda: self._compiled, self.progress.seconds,
            "\n".join(filter(None, [self._before, frozen_text(self.loaded, run.variables)])),
        )  # fmt: skip

    # ---------------------------------------------------------------- evaluation

    def _evaluate(self) -> bool:
        """Evaluate if there are validation samples, unless this step was evaluated before; return True after an evaluation."""
        batches, progress = self._validation, self.progress
        if batches is None or progress.evaluated == progress.step:
            return False
        report = measure(self.jobs, batches, "validation", progress.step, progress.epoch)
        progress.evaluated = progress.step
        self.clock.evaluated(report.seconds)
        progress.metrics.update(report.metrics)
        self._tell(lambda watcher: watcher.evaluated(self.info, report))
        if self.early is not None:
            if self.early.heed(report.metrics[self.early.metric]):
                self.stopped = "early"
                best = metric_text(self.early.metric, self.early.best or 0.0)
                self.message = f"{self.early.metric} did not improve on {best} in {counted(self.early.patience, 'evaluation')}"
            progress.early = self.early.state()
        return True

    # ---------------------------------------------------------------- saving

    def _save(self) -> None:
        """Save the state after this step, unless this state is already saved.

        The save is asynchronous if checkpoint.asynchronous is set and the run continues.
        """
        step = self.progress.step
        if self._saved_step == step:
            return
        self._settle()
        extra = self.progress.extra(self.loaded.plain, self.jobs.samples["train"])
        extra["trainer"] |= {"steps": self.jobs.steps, "ended": self.stopped in ("end", "early")}
        if self._program is not None:
            extra["fingerprint"] = self._program.tree()
        criterion = self.jobs.network.criterion
        if criterion is not None and criterion.weights is not None:
            extra["class_weights"] = list(criterion.weights)
        later = self.config.checkpoint.asynchronous and not self.stopped
        with self._may_fail(step):
            began = time.perf_counter()
            saving = self.series.save(self.session, step, extra, asynchronous=later)
            self._saving, self._saved_step = (step, saving, began), step
        if not later:
            self._settle()

    def _settle(self) -> None:
        """Wait for the pending checkpoint and report it to the callbacks; do nothing without a pending checkpoint."""
        if self._saving is None:
            return
        step, saving, began = self._saving
        self._saving = None
        with self._may_fail(step):
            saving.wait()
            self.clock.saved(time.perf_counter() - began)
            self._published(step)

    def _published(self, step: int) -> None:
        path = self.series.path_of(step)
        self._saved, self._saved_step = path, max(step, self._saved_step)
        self._tell(lambda watcher: watcher.saved(self.info, path))

    @contextmanager
    def _may_fail(self, step: int) -> Iterator[None]:
        """Report an error of saving step `step` as a notice and continue; raise the error if this is the last step of the run."""
        try:
            yield
        except sessions.AfterSavingError as error:
            self._published(step)
            self._notice(str(error))
        except CheckpointError as error:
            if self._saved_step == step:
                self._saved_step = -1
            if self.stopped and step == self.progress.step:
                raise
            self._notice(f"training continues without a checkpoint of step {step}: {error}")

    def _notice(self, text: str) -> None:
        if self._writes:
            notice(text)

    # ---------------------------------------------------------------- the end

    def _halted(self) -> bool:
        """Return True if the last step changed no variable, because its gradients were not finite."""
        return COUNTER in self.session.variables and bool(self.session.read([COUNTER])[COUNTER][0])

    def _not_finite(self, before: Before, loss: float | None) -> None:
        """Stop after a step with a non-finite loss or gradient, find the op that caused it, and restore the progress before the step.

        If the step changed no variable, save the state before the step.
        """
        session, bad = self.session, before.progress.step + 1
        what = "the gradients" if loss is None else f"the loss {loss}"
        batch = self._halted()
        cause = first_not_finite(session, self.jobs.train(before.batch.size), before.batch, before.run)
        self.stopped, self.message = "nan", f"step {bad}: {what}; {cause}"
        self.progress = before.progress
        if batch:
            session.runs[TRAIN] = before.run
            session.write({COUNTER: np.zeros(1, np.int64)})
            self._save()

    def _outcome(self) -> Outcome:
        assert self.stopped is not None
        progress = self.progress
        return Outcome(progress.step, progress.epoch, dict(progress.metrics), self.stopped, self._saved, self.message, self._seconds)
