"""The namespace `jobflow.types`: types for annotations, as in `torch.types`."""

from __future__ import annotations

import builtins
import os
from collections.abc import Sequence
from typing import Any, TypeAlias

from jobflow.core.types import DType
from jobflow.functional.devices import device
from jobflow.functional.tensor_class import Tensor
from jobflow.tensors.tensor import Size

_int, _float, _bool = builtins.int, builtins.float, builtins.bool
_dtype = DType
_device = device
_size: TypeAlias = Size | list[int] | tuple[int, ...]
_TensorOrTensors: TypeAlias = Tensor | Sequence[Tensor]
Number: TypeAlias = int | float | bool
Device: TypeAlias = device | str | int | None
FileLike: TypeAlias = str | os.PathLike[str] | Any
Storage: TypeAlias = Any
