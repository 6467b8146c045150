"""Optimizers: which update op a variable gets, with which slots; the formulas are those of `jobflow.ops.update`.

An optimizer is a frozen dataclass, so it prints, compares and pickles, and one object may serve many jobs.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Self

from jobflow.core.errors import ConfigError, JobError, did_you_mean, user_line
from jobflow.core.layout import Broadcast
from jobflow.core.types import Tensor
from jobflow.graph.training import DynamicScale, Halting, Parameter, Slots
from jobflow.legacy.losses import TrainJob, check_loss, job_in_force
from jobflow.legacy.optimizer.clipping import Clipping
from jobflow.legacy.optimizer.loss_scale import DynamicLossScale, HaltWhereNotFinite, LossScale, StaticLossScale
from jobflow.ops.base import Op, apply
from jobflow.ops.update import AdamUpdate, LambUpdate, LarsUpdate, MomentumUpdate, RmsPropUpdate, SgdUpdate, learning_rate, rate_dtype

if TYPE_CHECKING:
    from jobflow.graph.ir import Value, Variable
    from jobflow.ops.update import Schedule

#: Names of variables, or a function that gives them when `minimize` is called.
Names = Sequence[str] | Callable[[], Sequence[str]] | None
Patterns = str | Sequence[str] | None


@dataclass(frozen=True)
class Slot:
    """A variable of the optimizer, named ``<variable>-<suffix>``: of the variable's shape, or one number."""

    suffix: str
    initial: float = 0.0
    scalar: bool = False


class Minimizer:
    """What single and combined optimizers share: `minimize`, and the loss scale."""

    loss_scale_factor: float | None
    train_step_lbn: str | None
    loss_scale_policy: LossScale | None

    def minimize(self, losses: Tensor | Sequence[Tensor]) -> None:
        """Have this optimizer minimise the mean of a loss, or the sum of the means of several, in every run of the job."""
        what = f"{type(self).__name__}.minimize"
        job = job_in_force(what)
        listed = list(losses) if isinstance(losses, list | tuple) else [losses]
        self._check(f"{what} in job {job.name} at {user_line()}")
        job.minimize(self.for_job(job), [check_loss(what, loss) for loss in listed])

    @property
    def dynamic_loss_scale(self) -> DynamicScale | Halting | None:
        """The loss scale that changes from step to step, or what else may skip a step, if there is one."""
        policy = self.loss_scale_policy
        if isinstance(policy, HaltWhereNotFinite):
            return Halting()
        if not isinstance(policy, DynamicLossScale):
            return None
        return DynamicScale(float(policy.initial_loss_scale), int(policy.increment_period), float(policy.multiplier))

    @property
    def loss_scale(self) -> float:
        """Factor on the loss gradient that is divided out of the variables' gradients again."""
        if isinstance(self.loss_scale_policy, StaticLossScale):
            return float(self.loss_scale_policy.loss_scale_factor)
        return 1.0 if self.loss_scale_factor is None else float(self.loss_scale_factor)

    def for_job(self, job: TrainJob) -> Self:
        """This optimizer with its variables named, as far as `job` knows them."""
        raise NotImplementedError

    def _check(self, what: str) -> None:
        if self.train_step_lbn is not None:
            raise JobError(f"{what}: train_step_lbn is not supported yet; leave it out, and the job counts its own steps")

    def _check_scales(self) -> None:
        if self.loss_scale_factor is not None:
            StaticLossScale(self.loss_scale_factor)
            if self.loss_scale_policy is not None:
                raise ConfigError(f"{type(self).__name__} at {user_line()}: give loss_scale_factor or loss_scale_policy, not both")
        if self.loss_scale_policy is not None and not isinstance(self.loss_scale_policy, LossScale):
            advice = "pass loss_scale.static_loss_scale(factor) or loss_scale.dynamic_loss_scale()"
            raise ConfigError(f"{type(self).__name__} at {user_line()}: loss_scale_policy is {self.loss_scale_policy!r}; {advice}")


class Single(Minimizer):
    """An optimizer of its own: schedule, clipping, and one update op per variable."""

    lr_scheduler: Schedule
    grad_clipping: Clipping | None
    variables: Names

    def __post_init__(self) -> None:
        what = f"{type(self).__name__} at {user_line()}"
        if not hasattr(self.lr_scheduler, "rate"):
            advice = "pass a schedule, for example optimizer.PiecewiseConstantScheduler([], [0.1])"
            raise ConfigError(f"{what}: lr_scheduler is {self.lr_scheduler!r}; {advice}")
        if isinstance(self.variables, str):
            raise ConfigError(f"{what}: variables is the text {self.variables!r}; pass a list of names")
        if self.grad_clipping is not None and not hasattr(self.grad_clipping, "clipped"):
            raise ConfigError(f"{what}: grad_clipping is {self.grad_clipping!r}; pass grad_clipping.by_global_norm(n)")
        self._check_scales()

    def step_op(self, variable: str) -> Op:
        """The op that updates `variable`."""
        raise NotImplementedError

    def slots(self) -> tuple[Slot, ...]:
        """The optimizer's own variables for each variable, in the order of the op's inputs."""
        return ()

    #: True if the op reads the train step
    reads_step = False

    def for_job(self, job: TrainJob) -> Self:
        if self.variables is None:
            return self
        names = tuple(self.variables() if callable(self.variables) else self.variables)
        for name in names:
            if name not in job.variables:
                what = f"{type(self).__name__}.minimize in job {job.name} at {user_line()}"
                raise JobError(f'{what}: the job has no variable "{name}"{did_you_mean(name, job.variables)}')
        changed: Self = replace(self, variables=names)  # type: ignore[type-var]
        return changed

    def selects(self, names: Sequence[str]) -> Sequence[str]:
        if self.variables is None:
            return names
        chosen = set(self.variables() if callable(self.variables) else self.variables)
        return [name for name in names if name in chosen]

    def update(self, parameters: Sequence[Parameter], step: Value, slots: Slots) -> dict[str, Value]:
        """New values by name of variable and slot."""
        if not parameters:
            return {}
        if self.grad_clipping is not None:
            parameters = self.grad_clipping.clipped(parameters)
        dtypes = {parameter.variable.name: rate_dtype(parameter.variable.type.dtype) for parameter in parameters}
        rates = {dtype: learning_rate(self.lr_scheduler, step, dtype) for dtype in dict.fromkeys(dtypes.values())}
        new: dict[str, Value] = {}
        for parameter in parameters:
            new.update(self._updated(parameter, rates[dtypes[parameter.variable.name]], step, slots))
        return new

    def _updated(self, parameter: Parameter, rate: Tensor, step: Value, slots: Slots) -> dict[str, Value]:
        variable = parameter.variable
        own = {f"{variable.name}-{slot.suffix}": slot for slot in self.slots()}
        values = [_slot_value(name, slot, variable, slots) for name, slot in own.items()]
        last = (rate, step) if self.reads_step else (rate,)
        new = apply(self.step_op(variable.name), parameter.value, *values, parameter.gradient, *last)
        return dict(zip((variable.name, *own), new if own else (new,), strict=True))


def _slot_value(name: str, slot: Slot, variable: Variable, slots: Slots) -> Value:
    if not slot.scalar:
        return slots(name, variable.type, slot.initial, variable)
    whole = all(isinstance(sbp, Broadcast) for sbp in variable.sbp)
    return slots(name, variable.type.with_shape((1,)), slot.initial, variable if whole else None)


class Decaying(Single):
    """An optimizer with decoupled weight decay for the variables whose names match."""

    weight_decay: float | None
    weight_decay_includes: Patterns
    weight_decay_excludes: Patterns

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.weight_decay_includes is not None and self.weight_decay_excludes is not None:
            raise ConfigError(f"{type(self).__name__} at {user_line()}: give weight_decay_includes or weight_decay_excludes, not both")
        for field in ("weight_decay_includes", "weight_decay_excludes"):
            object.__setattr__(self, field, self._patterns(field, getattr(self, field)))

    def _patterns(self, field: str, given: Any) -> tuple[str, ...] | None:
        if given is None:
            return None
        patterns = (given,) if isinstance(given, str) else tuple(given)
        for pattern in patterns:
            try:
                re.compile(pattern)
            except (re.error, TypeError) as error:
                raise ConfigError(f"{type(self).__name__} at {user_line()}: {field}: {pattern!r} is no regular expression: {error}") from None
        return patterns

    def decay_of(self, variable: str) -> float:
        """The weight decay of a variable; a pattern matches if it is found anywhere in the name."""
        if self.weight_decay_includes is not None and not _found(self.weight_decay_includes, variable):
            return 0.0
        if self.weight_decay_excludes is not None and _found(self.weight_decay_excludes, variable):
            return 0.0
        return self.weight_decay or 0.0


def _found(patterns: Patterns, name: str) -> bool:
    return any(re.search(pattern, name) for pattern in patterns or ())


@dataclass(frozen=True)
class SGD(Single):
    """w' = w - lr g; with momentum v' = momentum v - lr g, w' = w + v'.  Slot: momentum."""

    lr_scheduler: Schedule
    loss_scale_factor: float | None = None
    momentum: float = 0.9
    grad_clipping: Clipping | None = None
    train_step_lbn: str | None = None
    loss_scale_policy: LossScale | None = None
    variables: Names = None

    def slots(self) -> tuple[Slot, ...]:
        return (Slot("momentum"),) if self.momentum else ()

    def step_op(self, variable: str) -> Op:
        return MomentumUpdate(self.momentum) if self.momentum else SgdUpdate()


@dataclass(frozen=True)
class SGDW(Decaying):
    """SGD with decoupled weight decay: w' additionally loses lr weight_decay w.  Slot: momentum."""

    lr_scheduler: Schedule
    loss_scale_factor: float | None = None
    momentum: float = 0.9
    weight_decay: float | None = None
    weight_decay_includes: Patterns = None
    weight_decay_excludes: Patterns = None
    grad_clipping: Clipping | None = None
    train_step_lbn: str | None = None
    loss_scale_policy: LossScale | None = None
    variables: Names = None

    def slots(self) -> tuple[Slot, ...]:
        return (Slot("momentum"),) if self.momentum else ()

    def step_op(self, variable: str) -> Op:
        decay = self.decay_of(variable)
        return MomentumUpdate(self.momentum, decay) if self.momentum else SgdUpdate(decay)


@dataclass(frozen=True)
class Adam(Single):
    """Adam; without bias correction unless `do_bias_correction`.  Slots: m, v."""

    lr_scheduler: Schedule
    beta1: float = 0.9
    beta2: float = 0.999
    epsilon: float = 1e-08
    do_bias_correction: bool = False
    loss_scale_factor: float | None = None
    grad_clipping: Clipping | None = None
    train_step_lbn: str | None = None
    loss_scale_policy: LossScale | None = None
    variables: Names = None

    reads_step = True

    def slots(self) -> tuple[Slot, ...]:
        return Slot("m"), Slot("v")

    def step_op(self, variable: str) -> Op:
        return AdamUpdate(self.beta1, self.beta2, self.epsilon, 0.0, self.do_bias_correction)


@dataclass(frozen=True)
class AdamW(Decaying):
    """Adam with decoupled weight decay.  Slots: m, v."""

    lr_scheduler: Schedule
    beta1: float = 0.9
    beta2: float = 0.999
    epsilon: float = 1e-08
    do_bias_correction: bool = False
    loss_scale_factor: float | None = None
    weight_decay: float | None = None
    weight_decay_includes: Patterns = None
    weight_decay_excludes: Patterns = None
    grad_clipping: Clipping | None = None
    train_step_lbn: str | None = None
    loss_scale_policy: LossScale | None = None
    variables: Names = None

    reads_step = True

    def slots(self) -> tuple[Slot, ...]:
        return Slot("m"), Slot("v")

    def step_op(self, variable: str) -> Op:
        return AdamUpdate(self.beta1, self.beta2, self.epsilon, self.decay_of(variable), self.do_bias_correction)


@dataclass(frozen=True)
class LazyAdam(Single):
    """Adam with bias correction; every row is updated in every step.  Slots: m, v."""

    lr_scheduler: Schedule
    beta1: float = 0.9
    beta2: float = 0.999
    epsilon: float = 1e-08
    loss_scale_factor: float | None = None
    grad_clipping: Clipping | None = None
    train_step_lbn: str | None = None
    loss_scale_policy: LossScale | None = None
    variables: Names = None

    reads_step = True

    def slots(self) -> tuple[Slot, ...]:
        return Slot("m"), Slot("v")

    def step_op(self, variable: str) -> Op:
        return AdamUpdate(self.beta1, self.beta2, self.epsilon, 0.0, True)


@dataclass(frozen=True)
class RMSProp(Single):
    """s' = d s + (1 - d) g^2, w' = w - lr g / sqrt(s' + epsilon); centred by the mean gradient.  Slots: mean_square, mean_gradient."""

    lr_scheduler: Schedule
    decay_rate: float = 0.99
    epsilon: float = 1e-08
    centered: bool = False
    loss_scale_factor: float | None = None
    grad_clipping: Clipping | None = None
    train_step_lbn: str | None = None
    loss_scale_policy: LossScale | None = None
    variables: Names = None

    def slots(self) -> tuple[Slot, ...]:
        return (Slot("mean_square"), Slot("mean_gradient")) if self.centered else (Slot("mean_square"),)

    def step_op(self, variable: str) -> Op:
        return RmsPropUpdate(self.decay_rate, self.epsilon, self.centered)


@dataclass(frozen=True)
class LARS(Decaying):
    """Momentum with a rate per variable in proportion to |w| / |g|.  Slot: momentum."""

    lr_scheduler: Schedule
    momentum_beta: float = 0.9
    epsilon: float = 1e-09
    lars_coefficient: float = 0.0001
    loss_scale_factor: float | None = None
    weight_decay: float | None = None
    weight_decay_includes: Patterns = None
    weight_decay_excludes: Patterns = None
    grad_clipping: Clipping | None = None
    train_step_lbn: str | None = None
    loss_scale_policy: LossScale | None = None
    variables: Names = None

    def slots(self) -> tuple[Slot, ...]:
        return (Slot("momentum"),)

    def step_op(self, variable: str) -> Op:
        return LarsUpdate(self.momentum_beta, self.epsilon, self.lars_coefficient, self.decay_of(variable))


@dataclass(frozen=True)
class LAMB(Decaying):
    """Adam's direction, scaled to |w| per variable.  Slots: m, v, and the numbers beta1_t, beta2_t."""

    lr_scheduler: Schedule
    beta1: float = 0.9
    beta2: float = 0.999
    epsilon: float = 1e-06
    loss_scale_factor: float | None = None
    weight_decay: float | None = None
    weight_decay_includes: Patterns = None
    weight_decay_excludes: Patterns = None
    grad_clipping: Clipping | None = None
    train_step_lbn: str | None = None
    loss_scale_policy: LossScale | None = None
    variables: Names = None

    def slots(self) -> tuple[Slot, ...]:
        return Slot("m"), Slot("v"), Slot("beta1_t", self.beta1, scalar=True), Slot("beta2_t", self.beta2, scalar=True)

    def step_op(self, variable: str) -> Op:
        return LambUpdate(self.beta1, self.beta2, self.epsilon, self.decay_of(variable))


@dataclass(frozen=True)
class CombinedOptimizer(Minimizer):
    """Several optimizers, each for its own variables: every trained variable belongs to exactly one."""

    optimizers: Sequence[Single]
    loss_scale_factor: float | None = None
    train_step_lbn: str | None = None
    loss_scale_policy: LossScale | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "optimizers", tuple(self.optimizers))
        for child in self.optimizers:
            if not isinstance(child, Single):
                raise ConfigError(f"CombinedOptimizer at {user_line()}: {child!r} is not one of SGD, Adam, ...; combined optimizers do not nest")
            if child.loss_scale_factor is not None or child.loss_scale_policy is not None or child.train_step_lbn is not None:
                what = f"CombinedOptimizer at {user_line()}: {type(child).__name__}"
                raise ConfigError(f"{what} has a loss scale or train step of its own; give it to CombinedOptimizer")
        self._check_scales()

    def for_job(self, job: TrainJob) -> Self:
        return replace(self, optimizers=tuple(child.for_job(job) for child in self.optimizers))

    def selects(self, names: Sequence[str]) -> Sequence[str]:
        owner: dict[str, int] = {}
        for i, child in enumerate(self.optimizers):
            for name in child.selects(names):
                if name in owner:
                    raise JobError(f'CombinedOptimizer: variable "{name}" belongs to optimizers {owner[name]} and {i}; name it in one `variables=`')
                owner[name] = i
        missing = [name for name in names if name not in owner]
        if missing:
            raise JobError(f"CombinedOptimizer: no optimizer updates {', '.join(missing)}; name each trained variable in one `variables=`")
        return list(names)

    def update(self, parameters: Sequence[Parameter], step: Value, slots: Slots) -> dict[str, Value]:
        """New values by name of variable and slot."""
        new: dict[str, Value] = {}
        for child in self.optimizers:
            chosen = set(child.selects([p.variable.name for p in parameters]))
            new.update(child.update([p for p in parameters if p.variable.name in chosen], step, slots))
        return new
