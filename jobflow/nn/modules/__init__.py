"""Modules of `flow.nn`, with argument checks as in functions."""

from jobflow.core.lazy_imports import add_aliases
from jobflow.functional.dispatch import of_tensors as _of_tensors
from jobflow.legacy import convolution as _convolution
from jobflow.legacy import loss_functions as _losses
from jobflow.legacy import normalization as _normalization
from jobflow.nn.modules import conv_layers as _conv_layers
from jobflow.nn.modules import norm_layers as _norm_layers
from jobflow.nn.modules import utils as utils
from jobflow.nn.modules.activation_layers import *
from jobflow.nn.modules.adaptive_softmax import *
from jobflow.nn.modules.attention_layers import *
from jobflow.nn.modules.container import *
from jobflow.nn.modules.conv_layers import *
from jobflow.nn.modules.embedding_layers import *
from jobflow.nn.modules.lazy_layers import *
from jobflow.nn.modules.lazy_parameters import *
from jobflow.nn.modules.linear_layers import *
from jobflow.nn.modules.loss_layers import *
from jobflow.nn.modules.loss_layers import _Loss as _Loss
from jobflow.nn.modules.module import Module as Module
from jobflow.nn.modules.norm_layers import *
from jobflow.nn.modules.norm_layers import _BatchNorm as _BatchNorm
from jobflow.nn.modules.norm_layers import _InstanceNorm as _InstanceNorm
from jobflow.nn.modules.pool_layers import *
from jobflow.nn.modules.recurrent_layers import *
from jobflow.nn.modules.synchronized_norm import *
from jobflow.nn.modules.transformer_layers import *

#: PyTorch's names of base classes, for isinstance
_ConvNd, _ConvTransposeNd, _NormBase = _conv_layers._Conv, _conv_layers._Transposed, _norm_layers._BatchStatistics

#: class name -> job function that replaces the class in the body of a job
_OF_JOBS = {name: function for module in (_convolution, _losses, _normalization) for name, function in vars(module).items()}

# check the arguments as for functions
for _name, _class in list(globals().items()):
    if isinstance(_class, type) and issubclass(_class, Module) and _class.forward is not Module.forward:
        setattr(_class, "forward", _of_tensors(_class.forward, _name))  # noqa: B010 - a class attribute to the type checker
        if _name in _OF_JOBS:
            _class.job_function = _OF_JOBS[_name]

add_aliases(__name__, "jobflow.nn.modules")
