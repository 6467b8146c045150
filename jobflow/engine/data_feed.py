"""Arguments of a job that are read from files, instead of being passed by the caller.

A reader that is called in the body of a job, such as `flow.data.ofrecord_reader`, records such an argument.  The feed of the job reads all of
these arguments together, one batch per run.  The samples of a batch depend only on the number of the run.  So a job that resumes from a
checkpoint continues with the next samples.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from jobflow.core.dataclass import dataclass
from jobflow.core.errors import SourceLine
from jobflow.core.types import Array, TensorType
from jobflow.typing.annotations import Declared
from jobflow.typing.lazy import Lazy
from jobflow.typing.signature import Bound

if TYPE_CHECKING:
    from jobflow.program.arguments import ArgumentPart

#: rows of an array: start and stop
Span = tuple[int, int]


@dataclass(frozen=True, eq=False)
class DynamicArgument:
    """An argument whose shape may differ between runs; it may consist of one array per device."""

    #: the type with the largest shape, for which the job is compiled first
    type: TensorType
    #: True if each device has a separate argument
    per_device: bool


class DataFeed(ABC):
    """A source of arrays that are read from files; `types` are the types of the arrays for one pass through the body."""

    types: Mapping[str, TensorType]
    #: the arguments whose shapes are unknown until they are read
    dynamic: Mapping[str, DynamicArgument]
    #: results of the host pipeline, by name
    results: Mapping[str, Any]
    #: by name of an array, the phases of a run that compute its inputs, in order
    phases: Mapping[str, Sequence[str]]
    #: name of the variable that counts passes through the body, if any; reading continues at the count in a loaded checkpoint
    counter: str | None = None

    def phase_of(self, name: str) -> str | None:
        """Return the last phase whose result the array `name` depends on; None if the array depends on no phase."""
        return self.phases[name][-1] if name in self.phases else None

    @abstractmethod
    def arrays(self, run: int, passes: int, rows: Mapping[str, Span], arguments: Mapping[str, Any], phase: str | None) -> dict[str, Any]:
        """Read the arrays of run number `run`, by name.

        The run makes `passes` passes through the body, with one batch each.  `rows` selects rows by name of an array.  `arguments` are the
        arguments of the caller.  Dynamic arguments are arrays, or lists with one array per device.  `HostResult`s are lists with one array per row.
        With `phase`, only arrays whose last phase is `phase` are read; without it, only arrays that depend on no phase.
        """

    @abstractmethod
    def shapes(self, name: str, run: int, arguments: Mapping[str, Any]) -> tuple[Any, ...]:
        """Return the shape of a dynamic argument in a run, or one shape per device, without reading other arrays."""

    @abstractmethod
    def close(self) -> None:
        """Stop reading batches of later runs."""


@dataclass(frozen=True)
class Fed:
    """The feed of a compiled job, which reads only the rows that this process needs."""

    feed: DataFeed
    where: SourceLine
    #: number of passes through the body in a run
    passes: int
    rows: Mapping[str, Span]
    types: Mapping[str, TensorType]

    @classmethod
    def of(cls, feed: DataFeed, where: SourceLine, passes: int, parts: Sequence[Sequence[ArgumentPart]] | None, here: Collection[int] | None) -> Fed:
        """Return a feed that reads the rows in the `parts` of the ranks `here`, or of all ranks if `here` is None.

        If `parts` is None or an argument is dynamic, the feed reads all rows, because other programs of the job also use these rows.
        """
        types = {name: type.with_shape((type.shape[0] * passes, *type.shape[1:])) for name, type in feed.types.items()}
        if parts is None or feed.dynamic:
            return cls(feed, where, passes, {name: (0, type.shape[0]) for name, type in types.items()}, types)
        rows: dict[str, Span] = {}
        for part in (part for rank, own in enumerate(parts) if here is None or rank in here for part in own):
            if part.argument in types:
                whole = types[part.argument].shape
                start, stop = (0, whole[0]) if here is None else (part.slices(whole)[0].start, part.slices(whole)[0].stop)
                known = rows.get(part.argument, (start, stop))
                rows[part.argument] = (min(start, known[0]), max(stop, known[1]))
        return cls(feed, where, passes, rows, types)

    def bound(self, run: int, bound: Sequence[Bound], phase: str | None) -> tuple[list[Bound], dict[str, Any]]:
        """Return the arguments from files, and the results of the host pipeline, for run number `run`.

        `bound` are the caller's arguments; `phase` has the meaning of `DataFeed.arrays`.
        """
        spans = {name: span for name, span in self.rows.items() if self.feed.phase_of(name) == phase}
        arrays = self.feed.arrays(run, self.passes, spans, {name: value for name, _, value in bound}, phase)
        rows = {name: arrays.pop(name) for name in spans}
        extra = [(name, Declared(self.types[name], False, self.where), self._argument(name, run, own)) for name, own in rows.items()]
        for name, dynamic in self.feed.dynamic.items():
            if name in arrays:
                extra.append((name, Declared(dynamic.type, dynamic.per_device, self.where), arrays.pop(name)))
        return extra, arrays

    def _argument(self, name: str, run: int, rows: Array) -> Array | Lazy:
        type = self.types[name]
        return rows if rows.shape == type.shape else RowsHere(f"{name}/{run}", type, self.rows[name][0], rows)


class RowsHere(Lazy):
    """A lazy array that has only the rows that this process needs."""

    def __init__(self, name: str, type: TensorType, start: int, rows: Array) -> None:
        self.shape, self.dtype = type.shape, type.dtype.numpy
        self.start, self.rows, self._name = start, rows, name

    @property
    def fingerprint(self) -> str:
        return self._name

    def part(self, slices: tuple[slice, ...]) -> Array:
        first, *others = slices
        return self.rows[(slice(first.start - self.start, first.stop - self.start), *others)]
