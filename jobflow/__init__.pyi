"""The table of contents of the public face: each name, and where it is defined.  `__init__.py` reads it, and imports what is asked for."""

from math import inf as inf
from math import nan as nan
from math import pi as pi

from jobflow import compiler as compiler
from jobflow import data as data
from jobflow import distributed as distributed
from jobflow import distributions as distributions
from jobflow import functional as functional
from jobflow import models as models
from jobflow import nn as nn
from jobflow import optim as optim
from jobflow import storage as checkpoint
from jobflow import strategies as strategies
from jobflow import typing as typing
from jobflow import utils as utils
from jobflow.core import errors as errors
from jobflow.core import filters as filters
from jobflow.core import scope as scope
from jobflow.core import version as version
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
from jobflow.core.types import int16 as int16
from jobflow.core.types import int16 as short
from jobflow.core.types import int32 as int
from jobflow.core.types import int32 as int32
from jobflow.core.types import int64 as int64
from jobflow.core.types import int64 as long
from jobflow.core.types import record as record
from jobflow.core.types import tensor_buffer as tensor_buffer
from jobflow.core.types import uint8 as uint8
from jobflow.core.version import __version__ as __version__
from jobflow.engine import distribute as distribute
from jobflow.engine.job_config import ExecutionConfig as ExecutionConfig
from jobflow.engine.job_config import FunctionConfig as FunctionConfig
from jobflow.engine.job_config import function_config as function_config
from jobflow.engine.job_tensor import INVALID_SPLIT_AXIS as INVALID_SPLIT_AXIS
from jobflow.engine.placements import placement as placement
from jobflow.engine.placements import sbp as sbp
from jobflow.engine.session import clear_default_session as clear_default_session
from jobflow.engine.session import config as config
from jobflow.engine.session import env as env
from jobflow.engine.session import sync_default_session as sync_default_session
from jobflow.functional import autograd as autograd
from jobflow.functional import backends as backends
from jobflow.functional import comm as comm
from jobflow.functional import cuda as cuda
from jobflow.functional import hub as hub
from jobflow.functional import jit as jit
from jobflow.functional import mps as mps
from jobflow.functional import multiprocessing as multiprocessing
from jobflow.functional import sparse as sparse
from jobflow.functional import special as special
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
from jobflow.nn.autocasting import autocast as autocast
from jobflow.nn.autocasting import get_autocast_dtype as get_autocast_dtype
from jobflow.nn.autocasting import is_autocast_enabled as is_autocast_enabled
from jobflow.nn.compiled.compiling import compile as compile
from jobflow.storage.session_variables import get_all_variables as get_all_variables
from jobflow.storage.session_variables import load_variables as load_variables
from jobflow.tensors.tensor import Size as Size
from jobflow.trainer import model as model
from jobflow.trainer.model import Model as Model
from jobflow.typing import FixedTensorDef as FixedTensorDef
from jobflow.typing import MirroredTensorDef as MirroredTensorDef
from jobflow.typing import MirroredTensorListDef as MirroredTensorListDef

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
    "int16",
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
    "short",
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

# All functions of tensors; names of both APIs are those above, which choose by arguments.
from jobflow.functional import *  # type: ignore[assignment]
