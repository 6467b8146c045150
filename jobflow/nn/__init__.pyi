"""The table of contents of flow.nn: each name, and where it is defined.  `__init__.py` reads it, and imports what is asked for."""

from jobflow.legacy.activations import bias_add as bias_add
from jobflow.legacy.activations import elu as elu
from jobflow.legacy.activations import fused_bias_add_dropout as fused_bias_add_dropout
from jobflow.legacy.activations import fused_bias_add_gelu as fused_bias_add_gelu
from jobflow.legacy.activations import fused_self_attention_query_mul_key_and_value as fused_self_attention_query_mul_key_and_value
from jobflow.legacy.activations import hardsigmoid as hardsigmoid
from jobflow.legacy.activations import hardswish as hardswish
from jobflow.legacy.activations import hardtanh as hardtanh
from jobflow.legacy.activations import leaky_relu as leaky_relu
from jobflow.legacy.activations import logsoftmax as logsoftmax
from jobflow.legacy.activations import mish as mish
from jobflow.legacy.activations import relu as relu
from jobflow.legacy.activations import relu6 as relu6
from jobflow.legacy.activations import softmax as softmax
from jobflow.legacy.activations import softmax_grad as softmax_grad
from jobflow.legacy.activations import swish as swish
from jobflow.legacy.convolution import PixelShufflev2 as PixelShufflev2
from jobflow.legacy.convolution import avg_pool1d as avg_pool1d
from jobflow.legacy.convolution import avg_pool2d as avg_pool2d
from jobflow.legacy.convolution import avg_pool3d as avg_pool3d
from jobflow.legacy.convolution import compat_conv2d as compat_conv2d
from jobflow.legacy.convolution import conv1d as conv1d
from jobflow.legacy.convolution import conv2d as conv2d
from jobflow.legacy.convolution import conv2d_transpose as conv2d_transpose
from jobflow.legacy.convolution import conv3d as conv3d
from jobflow.legacy.convolution import max_pool1d as max_pool1d
from jobflow.legacy.convolution import max_pool2d as max_pool2d
from jobflow.legacy.convolution import max_pool3d as max_pool3d
from jobflow.legacy.convolution import torch_conv2d_transpose as torch_conv2d_transpose
from jobflow.legacy.loss_functions import ctc_greedy_decoder as ctc_greedy_decoder
from jobflow.legacy.loss_functions import distributed_sparse_softmax_cross_entropy_with_logits as distributed_sparse_softmax_cross_entropy_with_logits
from jobflow.legacy.loss_functions import sigmoid_cross_entropy_with_logits as sigmoid_cross_entropy_with_logits
from jobflow.legacy.loss_functions import softmax_cross_entropy_with_logits as softmax_cross_entropy_with_logits
from jobflow.legacy.loss_functions import sparse_cross_entropy as sparse_cross_entropy
from jobflow.legacy.loss_functions import sparse_softmax_cross_entropy_with_logits as sparse_softmax_cross_entropy_with_logits
from jobflow.legacy.math import fused_scale_tril as fused_scale_tril
from jobflow.legacy.math import tril as tril
from jobflow.legacy.normalization import batch_normalization as batch_normalization
from jobflow.legacy.normalization import layer_norm as layer_norm
from jobflow.legacy.normalization import moments as moments
from jobflow.legacy.random import dropout as dropout
from jobflow.legacy.random import fused_scale_tril_softmax_dropout as fused_scale_tril_softmax_dropout
from jobflow.legacy.random import random_mask_like as random_mask_like
from jobflow.nn import functional as functional
from jobflow.nn import graph as graph
from jobflow.nn import init as init
from jobflow.nn import modules as modules
from jobflow.nn import parallel as parallel
from jobflow.nn import utils as utils
from jobflow.nn.data_parallel_wrapper import DataParallel as DataParallel
from jobflow.nn.graph import Graph as Graph
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
from jobflow.nn.modules.module import Module as Module
from jobflow.nn.modules.norm_layers import *
from jobflow.nn.modules.pool_layers import *
from jobflow.nn.modules.recurrent_layers import *
from jobflow.nn.modules.synchronized_norm import *
from jobflow.nn.modules.transformer_layers import *
from jobflow.nn.parameter import Parameter as Parameter
