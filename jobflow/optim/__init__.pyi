"""The table of contents of `flow.optim`: each name, and where it is defined."""

from jobflow.optim import lr_scheduler as lr_scheduler
from jobflow.optim.matrix_optimizers import *
from jobflow.optim.moment_optimizers import *
from jobflow.optim.optimizer import Optimizer as Optimizer
from jobflow.optim.optimizers import *
from jobflow.optim.quasi_newton import LBFGS as LBFGS
from jobflow.optim.table_optimizers import SparseAdam as SparseAdam
