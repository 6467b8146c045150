"""The table of contents of `jobflow.nn.modules`; names with an underscore are PyTorch's base classes, for isinstance."""

from jobflow.nn.modules import utils as utils
from jobflow.nn.modules.activation_layers import *
from jobflow.nn.modules.adaptive_softmax import *
from jobflow.nn.modules.attention_layers import *
from jobflow.nn.modules.container import *
from jobflow.nn.modules.conv_layers import *
from jobflow.nn.modules.conv_layers import _Conv as _ConvNd  # noqa: F401
from jobflow.nn.modules.conv_layers import _Transposed as _ConvTransposeNd  # noqa: F401
from jobflow.nn.modules.embedding_layers import *
from jobflow.nn.modules.lazy_layers import *
from jobflow.nn.modules.lazy_parameters import *
from jobflow.nn.modules.linear_layers import *
from jobflow.nn.modules.loss_layers import *
from jobflow.nn.modules.loss_layers import _Loss as _Loss
from jobflow.nn.modules.loss_layers import _WeightedLoss as _WeightedLoss
from jobflow.nn.modules.module import Module as Module
from jobflow.nn.modules.norm_layers import *
from jobflow.nn.modules.norm_layers import _BatchNorm as _BatchNorm
from jobflow.nn.modules.norm_layers import _BatchStatistics as _NormBase  # noqa: F401
from jobflow.nn.modules.norm_layers import _InstanceNorm as _InstanceNorm
from jobflow.nn.modules.pool_layers import *
from jobflow.nn.modules.recurrent_layers import *
from jobflow.nn.modules.synchronized_norm import *
from jobflow.nn.modules.transformer_layers import *
