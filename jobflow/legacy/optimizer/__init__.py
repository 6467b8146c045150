"""Optimizers, learning-rate schedules, gradient clipping and loss scales of train jobs."""

from jobflow.legacy.optimizer import clipping as grad_clipping
from jobflow.legacy.optimizer import loss_scale, warmup
from jobflow.legacy.optimizer.from_options import optimizer_of
from jobflow.legacy.optimizer.job_optimizers import LAMB, LARS, SGD, SGDW, Adam, AdamW, CombinedOptimizer, LazyAdam, RMSProp
from jobflow.legacy.optimizer.schedules import (
    CosineScheduler,
    CustomScheduler,
    ExponentialScheduler,
    InverseTimeScheduler,
    LinearCosineScheduler,
    NaturalExpScheduler,
    PiecewiseConstantScheduler,
    PiecewiseScalingScheduler,
    PolynomialSchduler,
    PolynomialScheduler,
    Schedule,
)

__all__ = [
    "SGD",
    "SGDW",
    "Adam",
    "AdamW",
    "LazyAdam",
    "RMSProp",
    "LARS",
    "LAMB",
    "CombinedOptimizer",
    "optimizer_of",
    "Schedule",
    "PiecewiseConstantScheduler",
    "PiecewiseScalingScheduler",
    "CosineScheduler",
    "PolynomialScheduler",
    "PolynomialSchduler",
    "ExponentialScheduler",
    "InverseTimeScheduler",
    "NaturalExpScheduler",
    "LinearCosineScheduler",
    "CustomScheduler",
    "warmup",
    "grad_clipping",
    "loss_scale",
]
