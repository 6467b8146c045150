"""Optimizers over tensors, local or global, and learning rate schedules."""

from jobflow.optim import lr_scheduler as lr_scheduler
from jobflow.optim.optimizer import Optimizer as Optimizer
from jobflow.optim.optimizers import LAMB as LAMB
from jobflow.optim.optimizers import SGD as SGD
from jobflow.optim.optimizers import Adadelta as Adadelta
from jobflow.optim.optimizers import Adagrad as Adagrad
from jobflow.optim.optimizers import Adam as Adam
from jobflow.optim.optimizers import AdamW as AdamW
from jobflow.optim.optimizers import RMSprop as RMSprop
