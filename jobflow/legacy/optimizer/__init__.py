"""Optimizers, learning-rate schedules, gradient clipping and loss scales of train jobs."""

from jobflow.legacy.optimizer import clipping as grad_clipping
from jobflow.legacy.optimizer import job_optimizers, loss_scale, schedules, warmup
from jobflow.legacy.optimizer.from_options import optimizer_of
from jobflow.legacy.optimizer.job_optimizers import *
from jobflow.legacy.optimizer.schedules import *

__all__ = ["grad_clipping", "loss_scale", "optimizer_of", "warmup"]
__all__ += job_optimizers.__all__
__all__ += schedules.__all__
