"""Optimizers over tensors, local or global, and learning rate schedules."""

from jobflow.core.lazy_imports import add_aliases
from jobflow.optim import lr_scheduler as lr_scheduler
from jobflow.optim.moment_optimizers import *
from jobflow.optim.optimizer import Optimizer as Optimizer
from jobflow.optim.optimizers import *
from jobflow.optim.quasi_newton import LBFGS as LBFGS
from jobflow.optim.table_optimizers import SparseAdam as SparseAdam

add_aliases(__name__, "jobflow.optim")
