"""PyTorch's memory formats and storage layout, which functions accept and check; elements are in row-major order."""

from __future__ import annotations

from typing import Any

from jobflow.core.errors import ArgumentError, user_line

__all__ = ["channels_last", "channels_last_3d", "contiguous_format", "memory_format", "preserve_format", "strided"]


class memory_format:
    """An order of elements in memory: `contiguous_format`, `preserve_format`, `channels_last` or `channels_last_3d`.

    Functions accept every format as `memory_format=`, but their results are in row-major order.
    """

    def __init__(self, name: str) -> None:
        self.name = name

    def __repr__(self) -> str:
        return f"jobflow.{self.name}"

    def __reduce__(self) -> str:
        return self.name


contiguous_format = memory_format("contiguous_format")
preserve_format = memory_format("preserve_format")
channels_last = memory_format("channels_last")
channels_last_3d = memory_format("channels_last_3d")

#: number of axes of a tensor with a format
_AXES = {channels_last: 4, channels_last_3d: 5}


class _Layout:
    """The storage layout of tensors; `layout=` accepts no other."""

    def __repr__(self) -> str:
        return "jobflow.strided"

    def __reduce__(self) -> str:
        return "strided"


strided = _Layout()


def check_format(what: str, format: Any, ndim: int | None = None) -> None:
    """Raise ArgumentError unless `format` is None or a memory format, for tensors with `ndim` axes (None: any number)."""
    if format is None:
        return
    if not isinstance(format, memory_format):
        raise ArgumentError(f"{what} at {user_line()}: memory_format must be a format such as jobflow.channels_last; got {format!r}")
    if ndim is not None and _AXES.get(format, ndim) != ndim:
        raise ArgumentError(f"{what} at {user_line()}: memory_format={format!r} is for tensors with {_AXES[format]} axes; got {ndim}")


def channels_follow(format: Any, ndim: int) -> bool:
    """Return True if the channels of a tensor with `ndim` axes are the last axis in this format."""
    return _AXES.get(format) == ndim
