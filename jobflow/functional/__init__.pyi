"""The table of contents of `jobflow.functional`: each name, and where it is defined.  `__init__.py` reads it, and imports what is asked for."""

from jobflow.functional.binary_functions import *
from jobflow.functional.casting import *
from jobflow.functional.classes import *
from jobflow.functional.comparing import *
from jobflow.functional.creation import *
from jobflow.functional.devices import device as device
from jobflow.functional.dlpack import *
from jobflow.functional.global_tensors import *
from jobflow.functional.gradients import *
from jobflow.functional.histograms import *
from jobflow.functional.index_updates import *
from jobflow.functional.joining import *
from jobflow.functional.matrix_functions import *
from jobflow.functional.matrix_products import *
from jobflow.functional.memory_formats import *
from jobflow.functional.nn_activations import celu as celu
from jobflow.functional.nn_activations import gelu as gelu
from jobflow.functional.nn_activations import hardtanh as hardtanh
from jobflow.functional.nn_activations import log_softmax as log_softmax
from jobflow.functional.nn_activations import mish as mish
from jobflow.functional.nn_activations import prelu as prelu
from jobflow.functional.nn_activations import relu as relu
from jobflow.functional.nn_activations import selu as selu
from jobflow.functional.nn_activations import sigmoid as sigmoid
from jobflow.functional.nn_activations import silu as silu
from jobflow.functional.nn_activations import softmax as softmax
from jobflow.functional.nn_activations import softplus as softplus
from jobflow.functional.nn_activations import softsign as softsign
from jobflow.functional.nn_activations import tanh as tanh
from jobflow.functional.nn_ctc import ctc_loss as ctc_loss
from jobflow.functional.nn_linear import cosine_similarity as cosine_similarity
from jobflow.functional.nn_linear import dropout as dropout
from jobflow.functional.nn_linear import one_hot as one_hot
from jobflow.functional.order_statistics import *
from jobflow.functional.promotion import result_type as result_type
from jobflow.functional.rearranging import *
from jobflow.functional.reductions import *
from jobflow.functional.sampling import *
from jobflow.functional.selecting import *
from jobflow.functional.shapes import *
from jobflow.functional.slice_updates import *
from jobflow.functional.sorting import *
from jobflow.functional.sparse_creation import *
from jobflow.functional.sparse_tensors import *
from jobflow.functional.special_functions import *
from jobflow.functional.statistics import *
from jobflow.functional.switches import *
from jobflow.functional.unary_functions import *
from jobflow.functional.values import set_printoptions as set_printoptions
