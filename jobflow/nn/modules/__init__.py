"""Modules of `jobflow.nn`; the functions beside them, of the job face, are in the folder above."""

from jobflow.eager.faces import of_tensors as _of_tensors
from jobflow.eager.tensor import Tensor as _Tensor
from jobflow.legacy import convolution as _convolution
from jobflow.legacy import loss_functions as _losses
from jobflow.legacy import normalization as _normalization
from jobflow.nn.modules.activation_layers import CELU as CELU
from jobflow.nn.modules.activation_layers import ELU as ELU
from jobflow.nn.modules.activation_layers import GELU as GELU
from jobflow.nn.modules.activation_layers import GLU as GLU
from jobflow.nn.modules.activation_layers import SELU as SELU
from jobflow.nn.modules.activation_layers import Hardshrink as Hardshrink
from jobflow.nn.modules.activation_layers import Hardsigmoid as Hardsigmoid
from jobflow.nn.modules.activation_layers import Hardswish as Hardswish
from jobflow.nn.modules.activation_layers import Hardtanh as Hardtanh
from jobflow.nn.modules.activation_layers import LeakyReLU as LeakyReLU
from jobflow.nn.modules.activation_layers import LogSigmoid as LogSigmoid
from jobflow.nn.modules.activation_layers import LogSoftmax as LogSoftmax
from jobflow.nn.modules.activation_layers import Mish as Mish
from jobflow.nn.modules.activation_layers import PReLU as PReLU
from jobflow.nn.modules.activation_layers import QuickGELU as QuickGELU
from jobflow.nn.modules.activation_layers import ReLU as ReLU
from jobflow.nn.modules.activation_layers import ReLU6 as ReLU6
from jobflow.nn.modules.activation_layers import Sigmoid as Sigmoid
from jobflow.nn.modules.activation_layers import SiLU as SiLU
from jobflow.nn.modules.activation_layers import Softmax as Softmax
from jobflow.nn.modules.activation_layers import Softmin as Softmin
from jobflow.nn.modules.activation_layers import Softplus as Softplus
from jobflow.nn.modules.activation_layers import Softshrink as Softshrink
from jobflow.nn.modules.activation_layers import Softsign as Softsign
from jobflow.nn.modules.activation_layers import Tanh as Tanh
from jobflow.nn.modules.activation_layers import Tanhshrink as Tanhshrink
from jobflow.nn.modules.activation_layers import Threshold as Threshold
from jobflow.nn.modules.attention_layers import MultiheadAttention as MultiheadAttention
from jobflow.nn.modules.attention_layers import TransformerEncoder as TransformerEncoder
from jobflow.nn.modules.attention_layers import TransformerEncoderLayer as TransformerEncoderLayer
from jobflow.nn.modules.container import ModuleDict as ModuleDict
from jobflow.nn.modules.container import ModuleList as ModuleList
from jobflow.nn.modules.container import ParameterDict as ParameterDict
from jobflow.nn.modules.container import ParameterList as ParameterList
from jobflow.nn.modules.container import Sequential as Sequential
from jobflow.nn.modules.conv_layers import Conv1d as Conv1d
from jobflow.nn.modules.conv_layers import Conv2d as Conv2d
from jobflow.nn.modules.conv_layers import Conv3d as Conv3d
from jobflow.nn.modules.conv_layers import ConvTranspose1d as ConvTranspose1d
from jobflow.nn.modules.conv_layers import ConvTranspose2d as ConvTranspose2d
from jobflow.nn.modules.conv_layers import ConvTranspose3d as ConvTranspose3d
from jobflow.nn.modules.linear_layers import Bilinear as Bilinear
from jobflow.nn.modules.linear_layers import CosineSimilarity as CosineSimilarity
from jobflow.nn.modules.linear_layers import Dropout as Dropout
from jobflow.nn.modules.linear_layers import Dropout1d as Dropout1d
from jobflow.nn.modules.linear_layers import Dropout2d as Dropout2d
from jobflow.nn.modules.linear_layers import Dropout3d as Dropout3d
from jobflow.nn.modules.linear_layers import Embedding as Embedding
from jobflow.nn.modules.linear_layers import Flatten as Flatten
from jobflow.nn.modules.linear_layers import Identity as Identity
from jobflow.nn.modules.linear_layers import Linear as Linear
from jobflow.nn.modules.linear_layers import PairwiseDistance as PairwiseDistance
from jobflow.nn.modules.linear_layers import Unflatten as Unflatten
from jobflow.nn.modules.loss_layers import BCELoss as BCELoss
from jobflow.nn.modules.loss_layers import BCEWithLogitsLoss as BCEWithLogitsLoss
from jobflow.nn.modules.loss_layers import CosineEmbeddingLoss as CosineEmbeddingLoss
from jobflow.nn.modules.loss_layers import CrossEntropyLoss as CrossEntropyLoss
from jobflow.nn.modules.loss_layers import GaussianNLLLoss as GaussianNLLLoss
from jobflow.nn.modules.loss_layers import HingeEmbeddingLoss as HingeEmbeddingLoss
from jobflow.nn.modules.loss_layers import HuberLoss as HuberLoss
from jobflow.nn.modules.loss_layers import KLDivLoss as KLDivLoss
from jobflow.nn.modules.loss_layers import L1Loss as L1Loss
from jobflow.nn.modules.loss_layers import MarginRankingLoss as MarginRankingLoss
from jobflow.nn.modules.loss_layers import MSELoss as MSELoss
from jobflow.nn.modules.loss_layers import NLLLoss as NLLLoss
from jobflow.nn.modules.loss_layers import PoissonNLLLoss as PoissonNLLLoss
from jobflow.nn.modules.loss_layers import SmoothL1Loss as SmoothL1Loss
from jobflow.nn.modules.loss_layers import SoftMarginLoss as SoftMarginLoss
from jobflow.nn.modules.loss_layers import TripletMarginLoss as TripletMarginLoss
from jobflow.nn.modules.module import Module as Module
from jobflow.nn.modules.norm_layers import BatchNorm1d as BatchNorm1d
from jobflow.nn.modules.norm_layers import BatchNorm2d as BatchNorm2d
from jobflow.nn.modules.norm_layers import BatchNorm3d as BatchNorm3d
from jobflow.nn.modules.norm_layers import GroupNorm as GroupNorm
from jobflow.nn.modules.norm_layers import InstanceNorm1d as InstanceNorm1d
from jobflow.nn.modules.norm_layers import InstanceNorm2d as InstanceNorm2d
from jobflow.nn.modules.norm_layers import InstanceNorm3d as InstanceNorm3d
from jobflow.nn.modules.norm_layers import LayerNorm as LayerNorm
from jobflow.nn.modules.norm_layers import RMSNorm as RMSNorm
from jobflow.nn.modules.pool_layers import AdaptiveAvgPool1d as AdaptiveAvgPool1d
from jobflow.nn.modules.pool_layers import AdaptiveAvgPool2d as AdaptiveAvgPool2d
from jobflow.nn.modules.pool_layers import AdaptiveAvgPool3d as AdaptiveAvgPool3d
from jobflow.nn.modules.pool_layers import AdaptiveMaxPool1d as AdaptiveMaxPool1d
from jobflow.nn.modules.pool_layers import AdaptiveMaxPool2d as AdaptiveMaxPool2d
from jobflow.nn.modules.pool_layers import AdaptiveMaxPool3d as AdaptiveMaxPool3d
from jobflow.nn.modules.pool_layers import AvgPool1d as AvgPool1d
from jobflow.nn.modules.pool_layers import AvgPool2d as AvgPool2d
from jobflow.nn.modules.pool_layers import AvgPool3d as AvgPool3d
from jobflow.nn.modules.pool_layers import ConstantPad1d as ConstantPad1d
from jobflow.nn.modules.pool_layers import ConstantPad2d as ConstantPad2d
from jobflow.nn.modules.pool_layers import ConstantPad3d as ConstantPad3d
from jobflow.nn.modules.pool_layers import MaxPool1d as MaxPool1d
from jobflow.nn.modules.pool_layers import MaxPool2d as MaxPool2d
from jobflow.nn.modules.pool_layers import MaxPool3d as MaxPool3d
from jobflow.nn.modules.pool_layers import PixelShuffle as PixelShuffle
from jobflow.nn.modules.pool_layers import PixelUnshuffle as PixelUnshuffle
from jobflow.nn.modules.pool_layers import ReflectionPad1d as ReflectionPad1d
from jobflow.nn.modules.pool_layers import ReflectionPad2d as ReflectionPad2d
from jobflow.nn.modules.pool_layers import ReplicationPad1d as ReplicationPad1d
from jobflow.nn.modules.pool_layers import ReplicationPad2d as ReplicationPad2d
from jobflow.nn.modules.pool_layers import Upsample as Upsample
from jobflow.nn.modules.pool_layers import UpsamplingBilinear2d as UpsamplingBilinear2d
from jobflow.nn.modules.pool_layers import UpsamplingNearest2d as UpsamplingNearest2d
from jobflow.nn.modules.pool_layers import ZeroPad1d as ZeroPad1d
from jobflow.nn.modules.pool_layers import ZeroPad2d as ZeroPad2d

# in the body of a job these are the functions that the job face has under their names
BCELoss.job_function = _losses.BCELoss
BCEWithLogitsLoss.job_function = _losses.BCEWithLogitsLoss
KLDivLoss.job_function = _losses.KLDivLoss
L1Loss.job_function = _losses.L1Loss
MSELoss.job_function = _losses.MSELoss
MarginRankingLoss.job_function = _losses.MarginRankingLoss
TripletMarginLoss.job_function = _losses.TripletMarginLoss
GroupNorm.job_function = _normalization.GroupNorm
InstanceNorm1d.job_function = _normalization.InstanceNorm1d
InstanceNorm2d.job_function = _normalization.InstanceNorm2d
InstanceNorm3d.job_function = _normalization.InstanceNorm3d
PixelShuffle.job_function = _convolution.PixelShuffle

# what they are called with is checked as it is of functions
for _name, _class in list(globals().items()):
    if isinstance(_class, type) and issubclass(_class, Module) and _class.forward is not Module.forward:
        setattr(_class, "forward", _of_tensors(_class.forward, _name, _Tensor))  # noqa: B010 - a class attribute to the type checker
