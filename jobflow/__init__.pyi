"""The table of contents of the public face: each name, and where it is defined.  `__init__.py` reads it, and imports what is asked for.

Names of tensors that are not here are those of `jobflow.functional`.
"""

import typing as _typing
from math import inf as inf
from math import nan as nan
from math import pi as pi

from jobflow import (
    advanced,
    checkpoint,
    data,
    deprecated,
    distribute,
    experimental,
    initializers,
    layers,
    linalg,
    losses,
    math,
    nn,
    optimizer,
    random,
    regularizers,
    scope,
    strategies,
    train,
    typing,
)
from jobflow import (
    amp as amp,
)
from jobflow import (
    autograd as autograd,
)
from jobflow import (
    comm as comm,
)
from jobflow import (
    cuda as cuda,
)
from jobflow import (
    distributed as distributed,
)
from jobflow import (
    functional as functional,
)
from jobflow import (
    optim as optim,
)
from jobflow import (
    utils as utils,
)
from jobflow.arrays import (
    amp_white_identity,
    broadcast_like,
    cast_to_static_shape,
    constant,
    constant_like,
    constant_pad2d,
    constant_scalar,
    dim_gather,
    elem_cnt,
    expand_dims,
    identity,
    identity_n,
    pad,
    pad_grad,
    range,
    reflection_pad2d,
    replication_pad2d,
    reshape_like,
    reverse,
    slice,
    slice_v2,
    zero_pad2d,
)
from jobflow.checkpoint.variables import get_all_variables, load_variables
from jobflow.declare import global_function
from jobflow.distribute import hierarchical_parallel_cast, parallel_cast
from jobflow.eager.tensor import Size as Size
from jobflow.errors import (
    AbortedError,
    ArgumentError,
    CheckpointError,
    ConfigError,
    DataError,
    DivergedError,
    DtypeError,
    DuplicateNameError,
    JobError,
    JobflowError,
    PlacementError,
    PlanError,
    RankError,
    SbpError,
    ShapeError,
)
from jobflow.faces import (
    cast,
    clamp,
    clip,
    concat,
    expand,
    flatten,
    gather,
    masked_fill,
    matmul,
    one_hot,
    ones,
    ones_like,
    reshape,
    squeeze,
    stack,
    transpose,
    where,
    zeros,
    zeros_like,
)
from jobflow.handle import INVALID_SPLIT_AXIS
from jobflow.initializers import (
    constant_initializer,
    empty_initializer,
    glorot_normal_initializer,
    glorot_uniform_initializer,
    kaiming_initializer,
    ones_initializer,
    random_normal_initializer,
    random_uniform_initializer,
    truncated_normal,
    truncated_normal_initializer,
    variance_scaling_initializer,
    xavier_normal_initializer,
    xavier_uniform_initializer,
    zeros_initializer,
)
from jobflow.job_config import ExecutionConfig, FunctionConfig, function_config
from jobflow.math import (
    broadcast_to_compatible_with,
    clip_by_scalar,
    clip_by_value,
    count_not_finite,
    in_top_k,
    multi_count_not_finite,
    unsorted_batch_segment_sum,
    unsorted_segment_sum,
    unsorted_segment_sum_like,
)
from jobflow.nn.losses import smooth_l1_loss
from jobflow.placements import placement, sbp
from jobflow.saving import load as load
from jobflow.saving import save as save
from jobflow.scope import checkpointed
from jobflow.session import clear_default_session, config, env, sync_default_session
from jobflow.spellings import (
    cast_to_current_logical_view,
    convert_oneflow_dtype_to_numpy_dtype,
    current_global_function_desc,
    current_scope,
    device_prior_placement,
    dtypes,
    eager_execution_enabled,
    enable_eager_execution,
    fixed_placement,
    name_scope,
)
from jobflow.types import DType as dtype
from jobflow.types import bfloat16, bool_, char, float16, float32, float64, int8, int32, int64, uint8
from jobflow.types import bool_ as bool
from jobflow.types import float16 as half
from jobflow.types import float32 as float
from jobflow.types import float64 as double
from jobflow.types import int32 as int
from jobflow.types import int64 as long
from jobflow.typing import FixedTensorDef, MirroredTensorDef
from jobflow.variables import assign, get_variable
from jobflow.version import __version__
from jobflow.watching import watch, watch_diff

def __getattr__(name: str) -> _typing.Any: ...

__all__ = [
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
    "SbpError",
    "ShapeError",
    "amp_white_identity",
    "assign",
    "bfloat16",
    "bool",
    "bool_",
    "broadcast_like",
    "broadcast_to_compatible_with",
    "cast",
    "cast_to_current_logical_view",
    "cast_to_static_shape",
    "char",
    "checkpoint",
    "checkpointed",
    "clamp",
    "clear_default_session",
    "clip",
    "clip_by_scalar",
    "clip_by_value",
    "concat",
    "config",
    "constant",
    "constant_initializer",
    "constant_like",
    "constant_pad2d",
    "constant_scalar",
    "convert_oneflow_dtype_to_numpy_dtype",
    "count_not_finite",
    "current_global_function_desc",
    "current_scope",
    "data",
    "deprecated",
    "device_prior_placement",
    "dim_gather",
    "distribute",
    "double",
    "dtype",
    "dtypes",
    "eager_execution_enabled",
    "elem_cnt",
    "empty_initializer",
    "enable_eager_execution",
    "env",
    "expand",
    "experimental",
    "expand_dims",
    "fixed_placement",
    "flatten",
    "float",
    "float16",
    "float32",
    "float64",
    "function_config",
    "gather",
    "get_all_variables",
    "get_variable",
    "global_function",
    "glorot_normal_initializer",
    "glorot_uniform_initializer",
    "half",
    "hierarchical_parallel_cast",
    "identity",
    "identity_n",
    "in_top_k",
    "initializers",
    "int",
    "int32",
    "int64",
    "int8",
    "kaiming_initializer",
    "layers",
    "linalg",
    "load_variables",
    "long",
    "losses",
    "masked_fill",
    "math",
    "matmul",
    "multi_count_not_finite",
    "name_scope",
    "nn",
    "one_hot",
    "ones",
    "ones_initializer",
    "ones_like",
    "optimizer",
    "pad",
    "pad_grad",
    "placement",
    "parallel_cast",
    "random",
    "random_normal_initializer",
    "random_uniform_initializer",
    "range",
    "reflection_pad2d",
    "regularizers",
    "replication_pad2d",
    "reshape",
    "reshape_like",
    "reverse",
    "sbp",
    "scope",
    "strategies",
    "slice",
    "slice_v2",
    "smooth_l1_loss",
    "squeeze",
    "stack",
    "sync_default_session",
    "train",
    "transpose",
    "truncated_normal",
    "truncated_normal_initializer",
    "typing",
    "uint8",
    "unsorted_batch_segment_sum",
    "unsorted_segment_sum",
    "unsorted_segment_sum_like",
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
    "__version__",
]
