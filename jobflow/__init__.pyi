"""The table of contents of the public face: each name, and where it is defined.  `__init__.py` reads it, and imports what is asked for."""

from math import inf as inf
from math import nan as nan
from math import pi as pi

from jobflow import data as data
from jobflow import distributed as distributed
from jobflow import functional as functional
from jobflow import nn as nn
from jobflow import optim as optim
from jobflow import storage as checkpoint
from jobflow import strategies as strategies
from jobflow import typing as typing
from jobflow import utils as utils
from jobflow.core import errors as errors
from jobflow.core import scope as scope
from jobflow.core.errors import AbortedError as AbortedError
from jobflow.core.errors import ArgumentError as ArgumentError
from jobflow.core.errors import CheckpointError as CheckpointError
from jobflow.core.errors import ConfigError as ConfigError
from jobflow.core.errors import DataError as DataError
from jobflow.core.errors import DivergedError as DivergedError
from jobflow.core.errors import DtypeError as DtypeError
from jobflow.core.errors import DuplicateNameError as DuplicateNameError
from jobflow.core.errors import JobError as JobError
from jobflow.core.errors import JobflowError as JobflowError
from jobflow.core.errors import PlacementError as PlacementError
from jobflow.core.errors import PlanError as PlanError
from jobflow.core.errors import RankError as RankError
from jobflow.core.errors import ReplacedError as ReplacedError
from jobflow.core.errors import SbpError as SbpError
from jobflow.core.errors import ShapeError as ShapeError
from jobflow.core.scope import checkpointed as checkpointed
from jobflow.core.types import DType as dtype
from jobflow.core.types import bfloat16 as bfloat16
from jobflow.core.types import bool_ as bool
from jobflow.core.types import bool_ as bool_
from jobflow.core.types import char as char
from jobflow.core.types import float16 as float16
from jobflow.core.types import float16 as half
from jobflow.core.types import float32 as float
from jobflow.core.types import float32 as float32
from jobflow.core.types import float64 as double
from jobflow.core.types import float64 as float64
from jobflow.core.types import int8 as int8
from jobflow.core.types import int32 as int
from jobflow.core.types import int32 as int32
from jobflow.core.types import int64 as int64
from jobflow.core.types import int64 as long
from jobflow.core.types import record as record
from jobflow.core.types import tensor_buffer as tensor_buffer
from jobflow.core.types import uint8 as uint8
from jobflow.core.version import __version__ as __version__
from jobflow.eager.tensor import Size as Size
from jobflow.engine import distribute as distribute
from jobflow.engine.handle import INVALID_SPLIT_AXIS as INVALID_SPLIT_AXIS
from jobflow.engine.job_config import ExecutionConfig as ExecutionConfig
from jobflow.engine.job_config import FunctionConfig as FunctionConfig
from jobflow.engine.job_config import function_config as function_config
from jobflow.engine.placements import placement as placement
from jobflow.engine.placements import sbp as sbp
from jobflow.engine.session import clear_default_session as clear_default_session
from jobflow.engine.session import config as config
from jobflow.engine.session import env as env
from jobflow.engine.session import sync_default_session as sync_default_session
from jobflow.functional import BFloat16Tensor as BFloat16Tensor
from jobflow.functional import BoolTensor as BoolTensor
from jobflow.functional import ByteTensor as ByteTensor
from jobflow.functional import CharTensor as CharTensor
from jobflow.functional import DoubleTensor as DoubleTensor
from jobflow.functional import FloatTensor as FloatTensor
from jobflow.functional import Generator as Generator
from jobflow.functional import HalfTensor as HalfTensor
from jobflow.functional import IntTensor as IntTensor
from jobflow.functional import LongTensor as LongTensor
from jobflow.functional import Tensor as Tensor
from jobflow.functional import abs as abs
from jobflow.functional import absolute as absolute
from jobflow.functional import acos as acos
from jobflow.functional import acosh as acosh
from jobflow.functional import add as add
from jobflow.functional import addcdiv as addcdiv
from jobflow.functional import addcmul as addcmul
from jobflow.functional import addmm as addmm
from jobflow.functional import all as all
from jobflow.functional import allclose as allclose
from jobflow.functional import amax as amax
from jobflow.functional import amin as amin
from jobflow.functional import any as any
from jobflow.functional import arange as arange
from jobflow.functional import arccos as arccos
from jobflow.functional import arccosh as arccosh
from jobflow.functional import arcsin as arcsin
from jobflow.functional import arcsinh as arcsinh
from jobflow.functional import arctan as arctan
from jobflow.functional import arctan2 as arctan2
from jobflow.functional import arctanh as arctanh
from jobflow.functional import argmax as argmax
from jobflow.functional import argmin as argmin
from jobflow.functional import as_tensor as as_tensor
from jobflow.functional import asin as asin
from jobflow.functional import asinh as asinh
from jobflow.functional import atan as atan
from jobflow.functional import atan2 as atan2
from jobflow.functional import atanh as atanh
from jobflow.functional import autograd as autograd
from jobflow.functional import baddbmm as baddbmm
from jobflow.functional import bernoulli as bernoulli
from jobflow.functional import bitwise_and as bitwise_and
from jobflow.functional import bitwise_not as bitwise_not
from jobflow.functional import bitwise_or as bitwise_or
from jobflow.functional import bitwise_xor as bitwise_xor
from jobflow.functional import bmm as bmm
from jobflow.functional import broadcast_tensors as broadcast_tensors
from jobflow.functional import broadcast_to as broadcast_to
from jobflow.functional import can_cast as can_cast
from jobflow.functional import cat as cat
from jobflow.functional import ceil as ceil
from jobflow.functional import celu as celu
from jobflow.functional import chunk as chunk
from jobflow.functional import clamp_max as clamp_max
from jobflow.functional import clamp_min as clamp_min
from jobflow.functional import clone as clone
from jobflow.functional import comm as comm
from jobflow.functional import concatenate as concatenate
from jobflow.functional import cos as cos
from jobflow.functional import cosh as cosh
from jobflow.functional import cosine_similarity as cosine_similarity
from jobflow.functional import count_nonzero as count_nonzero
from jobflow.functional import cuda as cuda
from jobflow.functional import cumprod as cumprod
from jobflow.functional import cumsum as cumsum
from jobflow.functional import default_generator as default_generator
from jobflow.functional import detach as detach
from jobflow.functional import device as device
from jobflow.functional import diagonal as diagonal
from jobflow.functional import div as div
from jobflow.functional import divide as divide
from jobflow.functional import dot as dot
from jobflow.functional import dropout as dropout
from jobflow.functional import einsum as einsum
from jobflow.functional import empty as empty
from jobflow.functional import empty_like as empty_like
from jobflow.functional import enable_grad as enable_grad
from jobflow.functional import eq as eq
from jobflow.functional import equal as equal
from jobflow.functional import equals as equals
from jobflow.functional import erf as erf
from jobflow.functional import erfc as erfc
from jobflow.functional import exp as exp
from jobflow.functional import exp2 as exp2
from jobflow.functional import expm1 as expm1
from jobflow.functional import eye as eye
from jobflow.functional import finfo as finfo
from jobflow.functional import fix as fix
from jobflow.functional import flip as flip
from jobflow.functional import float_power as float_power
from jobflow.functional import floor as floor
from jobflow.functional import floor_divide as floor_divide
from jobflow.functional import fmod as fmod
from jobflow.functional import frac as frac
from jobflow.functional import from_numpy as from_numpy
from jobflow.functional import full as full
from jobflow.functional import full_like as full_like
from jobflow.functional import ge as ge
from jobflow.functional import gelu as gelu
from jobflow.functional import get_default_dtype as get_default_dtype
from jobflow.functional import get_rng_state as get_rng_state
from jobflow.functional import global_to_global as global_to_global
from jobflow.functional import greater as greater
from jobflow.functional import greater_equal as greater_equal
from jobflow.functional import gt as gt
from jobflow.functional import hardtanh as hardtanh
from jobflow.functional import hstack as hstack
from jobflow.functional import iinfo as iinfo
from jobflow.functional import index_add as index_add
from jobflow.functional import index_add_ as index_add_
from jobflow.functional import index_fill as index_fill
from jobflow.functional import index_fill_ as index_fill_
from jobflow.functional import index_select as index_select
from jobflow.functional import inference_mode as inference_mode
from jobflow.functional import initial_seed as initial_seed
from jobflow.functional import is_floating_point as is_floating_point
from jobflow.functional import is_grad_enabled as is_grad_enabled
from jobflow.functional import is_tensor as is_tensor
from jobflow.functional import isclose as isclose
from jobflow.functional import isfinite as isfinite
from jobflow.functional import isinf as isinf
from jobflow.functional import isnan as isnan
from jobflow.functional import kthvalue as kthvalue
from jobflow.functional import le as le
from jobflow.functional import lerp as lerp
from jobflow.functional import less as less
from jobflow.functional import less_equal as less_equal
from jobflow.functional import linspace as linspace
from jobflow.functional import local_to_global as local_to_global
from jobflow.functional import log as log
from jobflow.functional import log1p as log1p
from jobflow.functional import log2 as log2
from jobflow.functional import log10 as log10
from jobflow.functional import log_softmax as log_softmax
from jobflow.functional import logical_and as logical_and
from jobflow.functional import logical_not as logical_not
from jobflow.functional import logical_or as logical_or
from jobflow.functional import logical_xor as logical_xor
from jobflow.functional import logspace as logspace
from jobflow.functional import logsumexp as logsumexp
from jobflow.functional import lt as lt
from jobflow.functional import manual_seed as manual_seed
from jobflow.functional import masked_fill_ as masked_fill_
from jobflow.functional import masked_select as masked_select
from jobflow.functional import max as max
from jobflow.functional import maximum as maximum
from jobflow.functional import mean as mean
from jobflow.functional import median as median
from jobflow.functional import meshgrid as meshgrid
from jobflow.functional import min as min
from jobflow.functional import minimum as minimum
from jobflow.functional import mish as mish
from jobflow.functional import mm as mm
from jobflow.functional import moveaxis as moveaxis
from jobflow.functional import movedim as movedim
from jobflow.functional import mul as mul
from jobflow.functional import multinomial as multinomial
from jobflow.functional import multiply as multiply
from jobflow.functional import mv as mv
from jobflow.functional import nan_to_num as nan_to_num
from jobflow.functional import nansum as nansum
from jobflow.functional import narrow as narrow
from jobflow.functional import ne as ne
from jobflow.functional import neg as neg
from jobflow.functional import negative as negative
from jobflow.functional import no_grad as no_grad
from jobflow.functional import norm as norm
from jobflow.functional import normal as normal
from jobflow.functional import not_equal as not_equal
from jobflow.functional import numel as numel
from jobflow.functional import outer as outer
from jobflow.functional import permute as permute
from jobflow.functional import positive as positive
from jobflow.functional import pow as pow
from jobflow.functional import prelu as prelu
from jobflow.functional import prod as prod
from jobflow.functional import promote_types as promote_types
from jobflow.functional import rand as rand
from jobflow.functional import rand_like as rand_like
from jobflow.functional import randint as randint
from jobflow.functional import randint_like as randint_like
from jobflow.functional import randn as randn
from jobflow.functional import randn_like as randn_like
from jobflow.functional import randperm as randperm
from jobflow.functional import reciprocal as reciprocal
from jobflow.functional import relu as relu
from jobflow.functional import remainder as remainder
from jobflow.functional import repeat_interleave as repeat_interleave
from jobflow.functional import result_type as result_type
from jobflow.functional import roll as roll
from jobflow.functional import round as round
from jobflow.functional import rsqrt as rsqrt
from jobflow.functional import scatter as scatter
from jobflow.functional import scatter_ as scatter_
from jobflow.functional import scatter_add as scatter_add
from jobflow.functional import scatter_add_ as scatter_add_
from jobflow.functional import searchsorted as searchsorted
from jobflow.functional import seed as seed
from jobflow.functional import select as select
from jobflow.functional import selu as selu
from jobflow.functional import set_default_dtype as set_default_dtype
from jobflow.functional import set_grad_enabled as set_grad_enabled
from jobflow.functional import set_rng_state as set_rng_state
from jobflow.functional import sgn as sgn
from jobflow.functional import sigmoid as sigmoid
from jobflow.functional import sign as sign
from jobflow.functional import silu as silu
from jobflow.functional import sin as sin
from jobflow.functional import sinh as sinh
from jobflow.functional import softmax as softmax
from jobflow.functional import softplus as softplus
from jobflow.functional import softsign as softsign
from jobflow.functional import split as split
from jobflow.functional import sqrt as sqrt
from jobflow.functional import square as square
from jobflow.functional import std as std
from jobflow.functional import std_mean as std_mean
from jobflow.functional import sub as sub
from jobflow.functional import subtract as subtract
from jobflow.functional import sum as sum
from jobflow.functional import swapaxes as swapaxes
from jobflow.functional import swapdims as swapdims
from jobflow.functional import t as t
from jobflow.functional import take as take
from jobflow.functional import tan as tan
from jobflow.functional import tanh as tanh
from jobflow.functional import tensor as tensor
from jobflow.functional import tile as tile
from jobflow.functional import to_global as to_global
from jobflow.functional import to_local as to_local
from jobflow.functional import topk as topk
from jobflow.functional import tril as tril
from jobflow.functional import tril_ as tril_
from jobflow.functional import triu as triu
from jobflow.functional import triu_ as triu_
from jobflow.functional import true_divide as true_divide
from jobflow.functional import trunc as trunc
from jobflow.functional import type_as as type_as
from jobflow.functional import unbind as unbind
from jobflow.functional import unflatten as unflatten
from jobflow.functional import unique as unique
from jobflow.functional import unsqueeze as unsqueeze
from jobflow.functional import var as var
from jobflow.functional import var_mean as var_mean
from jobflow.functional import vstack as vstack
from jobflow.functional.saving import load as load
from jobflow.functional.saving import save as save
from jobflow.legacy import deprecated as deprecated
from jobflow.legacy import image as image
from jobflow.legacy import initializers as initializers
from jobflow.legacy import layers as layers
from jobflow.legacy import linalg as linalg
from jobflow.legacy import losses as losses
from jobflow.legacy import math as math
from jobflow.legacy import onnx as onnx
from jobflow.legacy import optimizer as optimizer
from jobflow.legacy import profiler as profiler
from jobflow.legacy import random as random
from jobflow.legacy import regularizers as regularizers
from jobflow.legacy import sysconfig as sysconfig
from jobflow.legacy import system as system
from jobflow.legacy import tensorrt as tensorrt
from jobflow.legacy import train as train
from jobflow.legacy import util as util
from jobflow.legacy.aliases import InitEagerGlobalSession as InitEagerGlobalSession
from jobflow.legacy.aliases import cast_to_current_logical_view as cast_to_current_logical_view
from jobflow.legacy.aliases import convert_oneflow_dtype_to_numpy_dtype as convert_oneflow_dtype_to_numpy_dtype
from jobflow.legacy.aliases import current_global_function_desc as current_global_function_desc
from jobflow.legacy.aliases import current_machine_id as current_machine_id
from jobflow.legacy.aliases import current_resource as current_resource
from jobflow.legacy.aliases import current_scope as current_scope
from jobflow.legacy.aliases import device_prior_placement as device_prior_placement
from jobflow.legacy.aliases import dtypes as dtypes
from jobflow.legacy.aliases import eager_execution_enabled as eager_execution_enabled
from jobflow.legacy.aliases import eager_nccl_all_reduce as eager_nccl_all_reduce
from jobflow.legacy.aliases import enable_eager_execution as enable_eager_execution
from jobflow.legacy.aliases import find_or_create_module as find_or_create_module
from jobflow.legacy.aliases import fixed_placement as fixed_placement
from jobflow.legacy.aliases import inter_job_reuse_mem_strategy as inter_job_reuse_mem_strategy
from jobflow.legacy.aliases import is_deprecated as is_deprecated
from jobflow.legacy.aliases import name_scope as name_scope
from jobflow.legacy.aliases import to as to
from jobflow.legacy.arrays import amp_white_identity as amp_white_identity
from jobflow.legacy.arrays import broadcast_like as broadcast_like
from jobflow.legacy.arrays import cast_to_static_shape as cast_to_static_shape
from jobflow.legacy.arrays import constant as constant
from jobflow.legacy.arrays import constant_like as constant_like
from jobflow.legacy.arrays import constant_pad2d as constant_pad2d
from jobflow.legacy.arrays import constant_scalar as constant_scalar
from jobflow.legacy.arrays import dim_gather as dim_gather
from jobflow.legacy.arrays import dynamic_reshape as dynamic_reshape
from jobflow.legacy.arrays import elem_cnt as elem_cnt
from jobflow.legacy.arrays import expand_dims as expand_dims
from jobflow.legacy.arrays import identity as identity
from jobflow.legacy.arrays import identity_n as identity_n
from jobflow.legacy.arrays import pad as pad
from jobflow.legacy.arrays import pad_grad as pad_grad
from jobflow.legacy.arrays import reflection_pad2d as reflection_pad2d
from jobflow.legacy.arrays import replication_pad2d as replication_pad2d
from jobflow.legacy.arrays import reshape_like as reshape_like
from jobflow.legacy.arrays import reverse as reverse
from jobflow.legacy.arrays import same_padding as same_padding
from jobflow.legacy.arrays import slice as slice
from jobflow.legacy.arrays import slice_v2 as slice_v2
from jobflow.legacy.arrays import zero_pad2d as zero_pad2d
from jobflow.legacy.declare import global_function as global_function
from jobflow.legacy.elements import combined_margin_loss as combined_margin_loss
from jobflow.legacy.elements import gather_nd as gather_nd
from jobflow.legacy.elements import scatter_nd as scatter_nd
from jobflow.legacy.elements import slice_update as slice_update
from jobflow.legacy.elements import tensor_scatter_nd_add as tensor_scatter_nd_add
from jobflow.legacy.elements import tensor_scatter_nd_update as tensor_scatter_nd_update
from jobflow.legacy.extras import advanced as advanced
from jobflow.legacy.extras import detection as detection
from jobflow.legacy.extras import experimental as experimental
from jobflow.legacy.extras import quantization as quantization
from jobflow.legacy.extras import saved_model as saved_model
from jobflow.legacy.extras import serving as serving
from jobflow.legacy.extras import summary as summary
from jobflow.legacy.extras import unittest as unittest
from jobflow.legacy.extras.detection import object_bbox_flip as object_bbox_flip
from jobflow.legacy.extras.detection import object_bbox_scale as object_bbox_scale
from jobflow.legacy.extras.detection import object_segmentation_polygon_flip as object_segmentation_polygon_flip
from jobflow.legacy.extras.detection import object_segmentation_polygon_scale as object_segmentation_polygon_scale
from jobflow.legacy.extras.detection import object_segmentation_polygon_to_mask as object_segmentation_polygon_to_mask
from jobflow.legacy.extras.user_ops import builtin_op as builtin_op
from jobflow.legacy.extras.user_ops import consistent_user_op_builder as consistent_user_op_builder
from jobflow.legacy.extras.user_ops import consistent_user_op_module_builder as consistent_user_op_module_builder
from jobflow.legacy.extras.user_ops import user_op_builder as user_op_builder
from jobflow.legacy.extras.user_ops import user_op_module_builder as user_op_module_builder
from jobflow.legacy.ids import categorical_ordinal_encode as categorical_ordinal_encode
from jobflow.legacy.ids import distributed_partial_fc_sample as distributed_partial_fc_sample
from jobflow.legacy.ids import sync_dynamic_resize as sync_dynamic_resize
from jobflow.legacy.image import batch_align as image_batch_align
from jobflow.legacy.image import decode as image_decode
from jobflow.legacy.image import flip as image_flip
from jobflow.legacy.image import normalize as image_normalize
from jobflow.legacy.image import random_crop as image_random_crop
from jobflow.legacy.image import resize as image_resize
from jobflow.legacy.image import target_resize as image_target_resize
from jobflow.legacy.initializers import constant_initializer as constant_initializer
from jobflow.legacy.initializers import empty_initializer as empty_initializer
from jobflow.legacy.initializers import glorot_normal_initializer as glorot_normal_initializer
from jobflow.legacy.initializers import glorot_uniform_initializer as glorot_uniform_initializer
from jobflow.legacy.initializers import kaiming_initializer as kaiming_initializer
from jobflow.legacy.initializers import ones_initializer as ones_initializer
from jobflow.legacy.initializers import random_normal_initializer as random_normal_initializer
from jobflow.legacy.initializers import random_uniform_initializer as random_uniform_initializer
from jobflow.legacy.initializers import truncated_normal as truncated_normal
from jobflow.legacy.initializers import truncated_normal_initializer as truncated_normal_initializer
from jobflow.legacy.initializers import variance_scaling_initializer as variance_scaling_initializer
from jobflow.legacy.initializers import xavier_normal_initializer as xavier_normal_initializer
from jobflow.legacy.initializers import xavier_uniform_initializer as xavier_uniform_initializer
from jobflow.legacy.initializers import zeros_initializer as zeros_initializer
from jobflow.legacy.loss_functions import smooth_l1_loss as smooth_l1_loss
from jobflow.legacy.math import broadcast_to_compatible_with as broadcast_to_compatible_with
from jobflow.legacy.math import clip_by_scalar as clip_by_scalar
from jobflow.legacy.math import clip_by_value as clip_by_value
from jobflow.legacy.math import count_not_finite as count_not_finite
from jobflow.legacy.math import in_top_k as in_top_k
from jobflow.legacy.math import multi_count_not_finite as multi_count_not_finite
from jobflow.legacy.math import unsorted_batch_segment_sum as unsorted_batch_segment_sum
from jobflow.legacy.math import unsorted_segment_sum as unsorted_segment_sum
from jobflow.legacy.math import unsorted_segment_sum_like as unsorted_segment_sum_like
from jobflow.legacy.shared_names import argsort as argsort
from jobflow.legacy.shared_names import argwhere as argwhere
from jobflow.legacy.shared_names import cast as cast
from jobflow.legacy.shared_names import clamp as clamp
from jobflow.legacy.shared_names import clip as clip
from jobflow.legacy.shared_names import concat as concat
from jobflow.legacy.shared_names import ctc_loss as ctc_loss
from jobflow.legacy.shared_names import diag as diag
from jobflow.legacy.shared_names import expand as expand
from jobflow.legacy.shared_names import flatten as flatten
from jobflow.legacy.shared_names import gather as gather
from jobflow.legacy.shared_names import hierarchical_parallel_cast as hierarchical_parallel_cast
from jobflow.legacy.shared_names import masked_fill as masked_fill
from jobflow.legacy.shared_names import matmul as matmul
from jobflow.legacy.shared_names import nonzero as nonzero
from jobflow.legacy.shared_names import one_hot as one_hot
from jobflow.legacy.shared_names import ones as ones
from jobflow.legacy.shared_names import ones_like as ones_like
from jobflow.legacy.shared_names import parallel_cast as parallel_cast
from jobflow.legacy.shared_names import range as range
from jobflow.legacy.shared_names import repeat as repeat
from jobflow.legacy.shared_names import reshape as reshape
from jobflow.legacy.shared_names import sort as sort
from jobflow.legacy.shared_names import squeeze as squeeze
from jobflow.legacy.shared_names import stack as stack
from jobflow.legacy.shared_names import transpose as transpose
from jobflow.legacy.shared_names import where as where
from jobflow.legacy.shared_names import zeros as zeros
from jobflow.legacy.shared_names import zeros_like as zeros_like
from jobflow.legacy.tensor_buffers import gen_tensor_buffer as gen_tensor_buffer
from jobflow.legacy.tensor_buffers import tensor_buffer_to_list_of_tensors as tensor_buffer_to_list_of_tensors
from jobflow.legacy.tensor_buffers import tensor_buffer_to_tensor as tensor_buffer_to_tensor
from jobflow.legacy.tensor_buffers import tensor_buffer_to_tensor_list as tensor_buffer_to_tensor_list
from jobflow.legacy.tensor_buffers import tensor_list_split as tensor_list_split
from jobflow.legacy.tensor_buffers import tensor_list_to_tensor_buffer as tensor_list_to_tensor_buffer
from jobflow.legacy.tensor_buffers import tensor_to_tensor_buffer as tensor_to_tensor_buffer
from jobflow.legacy.time_steps import acc as acc
from jobflow.legacy.time_steps import pack as pack
from jobflow.legacy.time_steps import unpack as unpack
from jobflow.legacy.variables import assign as assign
from jobflow.legacy.variables import get_variable as get_variable
from jobflow.legacy.watch import watch as watch
from jobflow.legacy.watch import watch_diff as watch_diff
from jobflow.nn import amp as amp
from jobflow.nn.compiled.compiling import compile as compile
from jobflow.storage.session_variables import get_all_variables as get_all_variables
from jobflow.storage.session_variables import load_variables as load_variables
from jobflow.trainer import model as model
from jobflow.trainer.model import Model as Model
from jobflow.typing import FixedTensorDef, MirroredTensorDef, MirroredTensorListDef

__all__ = [
    "acc",
    "advanced",
    "AbortedError",
    "ArgumentError",
    "CheckpointError",
    "ConfigError",
    "DataError",
    "DivergedError",
    "DtypeError",
    "DuplicateNameError",
    "ExecutionConfig",
    "FixedTensorDef",
    "FunctionConfig",
    "INVALID_SPLIT_AXIS",
    "JobError",
    "JobflowError",
    "MirroredTensorDef",
    "PlacementError",
    "PlanError",
    "RankError",
    "ReplacedError",
    "SbpError",
    "ShapeError",
    "InitEagerGlobalSession",
    "Model",
    "__version__",
    "amp_white_identity",
    "argsort",
    "argwhere",
    "assign",
    "bfloat16",
    "bool",
    "bool_",
    "broadcast_like",
    "broadcast_to_compatible_with",
    "builtin_op",
    "cast",
    "cast_to_current_logical_view",
    "cast_to_static_shape",
    "categorical_ordinal_encode",
    "char",
    "checkpoint",
    "checkpointed",
    "clamp",
    "clear_default_session",
    "clip",
    "clip_by_scalar",
    "clip_by_value",
    "combined_margin_loss",
    "compile",
    "concat",
    "config",
    "consistent_user_op_builder",
    "consistent_user_op_module_builder",
    "constant",
    "constant_initializer",
    "constant_like",
    "constant_pad2d",
    "constant_scalar",
    "convert_oneflow_dtype_to_numpy_dtype",
    "count_not_finite",
    "ctc_loss",
    "current_global_function_desc",
    "current_machine_id",
    "current_resource",
    "current_scope",
    "data",
    "deprecated",
    "device_prior_placement",
    "diag",
    "dim_gather",
    "distribute",
    "distributed_partial_fc_sample",
    "double",
    "dtype",
    "dtypes",
    "dynamic_reshape",
    "eager_execution_enabled",
    "eager_nccl_all_reduce",
    "elem_cnt",
    "empty_initializer",
    "enable_eager_execution",
    "env",
    "expand",
    "expand_dims",
    "experimental",
    "find_or_create_module",
    "fixed_placement",
    "flatten",
    "float",
    "float16",
    "float32",
    "float64",
    "function_config",
    "gather",
    "gather_nd",
    "get_all_variables",
    "get_variable",
    "global_function",
    "glorot_normal_initializer",
    "glorot_uniform_initializer",
    "half",
    "hierarchical_parallel_cast",
    "identity",
    "identity_n",
    "image",
    "image_batch_align",
    "image_decode",
    "image_flip",
    "image_normalize",
    "image_random_crop",
    "image_resize",
    "image_target_resize",
    "in_top_k",
    "initializers",
    "int",
    "int32",
    "int64",
    "int8",
    "inter_job_reuse_mem_strategy",
    "is_deprecated",
    "kaiming_initializer",
    "layers",
    "linalg",
    "load_variables",
    "long",
    "losses",
    "masked_fill",
    "math",
    "matmul",
    "model",
    "multi_count_not_finite",
    "name_scope",
    "nn",
    "nonzero",
    "one_hot",
    "ones",
    "ones_initializer",
    "ones_like",
    "onnx",
    "optimizer",
    "pack",
    "pad",
    "pad_grad",
    "parallel_cast",
    "placement",
    "profiler",
    "quantization",
    "random",
    "random_normal_initializer",
    "random_uniform_initializer",
    "range",
    "reflection_pad2d",
    "regularizers",
    "repeat",
    "replication_pad2d",
    "reshape",
    "reshape_like",
    "reverse",
    "saved_model",
    "same_padding",
    "sbp",
    "scatter_nd",
    "scope",
    "serving",
    "slice",
    "slice_update",
    "slice_v2",
    "smooth_l1_loss",
    "sort",
    "squeeze",
    "stack",
    "strategies",
    "summary",
    "sync_default_session",
    "sysconfig",
    "sync_dynamic_resize",
    "system",
    "tensor_buffer_to_tensor",
    "tensor_scatter_nd_add",
    "tensor_scatter_nd_update",
    "tensorrt",
    "to",
    "train",
    "transpose",
    "truncated_normal",
    "truncated_normal_initializer",
    "typing",
    "uint8",
    "unittest",
    "unpack",
    "unsorted_batch_segment_sum",
    "unsorted_segment_sum",
    "unsorted_segment_sum_like",
    "util",
    "user_op_builder",
    "user_op_module_builder",
    "variance_scaling_initializer",
    "watch",
    "watch_diff",
    "where",
    "xavier_normal_initializer",
    "xavier_uniform_initializer",
    "zero_pad2d",
    "zeros",
    "zeros_initializer",
    "zeros_like",
    "record",
    "tensor_buffer",
    "detection",
    "MirroredTensorListDef",
    "object_bbox_flip",
    "object_bbox_scale",
    "object_segmentation_polygon_flip",
    "object_segmentation_polygon_scale",
    "object_segmentation_polygon_to_mask",
    "gen_tensor_buffer",
    "tensor_buffer_to_list_of_tensors",
    "tensor_buffer_to_tensor_list",
    "tensor_list_split",
    "tensor_list_to_tensor_buffer",
    "tensor_to_tensor_buffer",
]
