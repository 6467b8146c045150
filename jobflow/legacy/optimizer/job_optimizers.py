"""Optimizers, which update each variable by the formulas of `jobflow.ops.optimizer_updates`.

An optimizer is a frozen dataclass, so it can be printed, compared and pickled, and several jobs can share one object. The first fields are the
options of the optimizer's formula. Weight decay and the options of all optimizers follow. `OF_YAML` and `OF_OPTIONS` map names in
configurations to optimizers.
"""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, Self, cast

from jobflow.core.dataclass import dataclass
from jobflow.core.errors import ConfigError, JobError, did_you_mean, user_line
from jobflow.core.filters import matches
from jobflow.core.types import Tensor, int64
from jobflow.graph.training import DynamicScale, Halting, Parameter, Slots, updated
from jobflow.legacy.losses import TrainJob, check_loss, job_in_force
from jobflow.legacy.optimizer import named_tensors
from jobflow.legacy.optimizer.clipping import Clipping
from jobflow.legacy.optimizer.loss_scale import LossScale, StaticLossScale
from jobflow.legacy.optimizer.option_ranges import check_fields
from jobflow.legacy.optimizer.schedules import CustomScheduler
from jobflow.legacy.optimizer.warmup import ConstantWarmup, LinearWarmup
from jobflow.ops.optimizer_updates import AdamUpdate, LambUpdate, LarsUpdate, MomentumUpdate, OptimizerUpdate, RmsPropUpdate, SgdUpdate
from jobflow.ops.update import learning_rate

if TYPE_CHECKING:
    from jobflow.graph.ir import Value
    from jobflow.ops.update import Schedule

__all__ = ["LAMB", "LARS", "SGD", "SGDW", "Adam", "AdamW", "CombinedOptimizer", "LazyAdam", "RMSProp"]

#: Names of variables, or a function that returns them when `minimize` is called.
Names = Sequence[str] | Callable[[], Sequence[str]] | None
Patterns = str | Sequence[str] | None


class Minimizer(ABC):
    """The common base class of single and combined optimizers, with `minimize` and the loss scale."""

    loss_scale_factor: float | None
    train_step_lbn: str | None
    loss_scale_policy: LossScale | None

    def minimize(self, losses: Tensor | Sequence[Tensor]) -> None:
        """Minimize the mean of a loss, or the sum of the means of several losses, in every run of the job."""
        what = f"{type(self).__name__}.minimize"
        job = job_in_force(what)
        listed = list(losses) if isinstance(losses, list | tuple) else [losses]
        self._check(f"{what} in job {job.name} at {user_line()}", job)
        job.minimize(self.for_job(job), [check_loss(what, loss) for loss in listed])

    @property
    def dynamic_loss_scale(self) -> DynamicScale | Halting | None:
        """The dynamic loss scale or another rule that may skip an update, or None."""
        return None if self.loss_scale_policy is None else self.loss_scale_policy.dynamic

    @property
    def loss_scale(self) -> float:
        """The factor of the loss gradient; gradients of variables are divided by it."""
        if self.loss_scale_policy is not None:
            return self.loss_scale_policy.scale
        return 1.0 if self.loss_scale_factor is None else float(self.loss_scale_factor)

    @abstractmethod
    def for_job(self, job: TrainJob) -> Self:
        """Return this optimizer with its `variables` resolved to names in `job`; raise JobError for a name that `job` does not have."""

    def _check(self, what: str, job: TrainJob) -> None:
        if self.train_step_lbn is not None:
            named_tensors.check(f"{what}: train_step_lbn", self.train_step_lbn, (int64,), job.tracer.nodes)

    def _step(self, step: Value) -> Value:
        """Return the number of earlier updates: `step`, or the value of the tensor `train_step_lbn`."""
        if self.train_step_lbn is None:
            return step
        return cast("Value", named_tensors.read("train_step_lbn", self.train_step_lbn, int64))

    def _check_scales(self) -> None:
        if self.loss_scale_factor is not None:
            StaticLossScale(self.loss_scale_factor)
            if self.loss_scale_policy is not None:
                raise ConfigError(f"{type(self).__name__} at {user_line()}: pass loss_scale_factor or loss_scale_policy, not both")
        if self.loss_scale_policy is not None and not isinstance(self.loss_scale_policy, LossScale):
            advice = "pass loss_scale.static_loss_scale(factor) or loss_scale.dynamic_loss_scale()"
            raise ConfigError(f"{type(self).__name__} at {user_line()}: loss_scale_policy is {self.loss_scale_policy!r}; {advice}")


def _texts(what: str, name: str, arguments: Any) -> tuple[str, ...]:
    """Return a list of strings as a tuple; raise ConfigError for other values."""
    listed = tuple(arguments) if isinstance(arguments, Iterable) and not isinstance(arguments, str) else (None,)
    if not all(isinstance(each, str) for each in listed):
        raise ConfigError(f"{what}: {name} must be a list of strings, not {arguments!r}")
    return cast("tuple[str, ...]", listed)


@dataclass(frozen=True)
class Options(ABC):
    """The first fields of an optimizer: the learning rate and the coefficients of its formula."""

    lr_scheduler: Schedule

    @abstractmethod
    def step_op(self, variable: str) -> OptimizerUpdate:
        """Return the op that updates `variable`."""

    def decay_of(self, variable: str) -> float:
        """Return the weight decay of a variable."""
        return 0.0


@dataclass(frozen=True)
class Single(Minimizer, Options):
    """An optimizer with a schedule, clipping, and one update op per variable."""

    loss_scale_factor: float | None = None
    grad_clipping: Clipping | None = None
    train_step_lbn: str | None = None
    loss_scale_policy: LossScale | None = None
    variables: Names = None

    def __post_init__(self) -> None:
        what = f"{type(self).__name__} at {user_line()}"
        check_fields(self, what)
        if not hasattr(self.lr_scheduler, "rate") or isinstance(self.lr_scheduler, ConstantWarmup | LinearWarmup):
            advice = "pass a schedule, for example optimizer.PiecewiseConstantScheduler([], [0.1])"
            raise ConfigError(f"{what}: lr_scheduler is {self.lr_scheduler!r}; {advice}")
        if self.variables is not None and not callable(self.variables):
            object.__setattr__(self, "variables", _texts(what, "variables", self.variables))
        if self.grad_clipping is not None and not hasattr(self.grad_clipping, "clipped"):
            raise ConfigError(f"{what}: grad_clipping is {self.grad_clipping!r}; pass grad_clipping.by_global_norm(n)")
        self._check_scales()

    def for_job(self, job: TrainJob) -> Self:
        if self.variables is None:
            return self
        what = f"{type(self).__name__}.minimize in job {job.name} at {user_line()}"
        names = _texts(what, "variables", self.variables() if callable(self.variables) else self.variables)
        for name in names:
            if name not in job.variables:
                raise JobError(f'{what}: the job has no variable "{name}"{did_you_mean(name, job.variables)}')
        return replace(self, variables=names)

    def selects(self, names: Sequence[str]) -> Sequence[str]:
        if self.variables is None:
            return names
        chosen = set(self.variables() if callable(self.variables) else self.variables)
        return [name for name in names if name in chosen]

    def update(self, parameters: Sequence[Parameter], step: Value, slots: Slots) -> dict[str, Value]:
        """Return the new values of the variables in `parameters` and of their slots, by name."""
        if not parameters:
            return {}
        if self.grad_clipping is not None:
            parameters = self.grad_clipping.clipped(parameters)
        step, schedule = self._step(step), self.lr_scheduler
        rate_of = schedule.tensor if isinstance(schedule, CustomScheduler) else partial(learning_rate, schedule, step)
        return updated(parameters, self.step_op, rate_of, step, slots)

    def _check(self, what: str, job: TrainJob) -> None:
        super()._check(what, job)
        if isinstance(self.lr_scheduler, CustomScheduler):
            self.lr_scheduler.check(what, job.tracer.nodes)


@dataclass(frozen=True)
class Decay(Options):
    """The first fields of an optimizer with weight decay."""

    loss_scale_factor: float | None = None
    weight_decay: float | None = None
    weight_decay_includes: Patterns = None
    weight_decay_excludes: Patterns = None


@dataclass(frozen=True)
class Decaying(Single, Decay):
    """An optimizer with decoupled weight decay for the variables that the patterns select."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.weight_decay_includes is not None and self.weight_decay_excludes is not None:
            raise ConfigError(f"{type(self).__name__} at {user_line()}: pass weight_decay_includes or weight_decay_excludes, not both")
        for field in ("weight_decay_includes", "weight_decay_excludes"):
            object.__setattr__(self, field, self._patterns(field, getattr(self, field)))

    def _patterns(self, field: str, arguments: Any) -> tuple[str, ...] | None:
        if arguments is None:
            return None
        what = f"{type(self).__name__} at {user_line()}"
        patterns = (arguments,) if isinstance(arguments, str) else _texts(what, field, arguments)
        for pattern in patterns:
            try:
                re.compile(pattern)
            except re.error as error:
                raise ConfigError(f"{what}: {field} {pattern!r} must be a regular expression: {error}") from None
        return patterns

    def decay_of(self, variable: str) -> float:
        """Return `weight_decay` if the patterns select the variable, and 0 otherwise; a pattern may match any substring of the name."""
        includes, excludes = self.weight_decay_includes, self.weight_decay_excludes
        decays = _found(includes, variable) if includes is not None else not _found(excludes, variable)
        return (self.weight_decay or 0.0) if decays else 0.0


def _found(patterns: Patterns, name: str) -> bool:
    return matches([re.compile(pattern) for pattern in patterns or ()], name)


@dataclass(frozen=True)
class Descent(Options):
    """The options of gradient descent: the momentum."""

    loss_scale_factor: float | None = None
    momentum: float = 0.9

    def step_op(self, variable: str) -> OptimizerUpdate:
        decay = self.decay_of(variable)
        return MomentumUpdate(self.momentum, decay) if self.momentum else SgdUpdate(decay)


@dataclass(frozen=True)
class SGD(Single, Descent):
    """Stochastic gradient descent: w' = w - lr g; with momentum v' = momentum v - lr g and w' = w + v'.  Slot: momentum.

    Examples:
        >>> import jobflow.typing as tp
        >>> @flow.global_function(type="train")
        ... def step(x: tp.Numpy.Placeholder((8, 4))) -> tp.Numpy:
        ...     loss = flow.math.square(flow.layers.dense(x, 1, name="fc"))
        ...     rates = flow.optimizer.PiecewiseConstantScheduler([], [0.1])
        ...     flow.optimizer.SGD(rates, momentum=0.9).minimize(loss)
        ...     return loss
        ...
        >>> step(np.ones((8, 4), np.float32)).shape
        (8, 1)
    """


@dataclass(frozen=True)
class SGDW(Decaying, Descent):
    """SGD with decoupled weight decay, which subtracts lr weight_decay w from the new value.  Slot: momentum."""


@dataclass(frozen=True)
class Moments(Options):
    """The options of an optimizer with moving means of the gradient and of its square."""

    beta1: float = 0.9
    beta2: float = 0.999
    epsilon: float = 1e-08


@dataclass(frozen=True)
class Corrected(Moments):
    """The options of Adam and AdamW."""

    do_bias_correction: bool = False

    def step_op(self, variable: str) -> OptimizerUpdate:
        return AdamUpdate(self.beta1, self.beta2, self.epsilon, self.decay_of(variable), self.do_bias_correction)


@dataclass(frozen=True)
class Adam(Single, Corrected):
    """Adam, by default without bias correction.  Slots: m, v."""


@dataclass(frozen=True)
class AdamW(Decaying, Corrected):
    """Adam with decoupled weight decay.  Slots: m, v."""


@dataclass(frozen=True)
class LazyAdam(Single, Moments):
    """Adam with bias correction, which updates every row in every step.  Slots: m, v."""

    def step_op(self, variable: str) -> OptimizerUpdate:
        return AdamUpdate(self.beta1, self.beta2, self.epsilon, bias_correction=True)


@dataclass(frozen=True)
class MeanSquare(Options):
    """The options of RMSProp."""

    decay_rate: float = 0.99
    epsilon: float = 1e-08
    centered: bool = False


@dataclass(frozen=True)
class RMSProp(Single, MeanSquare):
    """RMSProp: s' = d s + (1 - d) g^2, w' = w - lr g / sqrt(s' + epsilon), optionally centered by the mean gradient.

    Slots: mean_square, mean_gradient.
    """

    def step_op(self, variable: str) -> OptimizerUpdate:
        return RmsPropUpdate(self.decay_rate, self.epsilon, self.centered)


@dataclass(frozen=True)
class LocalRates(Options):
    """The options of LARS."""

    momentum_beta: float = 0.9
    epsilon: float = 1e-09
    lars_coefficient: float = 0.0001


@dataclass(frozen=True)
class LARS(Decaying, LocalRates):
    """Momentum SGD with a learning rate per variable proportional to |w| / |g|.  Slot: momentum."""

    def step_op(self, variable: str) -> OptimizerUpdate:
        return LarsUpdate(self.momentum_beta, self.epsilon, self.lars_coefficient, self.decay_of(variable))


@dataclass(frozen=True)
class LAMB(Decaying, Moments):
    """Adam with the update of each variable w scaled to the norm |w|.  Slots: m, v, and the scalars beta1_t, beta2_t."""

    epsilon: float = 1e-06

    def step_op(self, variable: str) -> OptimizerUpdate:
        return LambUpdate(self.beta1, self.beta2, self.epsilon, self.decay_of(variable))


@dataclass(frozen=True)
class CombinedOptimizer(Minimizer):
    """An optimizer composed of several optimizers for disjoint sets of variables; together they update all trained variables."""

    optimizers: Sequence[Single]
    loss_scale_factor: float | None = None
    train_step_lbn: str | None = None
    loss_scale_policy: LossScale | None = None

    def __post_init__(self) -> None:
        if not isinstance(self.optimizers, list | tuple):
            raise ConfigError(f"CombinedOptimizer at {user_line()}: optimizers must be a list, not {self.optimizers!r}")
        object.__setattr__(self, "optimizers", tuple(self.optimizers))
        for child in self.optimizers:
            if not isinstance(child, Single):
                raise ConfigError(
                    f"CombinedOptimizer at {user_line()}: optimizers must contain SGD, Adam, ..., not {child!r}; combined optimizers cannot be nested"
                )
            if child.loss_scale_factor is not None or child.loss_scale_policy is not None or child.train_step_lbn is not None:
                what = f"CombinedOptimizer at {user_line()}: {type(child).__name__}"
                raise ConfigError(f"{what} has a loss scale or train step; pass it to CombinedOptimizer instead")
        self._check_scales()

    def _check(self, what: str, job: TrainJob) -> None:
        super()._check(what, job)
        for child in self.optimizers:
            child._check(what, job)

    def for_job(self, job: TrainJob) -> Self:
        return replace(self, optimizers=tuple(child.for_job(job) for child in self.optimizers))

    def selects(self, names: Sequence[str]) -> Sequence[str]:
        owner: dict[str, int] = {}
        for i, child in enumerate(self.optimizers):
            for name in child.selects(names):
                if name in owner:
                    raise JobError(
                        f'CombinedOptimizer: variable "{name}" belongs to optimizers {owner[name]} and {i}; '
                        "list the variable in the `variables` of only one optimizer"
                    )
                owner[name] = i
        missing = [name for name in names if name not in owner]
        if missing:
            raise JobError(f"CombinedOptimizer: no optimizer updates {', '.join(missing)}; add each variable to the `variables` of one optimizer")
        return list(names)

    def update(self, parameters: Sequence[Parameter], step: Value, slots: Slots) -> dict[str, Value]:
        """Return the new values of the variables in `parameters` and of their slots, by name."""
        new: dict[str, Value] = {}
        step = self._step(step)
        for child in self.optimizers:
            chosen = set(child.selects([p.variable.name for p in parameters]))
            new.update(child.update([p for p in parameters if p.variable.name in chosen], step, slots))
        return new


#: constructor of a configured object, and its field names by option
Kind = tuple[Callable[..., Any], dict[str, str]]


def kind(make: Callable[..., Any], options: str = "") -> Kind:
    """Return the constructor `make` and a dict from option names to field names; `options` contains words "field" or "option=field"."""
    pairs = (word.partition("=") for word in options.split())
    return make, {option: field or option for option, _, field in pairs}


_MOMENTS = "beta1 beta2 epsilon"

#: optimizers by `optimizer.name` in YAML files
OF_YAML = {
    "sgd": kind(partial(SGDW, momentum=0.0), "weight_decay"),
    "momentum": kind(SGDW, "momentum weight_decay"),
    "adam": kind(Adam, f"{_MOMENTS} bias_correction=do_bias_correction"),
    "adamw": kind(AdamW, f"{_MOMENTS} bias_correction=do_bias_correction weight_decay"),
    "lamb": kind(LAMB, f"{_MOMENTS} weight_decay"),
    "lars": kind(LARS, "momentum=momentum_beta epsilon coefficient=lars_coefficient weight_decay"),
    "rmsprop": kind(RMSProp, "decay_rate epsilon centered"),
}
#: optimizers by key in function_config.train.model_update_conf, which configures weight decay separately
OF_OPTIONS = {
    "naive_conf": kind(partial(SGDW, momentum=0.0)),
    "momentum_conf": kind(SGDW, "beta=momentum"),
    "rmsprop_conf": kind(RMSProp, "decay_rate epsilon centered"),
    "lars_conf": kind(LARS, "momentum_beta epsilon lars_coefficient"),
    "adam_conf": kind(AdamW, f"{_MOMENTS} do_bias_correction"),
    "lazy_adam_conf": kind(partial(AdamW, do_bias_correction=True), _MOMENTS),
    "lamb_conf": kind(LAMB, _MOMENTS),
}
