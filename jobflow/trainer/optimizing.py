"""The optimizer and the schedule of a configuration: the update of each parameter by its group, the clipping and the learning rates."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import field, replace
from functools import partial, reduce
from typing import Any, Self

import jobflow.core.scope as scope
import jobflow.optim as optim
from jobflow.core.dataclass import dataclass
from jobflow.core.errors import ConfigError, JobflowError, counted
from jobflow.core.imports import function_named
from jobflow.core.types import DType, TensorType, float64
from jobflow.functional.creation import zeros
from jobflow.graph.ir import Value
from jobflow.graph.training import Parameter, Slots, updated
from jobflow.legacy.losses import TrainJob
from jobflow.legacy.optimizer import clipping, loss_scale, warmup
from jobflow.legacy.optimizer import schedules as of
from jobflow.legacy.optimizer.clipping import Clipping
from jobflow.legacy.optimizer.job_optimizers import OF_YAML, Minimizer
from jobflow.legacy.optimizer.loss_scale import LossScale
from jobflow.ops import elementwise as ew
from jobflow.ops.optimizer_updates import AdamUpdate, OptimizerUpdate
from jobflow.ops.update import learning_rate
from jobflow.optim.optimizer import Optimizer
from jobflow.trainer.config import Loaded, optimizer_schema, schema
from jobflow.trainer.config.optimizer_schema import (
    Constant,
    Cosine,
    Exponential,
    ImportedOptimizer,
    ImportedSchedule,
    Linear,
    OneCycle,
    Piecewise,
    Plateau,
    Polynomial,
)  # fmt: skip
from jobflow.trainer.configured_rates import FACTOR, OfFunction
from jobflow.trainer.configured_rates import OneCycle as OneCycleRates
from jobflow.trainer.parameter_groups import Choice, choice_of
from jobflow.trainer.step_extensions import StepExtension, add_operations

#: initial loss scale with float16; each overflow of a gradient reduces the scale and skips a step
FIRST_SCALE = 2.0**15
#: the variable that multiplies the rates of the schedule, in runs whose callbacks may change the learning rate
RATE_FACTOR = "System-Train-LearningRateFactor"

_ADAM = {"epsilon": "eps", "weight_decay": "weight_decay"}
_DECOUPLED = {**_ADAM, "decoupled": "decoupled_weight_decay"}
#: optimizers of `jobflow.optim` by name, and their options by key; beta1 and beta2, and other pairs, are joined
_OF_OPTIM: dict[str, tuple[Callable[..., Any], dict[str, str]]] = {
    "adagrad": (optim.Adagrad, {**_ADAM, "lr_decay": "lr_decay", "initial_accumulator": "initial_accumulator_value"}),
    "adadelta": (optim.Adadelta, {**_ADAM, "rho": "rho"}),
    "radam": (optim.RAdam, _DECOUPLED),
    "nadam": (optim.NAdam, {**_DECOUPLED, "momentum_decay": "momentum_decay"}),
    "adamax": (optim.Adamax, _ADAM),
    "lion": (optim.Lion, {"weight_decay": "weight_decay"}),
    "rprop": (optim.Rprop, {}),
    "asgd": (optim.ASGD, {"lambd": "lambd", "alpha": "alpha", "t0": "t0", "weight_decay": "weight_decay"}),
    "sparse_adam": (optim.SparseAdam, {"epsilon": "eps"}),
}
_PAIRS = {"betas": ("beta1", "beta2"), "etas": ("shrink", "grow"), "step_sizes": ("min_step", "max_step")}


def schedule_from(options: optimizer_schema.Optimizer, steps: int, lr: float | None = None) -> of.Schedule:
    """Return the learning rate schedule of these options, with its warm-up.

    `steps` is the length of the training, at which a cosine or linear or polynomial schedule ends by default. `lr` replaces the rate of the options.
    """
    lr, plan = options.lr if lr is None else lr, options.schedule
    rising = warmup.linear(options.warmup_steps, 1 / options.warmup_steps) if options.warmup_steps else None
    match plan:
        case Constant() | Plateau():
            return of.PiecewiseConstantScheduler([], [lr], warmup=rising)
        case Cosine():
            return of.CosineScheduler(lr, plan.steps or steps, plan.alpha, warmup=rising)
        case Linear():
            return of.PolynomialScheduler(lr, plan.steps or steps, plan.end_lr, 1.0, warmup=rising)
        case Polynomial():
            return of.PolynomialScheduler(lr, plan.steps or steps, plan.end_lr, plan.power, plan.cycle, warmup=rising)
        case Exponential():
            return of.ExponentialScheduler(lr, plan.steps, plan.decay_rate, plan.staircase, warmup=rising)
        case Piecewise():
            return of.PiecewiseScalingScheduler(lr, list(plan.boundaries), list(plan.scales), warmup=rising)
        case OneCycle():
            return OneCycleRates(lr, plan.steps or steps, plan.rise, plan.start, plan.end, rising)
        case ImportedSchedule():
            return OfFunction(plan.name, lr, steps, json.dumps(plan.arguments, sort_keys=True), "optimizer.schedule", rising)
    raise AssertionError(f"no schedule {plan.name}")


def slow_start(loaded: Loaded, steps: int) -> Iterator[str]:
    """Yield a warning if the learning rate of a run never reaches its configured value."""
    options = loaded.config.optimizer
    if options.warmup_steps >= steps > 0:
        key = "optimizer.warmup_steps"
        length = counted(steps, "step")
        yield f"{loaded.origin(key)}: {key} is {options.warmup_steps:,}, and the run has {length}: the rate stays below {options.lr:g}"


# -------------------------------------------------------------------- update formulas


def rule_of(options: optimizer_schema.Optimizer, weight_decay: float | None) -> OptimizerUpdate:
    """Return the formula that updates parameters with this weight decay; None for an optimizer without weight decay.

    Raises: ConfigError for an imported class that is not an optimizer of formulas, or for wrong arguments of the class.
    """
    if options.name in OF_YAML:
        make, fields = OF_YAML[options.name]
        values = {name: getattr(options, option) for option, name in fields.items()}
        if weight_decay is not None:
            values["weight_decay"] = weight_decay
        result: OptimizerUpdate = make(lr_scheduler=of.PiecewiseConstantScheduler([], [options.lr]), **values).step_op("")
        # the formula of PyTorch, so that a loop of the user has the same losses; that of OneFlow 0.4 scales weight decay and epsilon, too
        return replace(result, corrects_moments=True) if isinstance(result, AdamUpdate) and result.bias_correction else result
    if isinstance(options, ImportedOptimizer):
        make, values = function_named(options.name), dict(options.arguments)
    else:
        make, fields = _OF_OPTIM[options.name]
        values = {name: getattr(options, option) for option, name in fields.items()}
        values |= {name: (getattr(options, one), getattr(options, two)) for name, (one, two) in _PAIRS.items() if hasattr(options, one)}
    if weight_decay is not None:
        values["weight_decay"] = weight_decay
    with scope.using(interpreter=None):  # the formula needs an eager parameter, of any shape
        return _rule_of_class(options.name, make, values, options.lr)


def _rule_of_class(name: str, make: Callable[..., Any], values: Mapping[str, Any], lr: float) -> OptimizerUpdate:
    try:
        optimizer = make([zeros(1, 1, requires_grad=True)], lr=lr, **values)
        if isinstance(optimizer, Optimizer):
            return optimizer.rule(optimizer.param_groups[0])
    except JobflowError as error:
        raise ConfigError(f"optimizer.name: {name} cannot update the variables of a train job: {error}") from error
    raise ConfigError(f"optimizer.name: {name} returned {optimizer!r:.80}; name a class derived from jobflow.optim.Optimizer")


# -------------------------------------------------------------------- the optimizer


@dataclass(frozen=True)
class GroupedOptimizer(Minimizer):
    """The optimizer of a configuration: one formula and one schedule per learning rate and weight decay."""

    options: optimizer_schema.Optimizer
    steps: int
    clippings: tuple[Clipping, ...] = ()
    loss_scale_policy: LossScale | None = None
    #: names of variables that multiply the learning rates
    factors: tuple[str, ...] = ()
    #: callbacks with operations in this job
    extensions: tuple[StepExtension, ...] = ()
    loss_scale_factor: float | None = None
    train_step_lbn: str | None = field(default=None)

    def for_job(self, job: TrainJob) -> Self:
        return self

    def selects(self, names: Sequence[str]) -> Sequence[str]:
        return names

    def update(self, parameters: Sequence[Parameter], step: Value, slots: Slots) -> dict[str, Value]:
        """Return the new values of parameters and of their slots, by name."""
        unclipped = parameters
        for clip in self.clippings:
            parameters = clip.clipped(parameters)
        groups: dict[Choice, list[Parameter]] = {}
        for parameter in parameters:
            groups.setdefault(choice_of(self.options, parameter.variable), []).append(parameter)
        factors = [slots(name, TensorType((1,), float64), 1.0, None) for name in self.factors]
        new: dict[str, Value] = {}
        for choice, own in groups.items():
            rule, schedule = rule_of(self.options, choice.weight_decay), schedule_from(self.options, self.steps, choice.lr)
            new.update(updated(own, partial(_same, rule), partial(_rate, schedule, step, factors), step, slots))
        add_operations(self.extensions, unclipped, new, step, slots)
        return new


def _same(rule: OptimizerUpdate, name: str) -> OptimizerUpdate:
    return rule


def _rate(schedule: of.Schedule, step: Value, factors: Sequence[Value], dtype: DType) -> Any:
    if not factors:
        return learning_rate(schedule, step, dtype)
    return ew.cast(reduce(ew.multiply, factors, learning_rate(schedule, step, float64)), dtype)


def optimizer_from(config: schema.TrainConfig, steps: int, *, adjustable: bool = False, extensions: Sequence[StepExtension] = ()) -> Minimizer:
    """Return the configured optimizer.  With `adjustable`, the variable RATE_FACTOR multiplies its learning rates.

    `extensions` are the callbacks with operations in the job.
    With float16 the optimizer has a dynamic loss scale.  Otherwise it halts at non-finite gradients if training.halt_where_not_finite is set.
    """
    options = config.optimizer
    policy: LossScale | None = None
    clippings: list[Clipping] = []
    if options.clip_value is not None:
        clippings.append(clipping.ByValue(options.clip_value))
    if options.clip_norm is not None:
        clippings.append(clipping.by_global_norm(options.clip_norm))
    if config.strategy.precision == "float16":
        policy = loss_scale.dynamic_loss_scale(FIRST_SCALE)
    elif config.training.halt_where_not_finite:
        policy = loss_scale.halt_where_not_finite()
    factors = [*([FACTOR] if isinstance(options.schedule, Plateau) else []), *([RATE_FACTOR] if adjustable else [])]
    return GroupedOptimizer(options, steps, tuple(clippings), policy, tuple(factors), tuple(extensions))
