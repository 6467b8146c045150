"""The optimizer and the schedule of a configuration as objects of jobflow.optimizer."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from jobflow.core.errors import counted
from jobflow.legacy.optimizer import clipping, loss_scale, warmup
from jobflow.legacy.optimizer import schedules as of
from jobflow.legacy.optimizer.job_optimizers import OF_YAML, Minimizer
from jobflow.trainer.config import Loaded, schema

#: initial loss scale with float16; each overflow of a gradient reduces the scale and skips a step
FIRST_SCALE = 2.0**15
#: the variable that multiplies the rates of the schedule, in runs whose callbacks may change the learning rate
RATE_FACTOR = "System-Train-LearningRateFactor"


def schedule_from(options: schema.Optimizer, steps: int) -> of.Schedule:
    """Return the learning rate schedule of these options, with its warm-up.

    `steps` is the length of the training, at which a cosine or linear or polynomial schedule ends by default.
    """
    lr, plan = options.lr, options.schedule
    rising = warmup.linear(options.warmup_steps, 1 / options.warmup_steps) if options.warmup_steps else None
    match plan:
        case schema.Constant():
            return of.PiecewiseConstantScheduler([], [lr], warmup=rising)
        case schema.Cosine():
            return of.CosineScheduler(lr, plan.steps or steps, plan.alpha, warmup=rising)
        case schema.Linear():
            return of.PolynomialScheduler(lr, plan.steps or steps, plan.end_lr, 1.0, warmup=rising)
        case schema.Polynomial():
            return of.PolynomialScheduler(lr, plan.steps or steps, plan.end_lr, plan.power, plan.cycle, warmup=rising)
        case schema.Exponential():
            return of.ExponentialScheduler(lr, plan.steps, plan.decay_rate, plan.staircase, warmup=rising)
        case schema.Piecewise():
            return of.PiecewiseScalingScheduler(lr, list(plan.boundaries), list(plan.scales), warmup=rising)


def slow_start(loaded: Loaded, steps: int) -> Iterator[str]:
    """Yield a warning if the learning rate of a run never reaches its configured value."""
    options = loaded.config.optimizer
    if options.warmup_steps >= steps > 0:
        key = "optimizer.warmup_steps"
        length = counted(steps, "step")
        yield f"{loaded.origin(key)}: {key} is {options.warmup_steps:,}, and the run has {length}: the rate stays below {options.lr:g}"


def optimizer_from(config: schema.TrainConfig, steps: int, *, adjustable: bool = False) -> Minimizer:
    """Return the configured optimizer.  With `adjustable`, the variable RATE_FACTOR multiplies its learning rates.

    With float16 the optimizer has a dynamic loss scale.  Otherwise it halts at non-finite gradients if training.halt_where_not_finite is set.
    """
    options = config.optimizer
    schedule = schedule_from(options, steps)
    shared: dict[str, Any] = {"lr_scheduler": of.MultipliedSchedule(schedule, RATE_FACTOR) if adjustable else schedule}
    if options.clip_norm is not None:
        shared["grad_clipping"] = clipping.by_global_norm(options.clip_norm)
    if config.strategy.precision == "float16":
        shared["loss_scale_policy"] = loss_scale.dynamic_loss_scale(FIRST_SCALE)
    elif config.training.halt_where_not_finite:
        shared["loss_scale_policy"] = loss_scale.halt_where_not_finite()
    make, fields = OF_YAML[options.name]
    return make(**shared, **{field: getattr(options, option) for option, field in fields.items()})
