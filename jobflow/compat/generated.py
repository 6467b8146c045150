"""Names that programs import from modules generated from protocol buffers, `oneflow.core.*_pb2`.

Messages that programs write to files (records) are real.  The others provide constants and names for annotations.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from jobflow.core.scope import placement
from jobflow.data.ofrecord import record_classes
from jobflow.engine.distribute import Distribute
from jobflow.engine.job_config import FunctionConfig
from jobflow.legacy.initializers import Initializer
from jobflow.legacy.regularizers import Regularizer
from jobflow.legacy.util import unique_str

#: the numbers of element types in files
DATA_TYPES = "kInvalidDataType kChar kFloat kDouble kInt8 kInt32 kInt64 kUInt8 kOFRecord kFloat16 kTensorBuffer"
#: the numbers of activations
ACTIVATIONS = "kNone kTanH kRelu kSigmoid"


def _numbered(words: str) -> dict[str, int]:
    return {word: number for number, word in enumerate(words.split())}


#: contents by module name below `oneflow`
MODULES: Mapping[str, Callable[[], Mapping[str, Any]]] = {
    "core.record.record_pb2": record_classes,
    "core.common.data_type_pb2": lambda: _numbered(DATA_TYPES),
    "core.operator.op_conf_pb2": lambda: _numbered(ACTIVATIONS),
    "core.job.initializer_conf_pb2": lambda: {"InitializerConf": Initializer},
    "core.job.regularizer_conf_pb2": lambda: {"RegularizerConf": Regularizer},
    "core.job.job_conf_pb2": lambda: {"JobConfigProto": FunctionConfig},
    "core.job.placement_pb2": lambda: {"ParallelConf": placement},
    "core.job.sbp_parallel_pb2": lambda: {"SbpParallel": Distribute},
    "python.framework.id_util": lambda: {"UniqueStr": unique_str},
}
