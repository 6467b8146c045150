"""The training loop: steps, evaluations and checkpoints until the last step or a request to stop.

After each step the loop calls the callbacks, which may stop the run or change its learning rate and parameters. The ranks exchange requests to
stop periodically, not after every step. A due evaluation follows,
and early stopping uses its metric. Then the loop saves the complete state if a checkpoint is due or the run ends. A resumed run continues with
the same samples, random numbers, learning rates and decisions as an uninterrupted run. The schedule depends on steps and epochs alone.
"""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import field, replace
from pathlib import Path
from typing import NamedTuple

import numpy as np

from jobflow.core.dataclass import dataclass
from jobflow.core.errors import CheckpointError, at_line
from jobflow.core.notices import notice
from jobflow.data.ahead import Reading
from jobflow.data.batch import Batch, Position
from jobflow.data.batches import Batches
from jobflow.data.samples import Samples
from jobflow.engine.compiled import Compiled
from jobflow.storage import sessions
from jobflow.storage.remote import AnyPath
from jobflow.trainer.callback_entries import Entry, entries_of
from jobflow.trainer.callback_requests import Calls
from jobflow.trainer.callbacks import Callback
from jobflow.trainer.chrome_trace import Tracing
from jobflow.trainer.class_names import classes_of
from jobflow.trainer.config import Loaded
from jobflow.trainer.config.loading import loaded_run
from jobflow.trainer.config.python_values import Settings, Source
from jobflow.trainer.config.schema import Checkpoint, Evaluation
from jobflow.trainer.configured_rates import FACTOR, plateau_of
from jobflow.trainer.early_stopping import EARLY_STOPPING
from jobflow.trainer.evaluate import batches_of, measure, rows_of
from jobflow.trainer.fingerprint import Fingerprint
from jobflow.trainer.finite import first_not_finite
from jobflow.trainer.folders import only_one
from jobflow.trainer.freezing import frozen_text
from jobflow.trainer.history import History
from jobflow.trainer.jobs import COUNTER, HALTED, TRAIN, Jobs, Means, prepared
from jobflow.trainer.loggers import loggers, recorder
from jobflow.trainer.network import line_of
from jobflow.trainer.optimizing import schedule_from, slow_start
from jobflow.trainer.parameter_average import averaged, averages_of, begin_averages, exchange_averages
from jobflow.trainer.parameter_groups import groups_text
from jobflow.trainer.resume import Progress, check_configurations, check_samples, chosen, follow, read, series_of, set_aside_behind, together
from jobflow.trainer.set_metrics.configured_metrics import PREFIX
from jobflow.trainer.set_metrics.epochs import Epochs
from jobflow.trainer.start_from import start
from jobflow.trainer.stopping import Agreement, Clock, Signals
from jobflow.trainer.training_batches import batches_of_training, data_advised
from jobflow.trainer.training_run import ENDS, Outcome, StepReport, Stopped, TrainingRun
from jobflow.trainer.units import metrics_text


def train(
    loaded: Loaded | Source,
    settings: Settings = (),
    *,
    output: str | Path | None = None,
    resume: str | None = None,
    callbacks: Sequence[Callback] = (),
    time_limit: float | None = None,
    tracing: Tracing | None = None,
) -> TrainingRun:
    """Train the model of a configuration, or resume its training; return the run, as `jobflow train` does.

    The configuration is a file, a dict with the content of one, or the result of `load`.  `settings` such as {"optimizer.lr": 0.1} or
    ["optimizer.lr=0.1"] and `output` override it, as `--set` and `--output` do.
    `resume` replaces checkpoint.resume: "auto", "never" or the path of a checkpoint.  `time_limit` is in seconds from the start of this process; an
    earlier end of a Slurm or PBS allocation takes precedence.  `callbacks` follow those of the configuration; rank 0 calls them.
    Raises: ConfigErrors before the start; ConfigError if the run cannot resume from its checkpoint; errors of the training itself.

    Examples:
        >>> flow.trainer.train("run.yaml").step  # a run of two steps
        2
    """
    loaded = loaded_run(loaded, settings, output)
    entries = entries_of(loaded, callbacks)
    with at_line(line_of(loaded, "")), Signals() as signals, prepared(loaded, only=("train", "validation")) as jobs:
        return Loop(jobs, entries, Clock.of(time_limit), signals, tracing).run(resume or loaded.config.checkpoint.resume)


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
    #: callbacks of the configuration and of the caller
    entries: Sequence[Entry]
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
        self.jobs.adjustable = any(not entry.kind.observes and entry.kind.changes_rate for entry in self.entries)
        self.jobs.extensions = [entry.extension for entry in self.entries if entry.extension is not None]
        self.rates = schedule_from(self.config.optimizer, self.jobs.steps)
        self.plateau = plateau_of(self.config.optimizer)
        self.agreement = Agreement(self.session, self.clock, lambda: (self.signals.request, self.signals.announced))
        validation = self.jobs.samples.get("validation")
        self._validation = None if validation is None else batches_of(self.jobs, validation)
        self._saving: tuple[int, sessions.Saving, float] | None = None
        self._saved: AnyPath | None = None
        self._saved_step = -1
        self._steps: tuple[Before, ...] = ()
        self._classes = classes_of(self.jobs, self.jobs.samples["train"].facts)
        self._epochs = Epochs(self.jobs, self._classes)
        self._seconds = 0.0
        self._compiled: Compiled | None = None
        self._program: Fingerprint | None = None
        self._before = ""

    # ---------------------------------------------------------------- the run

    def run(self, resume: str) -> TrainingRun:
        """Run the whole training, and return the run with its outcome."""
        self._check_alike()
        rows = rows_of(self.jobs.samples["train"], self.config.data.batch_size)
        job = self.jobs.train(rows)
        self.jobs.train(rows, 0)  # declared before the first program is compiled, which a later declaration would release
        self._compiled = self.session.compiled(job, job.declared_shapes(self.session))
        self.jobs.check_metrics()
        self.jobs.check_lengths()
        self._program = self.jobs.fingerprint()
        for warning in slow_start(self.loaded, self.jobs.steps):
            self._notice(warning)
        with only_one(self.session, self.loaded, self.series):
            checkpoint = self._resume(resume)
            if checkpoint is None and self.config.start_from is not None:
                self._before = start(self.jobs)
            self._begin_averages()
            self._create_run(checkpoint)
            if self._is_complete:
                self._complete(checkpoint)
            else:
                self._called()
        if self.record.message and self._writes:
            print(f"jobflow: {self.record.message}", file=sys.stderr)
        return self.record

    def _begin_averages(self) -> None:
        """Set the averages of the parameters, if there are any: to those of the checkpoint, or to the parameters."""
        if self.progress.averaged:
            exchange_averages(self.session)
        else:
            begin_averages(self.session)
        self.progress.averaged = bool(averages_of(self.session))

    def _create_run(self, checkpoint: AnyPath | None) -> None:
        """Create the run and the calls of its callbacks."""
        logging: list[Callback] = loggers(self.loaded, self.tracing) if self._writes else [History()]
        self.record = self._described(checkpoint)
        if not self._stopped_before:
            self.progress.stop = None
        self.recorder = self.record.recorded = recorder(logging)
        self.calls = Calls(self.jobs, self.record, self.entries, logging, lambda: self._rate(self.progress.step), self._halted)

    def _called(self) -> None:
        """Run the remaining steps with calls of the callbacks."""
        try:
            self.calls.make(self.progress.callbacks)
            self._call("on_start")
            self._train()
            outcome = self.record.outcome = self._outcome()
            self._call("on_end", outcome)
        except BaseException as error:
            self.calls.failed(error)
            raise

    @property
    def _is_complete(self) -> bool:
        """True if no work remains; a run that was stopped may lack its last evaluation."""
        over = self._over or self._stopped_before is not None
        return over and self.progress.step > 0 and (self._validation is None or self.progress.evaluated == self.progress.step)

    @property
    def _stopped_before(self) -> Stopped | None:
        """The kind of end, if a callback stopped the run before, and the run still has this callback with the same arguments; else None."""
        key = None if self.progress.stop is None else self.progress.stop["key"]
        return next((entry.kind.ending for entry in self.entries if entry.key == key), None)

    def _complete(self, checkpoint: AnyPath | None) -> None:
        """Set the outcome of a run that was already complete; its files remain unchanged."""
        step, steps = self.progress.step, self.jobs.steps
        self.stopped = "end" if self._over else self._stopped_before or "callback"
        done = f"step {step:,} of {steps:,}" if step <= steps else f"{step:,} steps, and {steps:,} are configured"
        longer = "increase training.epochs or training.steps"
        if self.stopped != "end" and self.progress.stop is not None:
            entry = self.progress.stop["entry"]
            longer = f"increase {entry}.patience" if entry == EARLY_STOPPING else f"omit the callback {entry} or change its arguments"
        self.message = (
            f"{self.config.output} is complete ({'' if self._over else f'{ENDS[self.stopped][1]} at '}{done}; "
            f"{metrics_text(self.progress.metrics)}) and stays unchanged; {longer} to continue, or start again with --resume never"
        )
        self._saved = checkpoint
        self.recorder.restore(self.record)
        self.record.outcome = self._outcome()

    def _train(self) -> None:
        if (self._due(self.config.evaluation) or ((self._over or self._stopped_before) and self.progress.step)) and self._evaluate():
            self._saved_step = -1  # an interrupted run saves the omitted evaluation with its checkpoint
        self.stopped = self.stopped or self._stopped_before
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
        with data_advised(self.loaded, self.jobs.samples["train"]):
            batch = next(reading)
        waited = reading.waited - waited
        if self.tracing is not None:
            self.tracing.before(step)
        self._steps = (*self._steps[-1:], Before(replace(self.progress, metrics=dict(self.progress.metrics)), self.session.runs.get(TRAIN, 0), batch))
        with data_advised(self.loaded, self.jobs.samples["train"]), batch.told(), at_line(line_of(self.loaded, "data.train")):
            outputs = self.jobs.call(self.jobs.train(batch.size, step), batch.arguments)
        if self.tracing is not None:
            self.tracing.after(step)
        halted = int(outputs.pop(HALTED)[0])
        means = Means()
        means.add({name: x for name, x in outputs.items() if not name.startswith(PREFIX)}, batch.size, self.jobs.pieces(batch.size))
        values = means.values()
        if not halted:
            self._epochs.settle()
        self._epochs.step(outputs, batch)
        if halted or not math.isfinite(values["loss"]):
            self._not_finite(self._steps[0 if halted else -1], None if halted else values["loss"])
            return began
        seconds = time.perf_counter() - began
        self._account(batch, values, seconds, waited)
        self._decide()
        by_callback = self.stopped in ("callback", "early")
        evaluates = (self._due(self.config.evaluation) or self._over or by_callback) and self.stopped not in ("interrupt", "terminated")
        saves = self._due(self.config.checkpoint) or self.stopped is not None or self.calls.saves
        if (evaluates or saves or batch.ends_epoch) and self._halted():
            self._not_finite(self._steps[-1], None)
            return began
        if evaluates or saves:
            self._epochs.settle()
        if batch.ends_epoch and (report := self._epochs.ended(self.progress.step, batch.position.epoch)):
            self.progress.metrics.update(report.metrics)
            self._call("on_epoch", report)
        if evaluates or self.stopped in ("callback", "early"):  # on_epoch may have requested a stop
            self._evaluate()
        if saves or self.stopped or self.calls.saves:  # so may on_evaluation, and either may have requested a save
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
        rate = self._rate(before) * self.calls.factor
        report = StepReport(progress.step, batch.position.epoch, values["loss"], others, seconds, batch.size, rate, waited)
        self.record.step, self.record.epoch = progress.step, progress.epoch
        self._call("on_step", report)

    def _rate(self, step: int) -> float:
        """Return the learning rate after `step` updates, without changes by callbacks."""
        return float(self.rates.rate(step)) * (1.0 if self.plateau is None else self.plateau.factor)

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

    def _call(self, event: str, *arguments: object) -> None:
        """Call the callbacks; a request to stop ends the run, unless it ends already."""
        self.calls.call(event, *arguments)
        stop = self.calls.stop
        if stop is not None and not self.stopped:
            self.stopped = stop.ending
            self.message = stop.reason if stop.ending == "early" else f"{stop.entry} stopped the run{': ' if stop.reason else ''}{stop.reason}"
            self.progress.stop = {"entry": stop.entry, "key": stop.key, "reason": stop.reason}

    # ---------------------------------------------------------------- beginning

    def _batches(self) -> Batches:
        return batches_of_training(self.jobs)

    def _check_alike(self) -> None:
        """Raise ConfigError unless all ranks have the same configuration and samples with equal fingerprints."""
        check_configurations(self.session, self.loaded)
        check_samples(self.session, self.jobs.samples)

    def _resume(self, resume: str) -> AnyPath | None:
        with at_line(line_of(self.loaded, "checkpoint")):
            checkpoint = follow(self.session, lambda: chosen(self.series, resume), self._read)
        if checkpoint is None:
            return None
        together(self.session, lambda: set_aside_behind(self.series, self.progress.step))
        self._saved, self._saved_step = checkpoint, self.progress.step
        self._epochs.restore(self.progress.totals, self.progress.sample, checkpoint)
        if self.plateau is not None:
            if self.progress.plateau is not None:
                self.plateau.restore(self.progress.plateau)
            self.session.write({FACTOR: np.full(1, self.plateau.factor)})
        return checkpoint

    def _read(self, path: AnyPath) -> None:
        self.progress = read(self.session, path, self.loaded, self._program)

    def _described(self, checkpoint: AnyPath | None) -> TrainingRun:
        run, config = self.jobs, self.config
        samples = run.samples["train"]
        count = len(samples) if isinstance(samples, Samples) else 0
        if config.data.drop_last:
            count = run.steps_per_epoch * config.data.batch_size
        return TrainingRun(
            config.name, self.loaded, Path(config.output), run.ranks, run.steps, self.progress.step, run.steps_per_epoch, count,
            rows_of(samples, config.data.batch_size), checkpoint, lambda: self._compiled, self.progress.seconds,
            "\n".join(filter(None, [
                self.session.start().map.text(), self._before, frozen_text(self.loaded, run.variables), groups_text(self.loaded, run.variables),
            ])),
            step=self.progress.step, epoch=self.progress.epoch, metrics=self.progress.metrics, checkpoint=checkpoint,
        )  # fmt: skip

    # ---------------------------------------------------------------- evaluation

    def _evaluate(self) -> bool:
        """Evaluate if there are validation samples, unless this step was evaluated before; return True after an evaluation."""
        batches, progress = self._validation, self.progress
        if batches is None or progress.evaluated == progress.step:
            return False
        with averaged(self.session):
            report = measure(self.jobs, batches, "validation", progress.step, progress.epoch, self._classes)
        progress.evaluated = progress.step
        self.clock.evaluated(report.seconds)
        progress.metrics.update(report.metrics)
        self._call("on_evaluation", report)
        if self.plateau is not None:
            if self.plateau.heed(report.metrics[self.plateau.options.metric]):
                self.session.write({FACTOR: np.full(1, self.plateau.factor)})
            progress.plateau = self.plateau.state()
        return True

    # ---------------------------------------------------------------- saving

    def _save(self) -> None:
        """Save the state after this step, unless this state is already saved.

        The save is asynchronous if checkpoint.asynchronous is set and the run continues.
        """
        step = self.progress.step
        self.calls.saves = False
        if self._saved_step == step:
            return
        self._settle()
        series = self.series if self.calls.best is None else self.calls.best.of(self.series)
        self.progress.callbacks = self.calls.states()
        self.progress.totals = self._epochs.state()
        extra = self.progress.extra(self.loaded.plain, self.jobs.samples["train"])
        extra["trainer"] |= {"steps": self.jobs.steps, "ended": self.stopped in ("end", "early", "callback")}
        if self._program is not None:
            extra["fingerprint"] = self._program.tree()
        criterion = self.jobs.network.criterion
        if criterion is not None and criterion.weights is not None:
            extra["class_weights"] = list(criterion.weights)
        later = self.config.checkpoint.asynchronous and not self.stopped
        with self._may_fail(step), averaged(self.session):
            began = time.perf_counter()
            saving = series.save(self.session, step, extra, asynchronous=later)
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
        self.record.checkpoint = path
        self._call("on_checkpoint", path)

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
        """Stop after a step with a non-finite loss or gradient; name its cause.  Save the state before the step if no variable has changed."""
        session, bad = self.session, before.progress.step + 1
        what = "the gradients" if loss is None else f"the loss {loss}"
        batch = self._halted()
        cause = first_not_finite(session, self.jobs.train(before.batch.size, bad), before.batch, before.run)
        self._epochs.drop()
        self.stopped, self.message = "nan", f"step {bad}: {what}; {cause}"
        self.progress = before.progress
        self.record.step, self.record.epoch, self.record.metrics = self.progress.step, self.progress.epoch, self.progress.metrics
        if batch:
            session.runs[TRAIN] = before.run
            session.write({COUNTER: np.zeros(1, np.int64)})
            self._save()

    def _outcome(self) -> Outcome:
        assert self.stopped is not None
        now = self.progress
        return Outcome(now.step, now.epoch, dict(now.metrics), self.stopped, self._saved, self.message, self._seconds)
