"""Checks of several keys together.

A rule reads the values of some keys.  For each problem it yields the keys, a message, and the legal values.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Iterator
from typing import Any, get_args

from jobflow.core.errors import counted
from jobflow.trainer.config.keys import default_at
from jobflow.trainer.config.schema import CLASS_LOSSES, Loss
from jobflow.trainer.config.sweep_rules import SWEEP_RULES
from jobflow.trainer.config.tree import DEFAULT, MISSING, Path, Problems, Tree, steps_of

#: function of a section and keys -> their values, including defaults
Values = Callable[..., list[Any]]
Wrong = Iterator[tuple[str, str, str]]


#: optimizers without weight decay
_WITHOUT_DECAY = ("adam", "rmsprop", "rprop", "sparse_adam")


class _Unknown(Exception):
    """The exception for a rule that reads an invalid value; `check` then skips the rule."""


def check(tree: Tree, problems: Problems) -> None:
    """Report every invalid combination of valid values at the key with the most specific source.

    The sources are, in this order: a setting, the requested file, a base file, and the default.
    """

    def values(section: str, *keys: str) -> list[Any]:
        paths = [(*section.split("."), key) for key in keys]
        if any(map(problems.spoil, paths)):
            raise _Unknown
        return [default_at(path, tree.plain) if (value := tree.find(path)) is MISSING else value for path in paths]

    def distance(path: Path) -> int:
        """Return the rank of a value's source: 0 setting, 1 requested file, 2 base file, 3 default."""
        at = DEFAULT if tree.find(path) is MISSING else tree.mark(path).at
        return 3 if at == DEFAULT else 0 if not at.line else 1 if at.file == tree.mark(()).at.file else 2

    for rule in (
        _model, _layers, _losses, _warm_up, _boundaries, _cycle, _plateau, _groups, _length, _mesh, _mirrored, _parts, _zero, _packages, _batch,
        _measured, _best, *SWEEP_RULES,
    ):  # fmt: skip
        try:
            for keys, message, legal in rule(values):
                paths = [steps_of(key) for key in keys.split()]
                if not any(map(problems.about, paths)):
                    first = min(paths, key=distance)
                    problems.add(tree.place(first), first, message, legal)
        except _Unknown:
            continue


# -------------------------------------------------------------------- model


def _model(of: Values) -> Wrong:
    builder, layers = of("model", "builder", "layers")
    choices = "builder: module:function, or layers: a list of layers"
    if builder is None and layers is None:
        yield "model.builder model.layers", "model needs a builder or layers", choices
    elif builder is not None and layers is not None:
        yield "model.layers model.builder", "model has a builder and layers; omit one of them", choices


def _layers(of: Values) -> Wrong:
    builder, layers, loss, arguments = of("model", "builder", "layers", "loss", "arguments")
    if builder is not None or layers is None:
        return
    if arguments:
        yield "model.arguments model.layers", "model.arguments are arguments of a builder, and the model is a list of layers; omit them", ""
    if loss is None:
        yield "model.loss model.layers", "model.layers need a loss", f"loss: {', '.join(get_args(Loss))}, or module:function"
    ((kind, options),) = layers[-1].items()
    function = "function" if kind == "activation" else "activation"
    if loss in ("softmax_cross_entropy", "cross_entropy") and options.get(function) == "softmax":
        keys = f"model.layers.{len(layers) - 1}.{kind}.{function} model.loss"
        yield keys, f"{loss} applies softmax itself; omit the last activation", ""


def _losses(of: Values) -> Wrong:
    loss, arguments, smoothing, weights = of("model", "loss", "loss_arguments", "label_smoothing", "class_weights")
    name = loss or "softmax_cross_entropy"
    if smoothing is not None and name not in ("softmax_cross_entropy", "cross_entropy"):
        yield "model.label_smoothing model.loss", f"model.label_smoothing needs a cross entropy, and model.loss is {name}", "loss: cross_entropy"
    if weights is not None and name not in CLASS_LOSSES:
        yield "model.class_weights model.loss", f"model.class_weights needs a loss of classes, and model.loss is {name}", ", ".join(CLASS_LOSSES)
    if weights is not None and weights != "balanced" and not any(weights):
        yield "model.class_weights", f"model.class_weights must contain a positive number; got {weights}", ""
    (positive,) = of("model", "pos_weight")
    if positive is not None and name != "binary_cross_entropy_with_logits":
        message = f"model.pos_weight needs the loss binary_cross_entropy_with_logits, and model.loss is {name}"
        yield "model.pos_weight model.loss", message, "loss: binary_cross_entropy_with_logits"
    for mix in ("mixup", "cutmix"):
        if ":" in name and of("data", mix) != [None]:
            message = f"data.{mix} needs a loss by name, which it applies to both labels of a sample, and model.loss is {name}"
            yield f"data.{mix} model.loss", message, "a loss by name, or no mixup and cutmix"
    if arguments and loss is None:
        yield (
            "model.loss_arguments model.loss",
            "model.loss_arguments are arguments of model.loss, which is not set",
            "loss: a name, or module:function",
        )


# -------------------------------------------------------------------- optimizer and training


def _warm_up(of: Values) -> Wrong:
    (warmup,), (name, steps) = of("optimizer", "warmup_steps"), of("optimizer.schedule", "name", "steps")
    if steps is not None and name != "exponential" and warmup >= steps:
        message = f"the schedule ends after {steps} steps, before the warm-up of {warmup} steps is over"
        yield "optimizer.warmup_steps optimizer.schedule.steps", message, f"optimizer.warmup_steps: less than {steps}"


def _boundaries(of: Values) -> Wrong:
    boundaries, scales = of("optimizer.schedule", "boundaries", "scales")
    if boundaries is None or scales is None:
        return
    if boundaries != sorted(set(boundaries)):
        yield "optimizer.schedule.boundaries", f"optimizer.schedule.boundaries must rise; got {boundaries}", ""
    if len(boundaries) != len(scales):
        message = f"there are {len(boundaries)} boundaries and {len(scales)} scales; write one scale per boundary"
        yield "optimizer.schedule.scales optimizer.schedule.boundaries", message, ""


def _cycle(of: Values) -> Wrong:
    (warmup,), (name,) = of("optimizer", "warmup_steps"), of("optimizer.schedule", "name")
    if name == "one_cycle" and warmup:
        message = "the schedule one_cycle begins with a rise of the rate; omit the warm-up, and set optimizer.schedule.rise"
        yield "optimizer.warmup_steps optimizer.schedule.name", message, "optimizer.warmup_steps: 0"


def _plateau(of: Values) -> Wrong:
    (name,), (validation,) = of("optimizer.schedule", "name"), of("data", "validation")
    epochs, steps = of("evaluation", "every_epochs", "every_steps")
    if name != "plateau":
        return
    if validation is None:
        message = "the schedule plateau needs samples for evaluation: data.validation"
        yield "optimizer.schedule.name data.validation", message, "data.validation: a reader"
    elif epochs is None and steps is None:
        keys = "optimizer.schedule.name evaluation.every_epochs"
        yield keys, "the schedule plateau needs evaluations: evaluation.every_epochs or every_steps", "such as: every_epochs: 1"


def _groups(of: Values) -> Wrong:
    name, groups = of("optimizer", "name", "groups")
    if ":" in str(name) or name not in _WITHOUT_DECAY:
        return
    for i, group in enumerate(groups):
        if group.get("weight_decay") is not None:
            key = f"optimizer.groups.{i}.weight_decay"
            yield f"{key} optimizer.name", f"{key}: the optimizer {name} has no weight decay; omit it", "name: adamw, sgd"


def _length(of: Values) -> Wrong:
    epochs, steps = of("training", "epochs", "steps")
    if epochs is None and steps is None:
        yield "training.epochs training.steps", "training needs epochs or steps", "such as: epochs: 10"
    if epochs is not None and steps is not None:
        yield "training.steps training.epochs", "training has epochs and steps; remove one of them, with null if another file contains it", ""


# -------------------------------------------------------------------- strategy


def _mesh(of: Values) -> Wrong:
    devices, data, tensor, pipeline = of("strategy", "devices", "data", "tensor", "pipeline")
    keys = "strategy.devices strategy.data strategy.tensor strategy.pipeline"
    product, others = f"tensor {tensor} x pipeline {pipeline}", tensor * pipeline
    if devices == "all":
        return
    if data is not None and data * others != devices:
        message = f"data {data} x {product} are {data * others} ranks, and strategy.devices is {devices}"
        yield keys, message, f"devices: {data * others}, or all"
    elif devices % others:
        message = f"{devices} devices do not divide among {product} = {others} ranks"
        yield keys, message, f"devices: a multiple of {others}, such as {_multiple(devices, others)}; or all"


def _multiple(number: int, of: int) -> int:
    """Return the multiple of `of` nearest to a number, at least `of`."""
    return max(of, round(number / of) * of)


def _mirrored(of: Values) -> Wrong:
    for key, usual in {"tensor": 1, "pipeline": 1, "zero": 0, "microbatches": None}.items():
        view, value = of("strategy", "view", key)
        if view == "mirrored" and value != usual:
            message = f"strategy.{key} {value} needs the consistent view: in the mirrored view every rank has the whole model"
            yield f"strategy.{key} strategy.view", message, "view: consistent"


def _parts(of: Values) -> Wrong:
    view, microbatches, pipeline, accumulation = of("strategy", "view", "microbatches", "pipeline", "accumulation")
    if microbatches is None or view == "mirrored":
        return
    if pipeline == 1:
        message = "strategy.microbatches split the batch of a pipeline, and strategy.pipeline is 1; use strategy.accumulation"
        yield "strategy.microbatches strategy.pipeline", message, "microbatches: null, or pipeline: 2 or more"
    elif accumulation > 1:
        message = "strategy.microbatches and strategy.accumulation both split the batch; in a pipeline, write microbatches only"
        yield "strategy.accumulation strategy.microbatches", message, "accumulation: 1"


def _data_ranks(of: Values) -> int | None:
    """Return the size of the data dimension of the mesh, or None if this size depends on the number of ranks that are started."""
    devices, data, tensor, pipeline = of("strategy", "devices", "data", "tensor", "pipeline")
    return data if data is not None or devices == "all" else devices // (tensor * pipeline)


def _zero(of: Values) -> Wrong:
    zero, view, devices = of("strategy", "zero", "view", "devices")
    if zero and view != "mirrored" and _data_ranks(of) == 1 and devices != 1:
        message = f"strategy.zero {zero} splits variables over the data ranks, and there is 1"
        yield "strategy.zero strategy.data strategy.devices", message, "zero: 0, or data: 2 or more"


def _packages(of: Values) -> Wrong:
    if of("logging", "tensorboard") == [True] and importlib.util.find_spec("tensorboardX") is None:
        message = "logging.tensorboard needs the package tensorboardX: pip install tensorboardX"
        yield "logging.tensorboard", message, "tensorboard: false"
    if of("strategy", "precision") == ["bfloat16"] and importlib.util.find_spec("ml_dtypes") is None:
        message = "bfloat16 needs the package ml_dtypes: pip install 'jobflow-sbp[half]'"
        yield "strategy.precision", message, "precision: float32, float16"


def _batch(of: Values) -> Wrong:
    (batch,), (microbatches, accumulation) = of("data", "batch_size"), of("strategy", "microbatches", "accumulation")
    which, parts = ("accumulation", accumulation) if microbatches is None else ("microbatches", microbatches)
    keys, ranks = f"data.batch_size strategy.{which} strategy.data strategy.devices", _data_ranks(of) or 1
    if batch % parts:
        message = f"data.batch_size {batch} does not divide into strategy.{which} {parts}"
        yield keys, message, f"data.batch_size: a multiple of {parts}, such as {_multiple(batch, parts)}"
    elif batch // parts < ranks:
        cut = f" in strategy.{which} {parts}" if parts > 1 else ""
        message = f"{counted(batch // parts, 'sample')} (data.batch_size {batch}{cut}) are not enough for {ranks} data ranks"
        yield keys, message, f"data.batch_size: at least {ranks * parts}"


# -------------------------------------------------------------------- evaluation and checkpoints


def _measured(of: Values) -> Wrong:
    for key in ("early_stopping", "every_epochs", "every_steps"):
        if of("data", "validation") == [None] != of("evaluation", key):
            yield f"evaluation.{key} data.validation", f"evaluation.{key} needs samples for evaluation: data.validation", "data.validation: a reader"
    (validation,), (stopping, epochs, steps) = of("data", "validation"), of("evaluation", "early_stopping", "every_epochs", "every_steps")
    if validation is not None and stopping is not None and epochs is None and steps is None:
        keys = "evaluation.early_stopping evaluation.every_epochs evaluation.every_steps"
        yield keys, "evaluation.early_stopping needs evaluations: every_epochs or every_steps", "such as: every_epochs: 1"


def _best(of: Values) -> Wrong:
    (keep, metric), (validation,) = of("checkpoint", "keep_best", "best_metric"), of("data", "validation")
    if keep and metric is None:
        message = f"checkpoint.keep_best {keep} needs checkpoint.best_metric: the metric that decides which is best"
        yield "checkpoint.keep_best checkpoint.best_metric", message, "such as: best_metric: validation/loss"
    if metric is not None and validation is None:
        message = f"checkpoint.best_metric {metric} needs samples for evaluation: data.validation"
        yield "checkpoint.best_metric data.validation", message, "data.validation: a reader"
    elif metric is not None and of("evaluation", "every_epochs", "every_steps") == [None, None]:
        message = f"checkpoint.best_metric {metric} needs evaluations: evaluation.every_epochs or every_steps"
        yield "checkpoint.best_metric evaluation.every_epochs", message, "such as: every_epochs: 1"
