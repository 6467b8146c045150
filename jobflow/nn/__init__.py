"""flow.nn: activations, convolution, pooling, losses and normalisation as functions."""

from jobflow.math import fused_scale_tril as fused_scale_tril
from jobflow.math import tril as tril
from jobflow.nn.activations import bias_add as bias_add
from jobflow.nn.activations import elu as elu
from jobflow.nn.activations import fused_bias_add_dropout as fused_bias_add_dropout
from jobflow.nn.activations import fused_bias_add_gelu as fused_bias_add_gelu
from jobflow.nn.activations import (
    fused_self_attention_query_mul_key_and_value as fused_self_attention_query_mul_key_and_value,
)
from jobflow.nn.activations import hardsigmoid as hardsigmoid
from jobflow.nn.activations import hardswish as hardswish
from jobflow.nn.activations import hardtanh as hardtanh
from jobflow.nn.activations import leaky_relu as leaky_relu
from jobflow.nn.activations import logsoftmax as logsoftmax
from jobflow.nn.activations import mish as mish
from jobflow.nn.activations import relu as relu
from jobflow.nn.activations import relu6 as relu6
from jobflow.nn.activations import softmax as softmax
from jobflow.nn.activations import softmax_grad as softmax_grad
from jobflow.nn.activations import swish as swish
from jobflow.nn.convolution import PixelShuffle as PixelShuffle
from jobflow.nn.convolution import PixelShufflev2 as PixelShufflev2
from jobflow.nn.convolution import avg_pool1d as avg_pool1d
from jobflow.nn.convolution import avg_pool2d as avg_pool2d
from jobflow.nn.convolution import avg_pool3d as avg_pool3d
from jobflow.nn.convolution import compat_conv2d as compat_conv2d
from jobflow.nn.convolution import conv1d as conv1d
from jobflow.nn.convolution import conv2d as conv2d
from jobflow.nn.convolution import conv2d_transpose as conv2d_transpose
from jobflow.nn.convolution import conv3d as conv3d
from jobflow.nn.convolution import max_pool1d as max_pool1d
from jobflow.nn.convolution import max_pool2d as max_pool2d
from jobflow.nn.convolution import max_pool3d as max_pool3d
from jobflow.nn.losses import BCELoss as BCELoss
from jobflow.nn.losses import BCEWithLogitsLoss as BCEWithLogitsLoss
from jobflow.nn.losses import KLDivLoss as KLDivLoss
from jobflow.nn.losses import L1Loss as L1Loss
from jobflow.nn.losses import MarginRankingLoss as MarginRankingLoss
from jobflow.nn.losses import MSELoss as MSELoss
from jobflow.nn.losses import TripletMarginLoss as TripletMarginLoss
from jobflow.nn.losses import (
    distributed_sparse_softmax_cross_entropy_with_logits as distributed_sparse_softmax_cross_entropy_with_logits,
)
from jobflow.nn.losses import sigmoid_cross_entropy_with_logits as sigmoid_cross_entropy_with_logits
from jobflow.nn.losses import softmax_cross_entropy_with_logits as softmax_cross_entropy_with_logits
from jobflow.nn.losses import sparse_cross_entropy as sparse_cross_entropy
from jobflow.nn.losses import sparse_softmax_cross_entropy_with_logits as sparse_softmax_cross_entropy_with_logits
from jobflow.nn.normalization import GroupNorm as GroupNorm
from jobflow.nn.normalization import InstanceNorm1d as InstanceNorm1d
from jobflow.nn.normalization import InstanceNorm2d as InstanceNorm2d
from jobflow.nn.normalization import InstanceNorm3d as InstanceNorm3d
from jobflow.nn.normalization import batch_normalization as batch_normalization
from jobflow.nn.normalization import layer_norm as layer_norm
from jobflow.nn.normalization import moments as moments
from jobflow.random import dropout as dropout
from jobflow.random import fused_scale_tril_softmax_dropout as fused_scale_tril_softmax_dropout
from jobflow.random import random_mask_like as random_mask_like
