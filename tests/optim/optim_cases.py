"""The optimizers and schedules that are compared with recorded ones: plain data, so that the recorder needs nothing of jobflow."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any

STEPS = 8
SHAPE = (6, 4)
#: name of a case -> (optimizer, options); rates travel as float32, so these are numbers that it has
OPTIMIZERS: dict[str, tuple[str, dict[str, Any]]] = {
    "sgd": ("SGD", {"lr": 0.125}),
    "sgd decay": ("SGD", {"lr": 0.125, "weight_decay": 0.05}),
    "momentum": ("SGD", {"lr": 0.125, "momentum": 0.9}),
    "momentum dampened": ("SGD", {"lr": 0.125, "momentum": 0.9, "dampening": 0.3, "weight_decay": 0.05}),
    "nesterov": ("SGD", {"lr": 0.125, "momentum": 0.9, "nesterov": True}),
    "maximize": ("SGD", {"lr": 0.125, "maximize": True}),
    "adam": ("Adam", {"lr": 0.125}),
    "adam decay": ("Adam", {"lr": 0.125, "betas": (0.8, 0.9), "eps": 1e-4, "weight_decay": 0.1}),
    "amsgrad": ("Adam", {"lr": 0.125, "amsgrad": True, "betas": (0.5, 0.6)}),
    "adamw": ("AdamW", {"lr": 0.125, "weight_decay": 0.1}),
    "rmsprop": ("RMSprop", {"lr": 0.125, "weight_decay": 0.1}),
    "rmsprop momentum": ("RMSprop", {"lr": 0.125, "alpha": 0.9, "momentum": 0.5, "centered": True}),
    "adagrad": ("Adagrad", {"lr": 0.125, "lr_decay": 0.1, "weight_decay": 0.1, "initial_accumulator_value": 0.2}),
    "rmsprop maximize": ("RMSprop", {"lr": 0.125, "maximize": True}),
    "adagrad maximize": ("Adagrad", {"lr": 0.125, "maximize": True}),
    "radam": ("RAdam", {"lr": 0.125, "betas": (0.8, 0.7), "weight_decay": 0.1}),
    "radam decoupled": ("RAdam", {"lr": 0.125, "betas": (0.5, 0.9), "weight_decay": 0.1, "decoupled_weight_decay": True, "maximize": True}),
    "nadam": ("NAdam", {"lr": 0.125, "weight_decay": 0.1, "momentum_decay": 0.1}),
    "nadam decoupled": ("NAdam", {"lr": 0.125, "weight_decay": 0.1, "decoupled_weight_decay": True, "maximize": True}),
    "adamax": ("Adamax", {"lr": 0.125, "weight_decay": 0.1}),
    "rprop": ("Rprop", {"lr": 0.125, "etas": (0.25, 1.5), "step_sizes": (0.0625, 1.0)}),
    "asgd": ("ASGD", {"lr": 0.125, "lambd": 0.05, "t0": 3, "weight_decay": 0.1}),
    "adadelta": ("Adadelta", {"lr": 1.0, "rho": 0.8, "weight_decay": 0.1}),
}
#: the same for optimizers whose rate does not travel as float32, and which graphs do not support
WHOLE_MATRICES: dict[str, tuple[str, dict[str, Any]]] = {
    "adafactor": ("Adafactor", {"lr": 0.125, "weight_decay": 0.1}),
    "adafactor maximize": ("Adafactor", {"lr": 0.5, "eps": (1e-4, 0.01), "d": 1.5, "beta2_decay": -0.5, "maximize": True}),
}
#: name of a case -> options of LBFGS
LBFGS: dict[str, dict[str, Any]] = {
    "lbfgs": {"lr": 0.25, "max_iter": 4},
    "lbfgs wolfe": {"line_search_fn": "strong_wolfe", "max_iter": 6, "history_size": 3},
}
EPOCHS = 12
SCHEDULES: dict[str, tuple[str, dict[str, Any]]] = {
    "step": ("StepLR", {"step_size": 3, "gamma": 0.5}),
    "milestones": ("MultiStepLR", {"milestones": [2, 7], "gamma": 0.1}),
    "exponential": ("ExponentialLR", {"gamma": 0.9}),
    "cosine": ("CosineAnnealingLR", {"T_max": 5, "eta_min": 0.01}),
    "linear": ("LinearLR", {"start_factor": 0.25, "end_factor": 1.0, "total_iters": 4}),
    "constant": ("ConstantLR", {"factor": 0.5, "total_iters": 4}),
    "polynomial": ("PolynomialLR", {"total_iters": 6, "power": 2.0}),
    "one cycle": ("OneCycleLR", {"max_lr": 0.5, "total_steps": 12}),
    "one cycle of three phases": (
        "OneCycleLR",
        {"max_lr": [0.5], "epochs": 4, "steps_per_epoch": 3, "three_phase": True, "anneal_strategy": "linear", "pct_start": 0.25},
    ),
    "cyclic": ("CyclicLR", {"base_lr": 0.1, "max_lr": 0.5, "step_size_up": 3, "step_size_down": 2, "mode": "triangular2"}),
    "cyclic of steps": ("CyclicLR", {"base_lr": [0.1], "max_lr": 0.5, "step_size_up": 2, "mode": "exp_range", "gamma": 0.9}),
    "restarts": ("CosineAnnealingWarmRestarts", {"T_0": 2, "T_mult": 2, "eta_min": 0.01}),
}


def ascending(optimizer: Any) -> Any:
    """Return a schedule of a user, whose `get_lr` reads the attributes of PyTorch's base class."""
    module = importlib.import_module(type(optimizer).__module__.partition(".")[0] + ".optim.lr_scheduler")

    class Ascending(module.LRScheduler):
        def get_lr(self) -> list[float]:
            assert self._get_lr_called_within_step
            if self.last_epoch == 0:
                return [group["lr"] for group in self.optimizer.param_groups]
            return [group["lr"] + 0.01 * base for group, base in zip(self.optimizer.param_groups, self.base_lrs, strict=True)]

    return Ascending(optimizer)


def averaging(optimizer: Any) -> Any:
    """Return the schedule of stochastic weight averaging."""
    module = importlib.import_module(type(optimizer).__module__.partition(".")[0] + ".optim.swa_utils")
    return module.SWALR(optimizer, swa_lr=0.05, anneal_epochs=4)


#: name of a case -> schedule from the module `lr_scheduler` and an optimizer
COMPOSED: dict[str, Callable[[Any, Any], Any]] = {
    "multiplicative": lambda of, optimizer: of.MultiplicativeLR(optimizer, lambda t: 1 - 0.05 * t),
    "sequential": lambda of, optimizer: of.SequentialLR(
        optimizer, [of.LinearLR(optimizer, 0.25, total_iters=3), of.CosineAnnealingLR(optimizer, 6, 0.01), of.ExponentialLR(optimizer, 0.5)], [3, 8]
    ),
    "sequential with restarts": lambda of, optimizer: of.SequentialLR(
        optimizer, [of.ConstantLR(optimizer, 0.1, 4), of.CosineAnnealingWarmRestarts(optimizer, 3)], milestones=[4]
    ),
    "chained": lambda of, optimizer: of.ChainedScheduler(
        [of.ConstantLR(optimizer, 0.1, 4), of.ExponentialLR(optimizer, 0.9), of.StepLR(optimizer, 3, 0.5), of.CosineAnnealingLR(optimizer, 20, 0.001)]
    ),
    "weight averaging": lambda of, optimizer: of.SequentialLR(optimizer, [of.ExponentialLR(optimizer, 0.9), averaging(optimizer)], [4]),
    "by a user": lambda of, optimizer: ascending(optimizer),
}
#: numbers that ReduceLROnPlateau is told
METRICS = (1.0, 0.9, 0.9, 0.9, 0.9, 0.8, 0.85, 0.84, 0.83, 0.82, 0.81, 0.7)
