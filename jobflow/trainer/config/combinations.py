"""What is wrong with several keys together, each of which would be right alone."""

from __future__ import annotations

import importlib.util
from dataclasses import dataclass

from jobflow.errors import counted
from jobflow.trainer.config.problems import DEFAULT, Problems
from jobflow.trainer.config.schema import Checkpoint, Data, Evaluation, Logging, Model, Optimizer, Piecewise, Strategy, Training
from jobflow.trainer.config.tree import Branch, at_path, nearest, place


@dataclass(frozen=True)
class Sections:
    """The sections of a configuration; None for those in which something is missing."""

    model: Model | None = None
    data: Data | None = None
    optimizer: Optimizer | None = None
    strategy: Strategy | None = None
    training: Training | None = None
    evaluation: Evaluation | None = None
    checkpoint: Checkpoint | None = None
    logging: Logging | None = None


@dataclass(frozen=True)
class Notes:
    """Where problems of combinations go: to the first of their keys that is near, and only if nothing else is wrong with any of them."""

    tree: Branch
    problems: Problems

    def add(self, keys: str, message: str, legal: str = "") -> None:
        each = keys.split()
        if any(self.problems.about(key) for key in each):
            return
        first = min(each, key=self.distance)
        self.problems.add(place(nearest(self.tree, first)), first, message, legal)

    def distance(self, key: str) -> int:
        """How far a value is from what its author is writing now: settings, the file that was asked for, what that extends, nowhere."""
        entry = at_path(self.tree, key)
        if entry is None or entry.at == DEFAULT:
            return 3
        return 0 if not entry.at.line else 1 if entry.at.file == self.tree.at.file else 2


def check(sections: Sections, tree: Branch, problems: Problems) -> None:
    """Report every combination that cannot be, among sections that can be judged."""
    notes = Notes(tree, problems)
    s = sections
    if s.model is not None:
        _model(s.model, notes)
    if s.optimizer is not None:
        _schedule(s.optimizer, notes)
    if s.training is not None:
        _length(s.training, notes)
    if s.strategy is not None:
        for rule in (_mesh, _mirrored, _parts, _zero, _precision):
            rule(s.strategy, notes)
    if s.logging is not None and s.logging.tensorboard and importlib.util.find_spec("tensorboardX") is None:
        notes.add("logging.tensorboard", "logging.tensorboard needs the package tensorboardX: pip install tensorboardX", "tensorboard: false")
    if s.strategy is not None and s.data is not None:
        _batch(s.strategy, s.data, notes)
    if s.data is not None and s.evaluation is not None:
        _measured(s.data, s.evaluation, notes)
    if s.data is not None and s.evaluation is not None and s.checkpoint is not None:
        _best(s.data, s.evaluation, s.checkpoint, notes)


# -------------------------------------------------------------------- model


def _model(model: Model, notes: Notes) -> None:
    ways = "builder: module:function, or layers: a list of layers"
    if model.builder is None and model.layers is None:
        notes.add("model.builder model.layers", "model needs a builder or layers", ways)
    elif model.builder is not None and model.layers is not None:
        notes.add("model.layers model.builder", "model has a builder and layers; leave one of them out", ways)
    elif model.builder is not None:
        if model.loss is not None:
            notes.add("model.loss model.builder", "model.loss is that of layers; a builder returns its own, leave it out")
    else:
        _layers(model, notes)


def _layers(model: Model, notes: Notes) -> None:
    if model.arguments:
        notes.add("model.arguments model.layers", "model.arguments are those of a builder; layers have their own, leave them out")
    if model.loss is None:
        notes.add("model.loss model.layers", "model.layers need a loss", "loss: softmax_cross_entropy, mean_squared_error")
    assert model.layers is not None, "asked before"
    last = model.layers[-1]
    function = getattr(last.arguments, "function", None) or getattr(last.arguments, "activation", None)
    if model.loss == "softmax_cross_entropy" and function == "softmax":
        key = f"model.layers.{len(model.layers) - 1}.{last.kind}.{'function' if last.kind == 'activation' else 'activation'}"
        notes.add(f"{key} model.loss", "softmax_cross_entropy applies softmax itself; leave the last activation out")


# -------------------------------------------------------------------- optimizer and training


def _schedule(optimizer: Optimizer, notes: Notes) -> None:
    schedule = optimizer.schedule
    steps = getattr(schedule, "steps", None)
    if steps is not None and schedule.name != "exponential" and optimizer.warmup_steps >= steps:
        told = f"the schedule ends after {steps} steps, before the warm-up of {optimizer.warmup_steps} steps is over"
        notes.add("optimizer.warmup_steps optimizer.schedule.steps", told, f"optimizer.warmup_steps: less than {steps}")
    if not isinstance(schedule, Piecewise):
        return
    if any(a >= b for a, b in zip(schedule.boundaries[:-1], schedule.boundaries[1:], strict=True)):
        notes.add("optimizer.schedule.boundaries", f"optimizer.schedule.boundaries must rise; got {list(schedule.boundaries)}")
    if len(schedule.boundaries) != len(schedule.scales):
        told = f"there are {len(schedule.boundaries)} boundaries and {len(schedule.scales)} scales; give one scale per boundary"
        notes.add("optimizer.schedule.scales optimizer.schedule.boundaries", told)


def _length(training: Training, notes: Notes) -> None:
    if training.epochs is None and training.steps is None:
        notes.add("training.epochs training.steps", "training needs epochs or steps", "such as: epochs: 10")
    if training.epochs is not None and training.steps is not None:
        told = "training has epochs and steps; take one of them away, with null if another file has it"
        notes.add("training.steps training.epochs", told)


# -------------------------------------------------------------------- strategy


def _mesh(strategy: Strategy, notes: Notes) -> None:
    keys = "strategy.devices strategy.data strategy.tensor strategy.pipeline"
    devices, data, others = strategy.devices, strategy.data, strategy.tensor * strategy.pipeline
    if devices == "all":
        return
    if data is not None and data * others != devices:
        product = f"data {data} x tensor {strategy.tensor} x pipeline {strategy.pipeline}"
        notes.add(keys, f"{product} are {data * others} ranks, and strategy.devices is {devices}", f"devices: {data * others}, or all")
    elif devices % others:
        product = f"tensor {strategy.tensor} x pipeline {strategy.pipeline}"
        told = f"{devices} devices do not divide among {product} = {others} ranks"
        notes.add(keys, told, f"devices: a multiple of {others}, such as {_multiple(devices, others)}; or all")


def _multiple(number: int, of: int) -> int:
    """The multiple of `of` that is next to a number, and not 0."""
    return max(of, round(number / of) * of)


def _mirrored(strategy: Strategy, notes: Notes) -> None:
    if strategy.view != "mirrored":
        return
    wrong = {
        "tensor": strategy.tensor > 1,
        "pipeline": strategy.pipeline > 1,
        "zero": strategy.zero > 0,
        "microbatches": strategy.microbatches is not None,
    }
    for key in (key for key, is_wrong in wrong.items() if is_wrong):
        told = f"strategy.{key} {getattr(strategy, key)} needs the consistent view: in the mirrored view every rank has the whole model"
        notes.add(f"strategy.{key} strategy.view", told, "view: consistent")


def _parts(strategy: Strategy, notes: Notes) -> None:
    if strategy.microbatches is None or strategy.view == "mirrored":
        return
    if strategy.pipeline == 1:
        told = "strategy.microbatches are those of a pipeline, and strategy.pipeline is 1; use strategy.accumulation"
        notes.add("strategy.microbatches strategy.pipeline", told, "microbatches: null, or pipeline: 2 or more")
    elif strategy.accumulation > 1:
        told = "strategy.microbatches and strategy.accumulation both cut the batch; in a pipeline give microbatches"
        notes.add("strategy.accumulation strategy.microbatches", told, "accumulation: 1")


def _zero(strategy: Strategy, notes: Notes) -> None:
    if strategy.zero and strategy.view != "mirrored" and data_ranks(strategy) == 1 and strategy.devices != 1:
        told = f"strategy.zero {strategy.zero} splits variables over the data ranks, and there is 1"
        notes.add("strategy.zero strategy.data strategy.devices", told, "zero: 0, or data: 2 or more")


def data_ranks(strategy: Strategy) -> int | None:
    """Into how many parts the batch is cut for ranks; None if that depends on how many ranks are started."""
    if strategy.data is not None:
        return strategy.data
    return strategy.devices // (strategy.tensor * strategy.pipeline) if isinstance(strategy.devices, int) else None


def _precision(strategy: Strategy, notes: Notes) -> None:
    if strategy.precision == "bfloat16" and importlib.util.find_spec("ml_dtypes") is None:
        notes.add("strategy.precision", "bfloat16 needs the package ml_dtypes: pip install 'jobflow-sbp[half]'", "precision: float32, float16")


def _batch(strategy: Strategy, data: Data, notes: Notes) -> None:
    which = "microbatches" if strategy.microbatches is not None else "accumulation"
    parts: int = getattr(strategy, which) or 1
    keys = f"data.batch_size strategy.{which} strategy.data strategy.devices"
    if data.batch_size % parts:
        told = f"data.batch_size {data.batch_size} does not divide into strategy.{which} {parts}"
        notes.add(keys, told, f"data.batch_size: a multiple of {parts}, such as {_multiple(data.batch_size, parts)}")
        return
    ranks = data_ranks(strategy) or 1
    if data.batch_size // parts < ranks:
        each = f"{counted(data.batch_size // parts, 'sample')} (data.batch_size {data.batch_size}" + (
            f" in strategy.{which} {parts})" if parts > 1 else ")"
        )
        notes.add(keys, f"{each} do not go round among {ranks} data ranks", f"data.batch_size: at least {ranks * parts}")


# -------------------------------------------------------------------- evaluation and checkpoints


def _measured(data: Data, evaluation: Evaluation, notes: Notes) -> None:
    if data.validation is None:
        for key in ("early_stopping", "every_epochs", "every_steps"):
            if getattr(evaluation, key) is not None:
                notes.add(
                    f"evaluation.{key} data.validation", f"evaluation.{key} needs samples to measure on: data.validation", "data.validation: a reader"
                )
    elif evaluation.early_stopping is not None and evaluation.every_epochs is None and evaluation.every_steps is None:
        told = "evaluation.early_stopping needs evaluations: every_epochs or every_steps"
        notes.add("evaluation.early_stopping evaluation.every_epochs evaluation.every_steps", told, "such as: every_epochs: 1")


def _best(data: Data, evaluation: Evaluation, checkpoint: Checkpoint, notes: Notes) -> None:
    if checkpoint.keep_best and checkpoint.best_metric is None:
        told = f"checkpoint.keep_best {checkpoint.keep_best} needs checkpoint.best_metric: which number says what is best"
        notes.add("checkpoint.keep_best checkpoint.best_metric", told, "such as: best_metric: validation/loss")
    if checkpoint.best_metric is None:
        return
    if data.validation is None:
        told = f"checkpoint.best_metric {checkpoint.best_metric} needs samples to measure on: data.validation"
        notes.add("checkpoint.best_metric data.validation", told, "data.validation: a reader")
    elif evaluation.every_epochs is None and evaluation.every_steps is None:
        told = f"checkpoint.best_metric {checkpoint.best_metric} needs evaluations: evaluation.every_epochs or every_steps"
        notes.add("checkpoint.best_metric evaluation.every_epochs", told, "such as: every_epochs: 1")
