"""Devices of local tensors: device("cpu"), device("cuda:0").

Tensors of programs written for GPUs keep their device's name where there is no GPU, and live on the host, with one notice.  Where there is
one they are refused, because nothing would use it: `placements.on_host`.
"""

from __future__ import annotations

from typing import Any

from jobflow.core.errors import PlacementError, user_line
from jobflow.eager.state import state
from jobflow.engine.placements import on_host
from jobflow.functional.typed import Tensor

TYPES = ("cpu", "cuda")


class device:
    """Where a local tensor lives: a type, "cpu" or "cuda", and a number among those of the machine; "cuda:1" says both."""

    __slots__ = ("index", "type")
    type: str
    index: int

    def __init__(self, type: str | device, index: int | None = None) -> None:
        if isinstance(type, device):
            index = type.index
            type = type.type
        name, colon, number = str(type).partition(":")
        if name not in TYPES or (colon and (index is not None or not number.isdecimal())) or (index is not None and index < 0):
            given = repr(type) if index is None else f"{type!r}, {index!r}"
            raise PlacementError(f'device at {user_line()}: {given} is not a device; use "cpu", "cuda" or "cuda:0"')
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


def checked_device(what: str, given: Any) -> device | None:
    """The device that `device=` names; None for None.  PlacementError for what is none."""
    if given is None:
        return None
    found = _numbered(given)
    if found is None:
        raise PlacementError(f'{what} at {user_line()}: device={given!r} is not a device; use "cpu", "cuda" or "cuda:0"')
    return found


def _numbered(given: Any) -> device | None:
    """A device without a number is that of this rank if it is a GPU."""
    if isinstance(given, int) and not isinstance(given, bool):
        return device("cuda", given)
    if given == "cuda":
        return device("cuda", state().rank.index)
    return given if isinstance(given, device) else device(given) if isinstance(given, str) else None


def is_device(given: Any) -> bool:
    """Whether it names a device."""
    return isinstance(given, device) or (isinstance(given, str) and given.partition(":")[0] in TYPES)


def marked(x: Tensor, where: device | None) -> Tensor:
    """x, said to live there."""
    if where is not None and x.layout is None:
        if where.type == "cuda":
            on_host(f"device={str(where)!r} at {user_line()}")
        x._device = None if where == device("cpu") else where
    return x


def device_of(x: Tensor) -> device:
    """Of a local tensor."""
    return device("cpu") if x._device is None else x._device
