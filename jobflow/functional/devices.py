"""Devices of tensors, such as device("cpu") and device("cuda:0").

The device of a global tensor has a placement.  Functions with a parameter `device` then create a global tensor, broadcast on this placement.
The device "cuda:1" is the second GPU that this process can use, and "cuda" is the GPU of this rank.  Without a GPU, tensors of the device "cuda"
use host memory, with one notice.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from jobflow.core.errors import PlacementError, user_line
from jobflow.core.layout import B, Layout
from jobflow.engine.placements import note_without_gpu
from jobflow.engine.placements import placement as public_placement
from jobflow.functional.typed import Tensor
from jobflow.tensors.device_copies import moved
from jobflow.tensors.gpus import gpu_count, gpu_of, open_gpu, own_index
from jobflow.tensors.state import state

if TYPE_CHECKING:
    from jobflow.tensors.eager_gpu import EagerGpu

TYPES = ("cpu", "cuda")


class device:
    """The device of a tensor: `type` is "cpu" or "cuda", and `index` is its number on the machine, or None.

    `placement` is the placement of a global tensor, and None for a local tensor.  device("cuda:1") is device("cuda", 1).
    Devices with equal types and indices are equal, except for the devices of tensors with different placements, or of a local and a global tensor.
    Raises: PlacementError for another string or a negative index.
    """

    __slots__ = ("index", "is_local", "placement", "type")
    type: str
    index: int | None
    placement: public_placement | None
    #: True for the device of a local tensor
    is_local: bool

    def __init__(self, type: str | device, index: int | None = None) -> None:
        self.placement, self.is_local = None, False
        if isinstance(type, device) and index is None:
            self.type, self.index, self.placement, self.is_local = type.key
            return
        name, colon, number = str(type).partition(":")
        if name not in TYPES or (colon and (index is not None or not number.isdecimal())) or not _is_index(index):
            description = repr(type) if index is None else f"{type!r}, {index!r}"
            raise PlacementError(f'device at {user_line()}: {description} is not a device; use "cpu", "cuda" or "cuda:0"')
        self.type = name
        self.index = int(number) if colon else None if index is None else int(index)

    @property
    def key(self) -> tuple[str, int | None, public_placement | None, bool]:
        """The attributes type, index, placement and is_local."""
        return self.type, self.index, self.placement, self.is_local

    def __repr__(self) -> str:
        index = "" if self.index is None else f", index={self.index}"
        return f"device(type={self.type!r}{index}{'' if self.placement is None else f', placement={self.placement!r}'})"

    def __str__(self) -> str:
        return self.type if self.index is None else f"{self.type}:{self.index}"

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, device) or (self.type, self.index) != (other.type, other.index):
            return False
        return self.placement == other.placement or not (self._is_of_tensor and other._is_of_tensor)

    @property
    def _is_of_tensor(self) -> bool:
        return self.is_local or self.placement is not None

    def __hash__(self) -> int:
        return hash((self.type, self.index))

    def __reduce__(self) -> tuple[Any, ...]:
        return (device, (self.type, self.index)) if self.placement is None else (device_on, (self.placement,))


def device_on(placement: public_placement) -> device:
    """Return the device of the global tensors on a placement; the index of "cuda" is the number of the GPU of this rank."""
    result = device(placement.core.tag, _own_number() if placement.core.tag == "cuda" else None)
    result.placement = placement
    return result


def own_gpu() -> device:
    """Return the device "cuda" of this rank."""
    return device("cuda", _own_number())


def _own_number() -> int:
    """Return the number of the GPU of this rank; without GPUs, the number of the rank."""
    here = state()
    return own_index(here) if gpu_count(here) else here.rank.index


def _is_index(index: Any) -> bool:
    return index is None or (isinstance(index, int | np.integer) and not isinstance(index, bool) and int(index) >= 0)


def checked_device(what: str, requested: Any) -> device | None:
    """Return the device that `device=` names, or None for None.  Raises: PlacementError for other arguments."""
    if requested is None:
        return None
    named = _numbered(requested)
    if named is None:
        raise PlacementError(f'{what} at {user_line()}: device={requested!r} is not a device; use "cpu", "cuda" or "cuda:0"')
    return named


def checked_gpu(what: str, requested: Any) -> device:
    """Return the device "cuda" that an argument of `cuda.<what>` names, by default the current one.  Raises: PlacementError for another argument."""
    chosen = checked_device(f"cuda.{what}", "cuda" if requested is None else requested)
    assert chosen is not None
    if chosen.type != "cuda":
        raise PlacementError(f'cuda.{what} at {user_line()}: device={requested!r} is not a GPU; use "cuda", "cuda:0" or an index')
    return chosen


def _numbered(requested: Any) -> device | None:
    """Return the device that an integer, a string or a device names, or None for another argument.

    An integer is the index of a GPU.  "cuda" without an index is the GPU of `cuda.set_device`, by default the GPU of this rank.
    """
    if isinstance(requested, int) and not isinstance(requested, bool):
        return device("cuda", requested)
    if is_current_gpu(requested):
        chosen = state().cuda_index
        return device("cuda", _own_number() if chosen is None else chosen)
    return requested if isinstance(requested, device) else device(requested) if isinstance(requested, str) else None


def is_current_gpu(requested: Any) -> bool:
    """Return True for "cuda" without an index."""
    return requested == "cuda" if isinstance(requested, str) else isinstance(requested, device) and requested.key == ("cuda", None, None, False)


def is_device(argument: Any) -> bool:
    """Return True if the argument is a device or starts with the name of a device type."""
    return isinstance(argument, device) or (isinstance(argument, str) and argument.partition(":")[0] in TYPES)


def gpu_of_device(where: device | None) -> EagerGpu | None:
    """Return the GPU that a device names; None for the host, and for a GPU if there is none, with a notice.

    Raises: PlacementError for a GPU that does not exist.
    """
    if where is None or where.type == "cpu":
        return None
    gpu = open_gpu(state(), where.index, f"device={str(where)!r} at {user_line()}")
    if gpu is None:
        note_without_gpu()
    return gpu


def marked(x: Tensor, where: device | None) -> Tensor:
    """Return the local tensor x on the device `where`: x itself if its memory is there, otherwise a copy.

    Without `where`, and for a global tensor, the result is x.
    """
    if where is None or x.layout is not None:
        return x
    gpu, label = gpu_of_device(where), None if where.type == "cpu" else where
    if x.traced is None and gpu_of(x.array) is not gpu:
        return moved(state(), x, gpu, label)
    x._device = label
    return x


def device_of(x: Tensor) -> device:
    """Return the device of a tensor."""
    if x.layout is not None:
        return device_on(public_placement.of(x.layout.placement))
    here = state()
    if here.gpus and x.traced is None:  # the array decides
        gpu = gpu_of(x.array)
        result = device("cpu") if gpu is None else device("cuda", gpu.index)
    else:
        label = here.building.device if x._device is None and x.traced is not None and here.building is not None else x._device
        result = device("cpu" if label is None else label)
    result.is_local = True
    return result


def broadcast_on(where: device) -> Layout | None:
    """Return the layout of tensors that functions create on the device of a global tensor; None for the device of local tensors."""
    if where.placement is None:
        return None
    core = where.placement.core
    return Layout(core, (B,) * len(core.mesh))
