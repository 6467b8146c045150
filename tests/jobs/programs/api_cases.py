"""Options that all training APIs share: optimizers, schedules, clipping, accumulation; docs/jobs_and_tensors.md lists them."""

from __future__ import annotations

import math
from typing import Any

from training_apis import Case

import jobflow as flow
from jobflow import optim
from jobflow.optim import lr_scheduler as rates

jobs = flow.optimizer
#: an epsilon that float64 adds to nothing here, so that it does not matter where it is added
TINY = 1e-30


def constant(rate: float, warmup: Any = None) -> Any:
    return jobs.PiecewiseConstantScheduler([], [rate], warmup)


def plain(kind: Any, *arguments: Any, **options: Any) -> Any:
    """Return a function of parameters that creates an optimizer without schedule."""
    return lambda params: (kind(params, *arguments, **options), None)


def clipped(params: Any) -> Any:
    return optim.SGD([{"params": params, "clip_grad_max_norm": 1.0}], 0.5, momentum=0.9), None


def two(params: Any) -> Any:
    """Return parameter groups with separate options."""
    return optim.SGD([{"params": params[:2], "lr": 0.5}, {"params": params[2:], "momentum": 0.9}], 0.1), None


def two_in_a_job() -> Any:
    hidden, output = ["hidden-weight", "hidden-bias"], ["output-weight", "output-bias"]
    return jobs.CombinedOptimizer([
        jobs.SGD(constant(0.5), momentum=0, variables=hidden), jobs.SGD(constant(0.1), momentum=0.9, variables=output),
    ])  # fmt: skip


OPTIMIZERS: dict[str, Case] = {
    "sgd": Case(plain(optim.SGD, 0.5), lambda: jobs.SGD(constant(0.5), momentum=0)),
    "sgd, decay": Case(plain(optim.SGD, 0.5, weight_decay=0.1), lambda: jobs.SGDW(constant(0.5), momentum=0, weight_decay=0.1)),
    "sgd, decay as l2": Case(plain(optim.SGD, 0.5, weight_decay=0.1), lambda: jobs.SGD(constant(0.5), momentum=0), l2=0.1),
    "momentum, constant rate": Case(plain(optim.SGD, 0.1, momentum=0.9), lambda: jobs.SGD(constant(0.1), momentum=0.9)),
    "momentum, decay as l2": Case(plain(optim.SGD, 0.1, momentum=0.9, weight_decay=0.1), lambda: jobs.SGD(constant(0.1)), l2=0.1),
    "adam, uncorrected": Case(
        plain(optim.Adam, 0.01, eps=1e-3, do_bias_correction=False), lambda: jobs.Adam(constant(0.01), epsilon=1e-3)
    ),
    "adam, eps nothing": Case(
        plain(optim.Adam, 0.05, (0.8, 0.95), eps=TINY), lambda: jobs.Adam(constant(0.05), 0.8, 0.95, TINY, do_bias_correction=True)
    ),
    "adam, decay as l2": Case(
        plain(optim.Adam, 0.05, eps=TINY, weight_decay=0.1), lambda: jobs.Adam(constant(0.05), epsilon=TINY, do_bias_correction=True), l2=0.1
    ),
    "lazy adam": Case(plain(optim.Adam, 0.05, eps=TINY), lambda: jobs.LazyAdam(constant(0.05), epsilon=TINY)),
    "adamw, uncorrected": Case(
        plain(optim.AdamW, 0.01, eps=1e-3, weight_decay=0.5, do_bias_correction=False),
        lambda: jobs.AdamW(constant(0.01), epsilon=1e-3, weight_decay=0.5),
    ),
    "rmsprop, eps nothing": Case(plain(optim.RMSprop, 0.01, 0.9, TINY), lambda: jobs.RMSProp(constant(0.01), 0.9, TINY)),
    "rmsprop, centered": Case(
        plain(optim.RMSprop, 0.01, 0.9, TINY, centered=True), lambda: jobs.RMSProp(constant(0.01), 0.9, TINY, centered=True)
    ),
    "lamb, no decay, eps nothing": Case(plain(optim.LAMB, 0.05, eps=TINY), lambda: jobs.LAMB(constant(0.05), epsilon=TINY)),
    "two optimizers": Case(two, two_in_a_job),
}  # fmt: skip


def scheduled(kind: Any, *arguments: Any, **options: Any) -> Any:
    """Return a function of parameters that creates SGD with the initial rate 0.5, and its schedule."""

    def create(params: Any) -> Any:
        optimizer = optim.SGD(params, 0.5)
        return optimizer, kind(optimizer, *arguments, **options)

    return create


def sgd(schedule: Any) -> Any:
    return lambda: jobs.SGD(schedule, momentum=0)


SCHEDULES: dict[str, Case] = {
    "cosine": Case(scheduled(rates.CosineDecayLR, 8, alpha=0.1), sgd(jobs.CosineScheduler(0.5, 8, alpha=0.1))),
    "cosine annealing": Case(scheduled(rates.CosineAnnealingLR, 10, eta_min=0.05), sgd(jobs.CosineScheduler(0.5, 10, alpha=0.1))),
    "polynomial": Case(
        scheduled(rates.PolynomialLR, steps=4, end_learning_rate=0.1, power=2.0, cycle=True),
        sgd(jobs.PolynomialScheduler(0.5, 4, 0.1, 2.0, cycle=True)),
    ),
    "exponential": Case(scheduled(rates.ExponentialLR, 0.75), sgd(jobs.ExponentialScheduler(0.5, 1, 0.75))),
    "steps": Case(scheduled(rates.StepLR, 3, 0.5), sgd(jobs.ExponentialScheduler(0.5, 3, 0.5, staircase=True))),
    "milestones": Case(scheduled(rates.MultiStepLR, [2, 5], 0.5), sgd(jobs.PiecewiseScalingScheduler(0.5, [1, 4], [0.5, 0.25]))),
    "warm-up": Case(scheduled(rates.WarmUpLR, 0.25, 4), sgd(constant(0.5, jobs.warmup.linear(4, 0.25)))),
    "linear": Case(scheduled(rates.LinearLR, 0.25, 1.0, 4), sgd(constant(0.5, jobs.warmup.linear(4, 0.25)))),
    "constant warm-up": Case(scheduled(rates.ConstantLR, 0.5, 3), sgd(constant(0.5, jobs.warmup.constant(3, 0.5)))),
    "natural exponential": Case(scheduled(rates.LambdaLR, lambda t: math.exp(-0.3 * t)), sgd(jobs.NaturalExpScheduler(0.5, 1, 0.3))),
    "inverse time": Case(scheduled(rates.LambdaLR, lambda t: 1 / (1 + 0.3 * t)), sgd(jobs.InverseTimeScheduler(0.5, 1, 0.3))),
}

#: the tensors' face adds 1e-6 to the norm that it divides by: the norms here are so large that it does not matter
CLIPPING: dict[str, Case] = {
    "clipping": Case(clipped, lambda: jobs.SGD(constant(0.5), grad_clipping=jobs.grad_clipping.by_global_norm(1.0)), times=1e5),
}
ACCUMULATION: dict[str, Case] = {
    "accumulation": Case(plain(optim.SGD, 0.1, momentum=0.9), lambda: jobs.SGD(constant(0.1)), parts=3),
    "accumulation, adam": Case(
        plain(optim.Adam, 0.05, eps=TINY), lambda: jobs.Adam(constant(0.05), epsilon=TINY, do_bias_correction=True), parts=2
    ),
}  # fmt: skip
ALIKE = OPTIMIZERS | SCHEDULES | CLIPPING | ACCUMULATION


#: what comes near, and is not the same
DIFFERENT: dict[str, Case] = {
    "momentum, scheduled": Case(
        lambda params: (optimizer := optim.SGD(params, 0.1, momentum=0.9), rates.StepLR(optimizer, 3, 0.5)),
        lambda: jobs.SGD(jobs.ExponentialScheduler(0.1, 3, 0.5, staircase=True)),
    ),
    # in the first step the epsilons are as different as the correction of v
    "adam, eps": Case(
        plain(optim.Adam, 0.05, eps=1e-2),
        lambda: jobs.Adam(constant(0.05), epsilon=1e-2 * math.sqrt(1 - 0.999), do_bias_correction=True),
    ),
    # in the first step the decays are as different as the corrected rate
    "adamw, corrected": Case(
        plain(optim.AdamW, 0.05, eps=TINY, weight_decay=0.1 * math.sqrt(1 - 0.999) / (1 - 0.9)),
        lambda: jobs.AdamW(constant(0.05), epsilon=TINY, weight_decay=0.1, do_bias_correction=True),
    ),
    "rmsprop, eps": Case(plain(optim.RMSprop, 0.01, 0.9, 1e-2), lambda: jobs.RMSProp(constant(0.01), 0.9, 1e-2)),
    "lamb, decay": Case(plain(optim.LAMB, 0.05, eps=TINY, weight_decay=0.1), lambda: jobs.LAMB(constant(0.05), epsilon=TINY, weight_decay=0.1)),
    "clipping, small norms": Case(clipped, lambda: jobs.SGD(constant(0.5), grad_clipping=jobs.grad_clipping.by_global_norm(1.0)), times=5.0),
}
