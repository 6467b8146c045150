"""Devices of local tensors, such as device("cpu") and device("cuda:0").

Tensors of the device "cuda" use host memory if there is no GPU, with one notice.  If there is a GPU, `placements.on_host` raises an error,
because eager operations do not run on GPUs.
"""

from __future__ import annotations

from typing import Any

from jobflow.core.errors import PlacementError, user_line
from jobflow.engine.placements import on_host
from jobflow.functional.typed import Tensor
from jobflow.tensors.state import state

TYPES = ("cpu", "cuda")


class device:
    """The device of a local tensor: `type` is "cpu" or "cuda", and `index` is its number on the machine, 0 by default.

    device("cuda:1") is device("cuda", 1).  Raises: PlacementError for another string or a negative index.
    """

    __slots__ = ("index", "type")
    type: str
    index: int

    def __init__(self, type: str | device, index: int | None = None) -> None:
        if isinstance(type, device):
            index = type.index
            type = type.type
        name, colon, number = str(type).partition(":")
        if name not in TYPES or (colon and (index is not None or not number.isdecimal())) or (index is not None and index < 0):
            description = repr(type) if index is None else f"{type!r}, {index!r}"
            raise PlacementError(f'device at {user_line()}: {description} is not a device; use "cpu", "cuda" or "cuda:0"')
        self.type = name
        self.index = int(number) if colon else 0 if index is None else int(index)

    def __repr__(self) -> str:
        return f"device(type={self.type!r}, index={self.index})"

    def __str__(self) -> str:
        return f"{self.type}:{self.index}"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, device) and (self.type, self.index) == (other.type, other.index)

    def __hash__(self) -> int:
        return hash((self.type, self.index))

    def __reduce__(self) -> tuple[Any, ...]:
        return device, (self.type, self.index)


def checked_device(what: str, requested: Any) -> device | None:
    """Return the device that `device=` names, or None for None.  Raises: PlacementError for other arguments."""
    if requested is None:
        return None
    named = _numbered(requested)
    if named is None:
        raise PlacementError(f'{what} at {user_line()}: device={requested!r} is not a device; use "cpu", "cuda" or "cuda:0"')
    return named


def _numbered(requested: Any) -> device | None:
    """Return the device that an integer, a string or a device names, or None for another argument.

    An integer is the index of a GPU.  "cuda" without an index is the GPU of `cuda.set_device`, by default with the index of this rank.
    """
    if isinstance(requested, int) and not isinstance(requested, bool):
        return device("cuda", requested)
    if requested == "cuda":
        here = state()
        return device("cuda", here.rank.index if here.cuda_index is None else here.cuda_index)
    return requested if isinstance(requested, device) else device(requested) if isinstance(requested, str) else None


def is_device(argument: Any) -> bool:
    """Return True if the argument is a device or starts with the name of a device type."""
    return isinstance(argument, device) or (isinstance(argument, str) and argument.partition(":")[0] in TYPES)


def marked(x: Tensor, where: device | None) -> Tensor:
    """Set the device of a local tensor to `where`, unless `where` is None, and return the tensor; a global tensor has no device."""
    if where is not None and x.layout is None:
        if where.type == "cuda":
            on_host(f"device={str(where)!r} at {user_line()}")
        x._device = None if where == device("cpu") else where
    return x


def device_of(x: Tensor) -> device:
    """Return the device of a local tensor."""
    return device("cpu") if x._device is None else x._device
