"""The namespace `flow.nn.functional`: the computations of modules as functions of tensors."""

from jobflow.functional.dispatch import all_of as _all_of
from jobflow.functional.dispatch import of_tensors as _of_tensors
from jobflow.functional.nn_activations import *
from jobflow.functional.nn_attention import *
from jobflow.functional.nn_classes import *
from jobflow.functional.nn_conv import *
from jobflow.functional.nn_ctc import *
from jobflow.functional.nn_embedding import *
from jobflow.functional.nn_grids import *
from jobflow.functional.nn_linear import *
from jobflow.functional.nn_losses import *
from jobflow.functional.nn_margin_losses import *
from jobflow.functional.nn_multihead_attention import *
from jobflow.functional.nn_noise import *
from jobflow.functional.nn_norm import *
from jobflow.functional.nn_pool import *
from jobflow.functional.nn_resize import *
from jobflow.functional.nn_shapes import *
from jobflow.functional.nn_windows import *

globals().update(_all_of(__name__, globals(), "jobflow.functional", _of_tensors))
