"""Formats of GPUs: images with the channels innermost in memory."""

from __future__ import annotations

from jobflow.kernels.cuda.epilogue_product import PRODUCTS
from jobflow.kernels.patterns import Formats, Patterns
from jobflow.ops.activation import Gelu
from jobflow.ops.adaptive_pool import AdaptiveAvgPool, AdaptiveAvgPoolGrad
from jobflow.ops.attention import Attention, AttentionGrad
from jobflow.ops.batch_norm import Normalize
from jobflow.ops.conv import Conv, ConvGradInput, ConvGradWeight
from jobflow.ops.matmul import BiasAdd, Product
from jobflow.ops.pointwise import Elementwise, ElementwiseGrad
from jobflow.ops.pool import AvgPool, AvgPoolGrad, MaxPool, MaxPoolGrad, MaxPoolPick

#: operations whose kernels read adjacent channels by vectors, and whose libraries require them to be adjacent
IMAGES = (
    Conv,
    ConvGradInput,
    ConvGradWeight,
    MaxPool,
    MaxPoolGrad,
    MaxPoolPick,
    AvgPool,
    AvgPoolGrad,
    AdaptiveAvgPool,
    AdaptiveAvgPoolGrad,
)
#: operations that write a part of the channels of a concatenation, or the heads of a row, as fast as a whole tensor
STRIDED = (Attention, AttentionGrad, Elementwise, ElementwiseGrad, Gelu, Normalize)
#: tables of GPUs without cublasLt
PATTERNS = Patterns(formats=Formats(strided=(*STRIDED, Product, BiasAdd), products=PRODUCTS, images=IMAGES, channels_last=True))
