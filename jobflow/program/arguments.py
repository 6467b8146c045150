"""Arguments of a program: the parts that ranks read, and bounds on the values."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from jobflow.core.dataclass import dataclass
from jobflow.core.errors import JobflowError, user_line
from jobflow.core.layout import Box, Layout
from jobflow.core.types import Array
from jobflow.graph.ir import Physical
from jobflow.graph.training import ArgumentBounds
from jobflow.ops.source import Input
from jobflow.typing.lazy import Lazy


@dataclass(frozen=True)
class ArgumentPart:
    """A rank's part of an argument: a box within `rows`, or within all rows if `rows` is None.

    Without a box, the rank has a separate array.
    """

    key: str
    argument: str
    rows: slice | None
    box: Box | None

    def of(self, value: Array | Lazy) -> Array:
        """Return the part of an argument: a view of the caller's array, or the elements read from a lazy argument."""
        if isinstance(value, Lazy):
            return value[self.slices(value.shape)]
        rows = value if self.rows is None else value[self.rows]
        return rows if self.box is None or self.box.is_whole else rows[self.box.slices]

    def slices(self, shape: tuple[int, ...]) -> tuple[slice, ...]:
        """Return the part as slices of an argument of this shape."""
        first = 0 if self.rows is None else self.rows.start
        if self.box is None:
            return (slice(first, shape[0] if self.rows is None else self.rows.stop), *map(slice, shape[1:]))
        rows, *others = self.box.slices
        return (slice(first + rows.start, first + rows.stop), *others)


def argument_parts(programs: Sequence[Physical]) -> tuple[tuple[ArgumentPart, ...], ...]:
    """Return, for each rank, the parts of the arguments that its program reads."""
    return tuple(_parts(program, rank) for rank, program in enumerate(programs))


def _parts(physical: Physical, rank: int) -> tuple[ArgumentPart, ...]:
    parts: list[ArgumentPart] = []
    for value in physical.graph.inputs:
        layout, op = physical.layouts[value], value.node.op
        assert isinstance(op, Input)
        if rank in layout.placement.ranks:
            rows = slice(*op.part[1:]) if op.part is not None else None
            parts.append(ArgumentPart(op.key, op.argument, rows, layout.box(value.shape, rank) if isinstance(layout, Layout) else None))
    return tuple(parts)


def check_arguments(program: str, bounds: Iterable[ArgumentBounds], arguments: Mapping[str, Any]) -> None:
    """Raise an error, of the class that a bound sets, if an argument has a value outside of its bound.

    Parts of lazy arguments are checked when they are read.
    """
    for bound in bounds:
        if bound.argument not in arguments:
            continue
        value = arguments[bound.argument]
        start = 0
        for device, array in enumerate(value if isinstance(value, list) else [value]):
            if not isinstance(array, Lazy):
                try:
                    check_values(program, bound, array, f" of device {device}" if isinstance(value, list) else "")
                except JobflowError as error:
                    error.row = None if error.row is None else start + error.row
                    raise
            start += array.shape[0] if array.shape else 0


def check_values(program: str, bound: ArgumentBounds, array: Array, device: str = "", first: int = 0) -> None:
    """Raise an error, of the class that `bound` sets, if `array` has a value outside of the bound.

    `first` is the index in the argument of the array's first row; `device` is the text that names the device in the message.
    """
    check = bound.check
    if check.passes(array):
        return
    wrong = np.argwhere(check.rejected(np, array))
    if len(wrong):
        at = tuple(map(int, wrong[0]))
        shown = f" at {[at[0] + first, *at[1:]]}" if at else ""
        least = "no 0" if check.low is None else f"no value below {check.low}"
        accepts = f"accepts {least}" if check.high is None else f"accepts {'whole numbers from ' * check.whole}{check.low} to {check.high}"
        error = check.error(
            f'{program}({bound.argument}=...) at {user_line()}: argument "{bound.argument}"{device} holds {array[at].item()}{shown}; '
            f"{check.what} at {bound.where} {accepts}. {check.advice or 'Pass values in this range, or enlarge the indexed tensor.'}"
        )
        error.row = at[0] + first if at else None
        raise error
