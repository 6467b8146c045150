"""The optimizers and schedules that are compared with recorded ones: plain data, so that the recorder needs nothing of jobflow."""

from __future__ import annotations

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
EPOCHS = 12
SCHEDULES: dict[str, tuple[str, dict[str, Any]]] = {
    "step": ("StepLR", {"step_size": 3, "gamma": 0.5}),
    "milestones": ("MultiStepLR", {"milestones": [2, 7], "gamma": 0.1}),
    "exponential": ("ExponentialLR", {"gamma": 0.9}),
    "cosine": ("CosineAnnealingLR", {"T_max": 5, "eta_min": 0.01}),
    "linear": ("LinearLR", {"start_factor": 0.25, "end_factor": 1.0, "total_iters": 4}),
    "constant": ("ConstantLR", {"factor": 0.5, "total_iters": 4}),
}
#: numbers that ReduceLROnPlateau is told
METRICS = (1.0, 0.9, 0.9, 0.9, 0.9, 0.8, 0.85, 0.84, 0.83, 0.82, 0.81, 0.7)
