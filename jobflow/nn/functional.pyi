"""The table of contents of `jobflow.nn.functional`: each name, and where it is defined."""

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
