"""flow.nn: of the job face, activations, convolution, pooling, losses and normalisation as functions; of tensors, modules and graphs.

The modules are imported when the first of them is used.  Names that both have - functions in the body of a job, classes elsewhere -
are in one table.
"""

import importlib
from typing import TYPE_CHECKING, Any

from jobflow.math import fused_scale_tril as fused_scale_tril
from jobflow.math import tril as tril
from jobflow.nn import convolution, losses, normalization
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
from jobflow.nn.losses import (
    distributed_sparse_softmax_cross_entropy_with_logits as distributed_sparse_softmax_cross_entropy_with_logits,
)
from jobflow.nn.losses import sigmoid_cross_entropy_with_logits as sigmoid_cross_entropy_with_logits
from jobflow.nn.losses import softmax_cross_entropy_with_logits as softmax_cross_entropy_with_logits
from jobflow.nn.losses import sparse_cross_entropy as sparse_cross_entropy
from jobflow.nn.losses import sparse_softmax_cross_entropy_with_logits as sparse_softmax_cross_entropy_with_logits
from jobflow.nn.normalization import batch_normalization as batch_normalization
from jobflow.nn.normalization import layer_norm as layer_norm
from jobflow.nn.normalization import moments as moments
from jobflow.random import dropout as dropout
from jobflow.random import fused_scale_tril_softmax_dropout as fused_scale_tril_softmax_dropout
from jobflow.random import random_mask_like as random_mask_like

if TYPE_CHECKING:
    from jobflow.nn.graph import Graph as Graph
    from jobflow.nn.modules import *  # noqa: F403
    from jobflow.nn.parameter import Parameter as Parameter

#: functions in the body of a job, modules elsewhere
BOTH: dict[str, Any] = {
    "BCELoss": losses.BCELoss,
    "BCEWithLogitsLoss": losses.BCEWithLogitsLoss,
    "KLDivLoss": losses.KLDivLoss,
    "L1Loss": losses.L1Loss,
    "MSELoss": losses.MSELoss,
    "MarginRankingLoss": losses.MarginRankingLoss,
    "TripletMarginLoss": losses.TripletMarginLoss,
    "GroupNorm": normalization.GroupNorm,
    "InstanceNorm1d": normalization.InstanceNorm1d,
    "InstanceNorm2d": normalization.InstanceNorm2d,
    "InstanceNorm3d": normalization.InstanceNorm3d,
    "PixelShuffle": convolution.PixelShuffle,
}
#: what is no class of `nn.modules`
ELSEWHERE = {"Parameter": "jobflow.nn.parameter", "Graph": "jobflow.nn.graph"}
#: modules of Python
PARTS = ("functional", "graph", "init", "modules", "parallel", "utils")


def __getattr__(name: str) -> Any:
    """What tensors have, at its first use."""
    if name in PARTS:
        return importlib.import_module(f"{__name__}.{name}")
    if not name.startswith("_"):
        home = importlib.import_module(ELSEWHERE.get(name, f"{__name__}.modules"))
        if hasattr(home, name):
            found = getattr(home, name)
            if name in BOTH:
                found.job_function = BOTH[name]
            return found
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
