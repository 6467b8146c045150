"""Arguments of a job that no caller passes: arrays that its body reads from files.

A reader that is called in the body of a job (`flow.data.ofrecord_reader`) records such an argument.  The job's feed reads all of them together, one
batch for each run.  The samples of a batch depend only on the number of the run, so a job that resumes from a checkpoint reads the next ones.
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

#: rows of an array: the first, and the one after the last
Span = tuple[int, int]


@dataclass(frozen=True, eq=False)
class DynamicArgument:
    """An argument, or one per device, whose shape may differ between runs."""

    #: the largest type, which the program sees
    type: TensorType
    #: True if each device has an argument of its own
    per_device: bool


class DataFeed(ABC):
    """A source of arrays that are read from files; `types` are those of one pass through the body."""

    types: Mapping[str, TensorType]
    #: the arguments whose shapes are known when they are read
    dynamic: Mapping[str, DynamicArgument]
    #: by name, the results that no tensor of the job holds
    results: Mapping[str, Any]
    #: by name of an array, the phases of a run that compute what it is made of, in order
    phases: Mapping[str, Sequence[str]]
    #: a variable that counts the passes through the body, if there is one; reading continues at a count that was loaded
    counter: str | None = None

    def phase_of(self, name: str) -> str | None:
        """Return the last phase that an array needs, or None."""
        return self.phases[name][-1] if name in self.phases else None

    @abstractmethod
    def arrays(self, run: int, passes: int, rows: Mapping[str, Span], arguments: Mapping[str, Any], phase: str | None) -> dict[str, Any]:
        """Return these rows of arrays by name, in a run with so many passes through the body, one batch for each, and these arguments.

        Dynamic arguments are arrays, or lists with one per device; `HostResult`s are lists with an array for each row.
        With `phase`, only arrays whose last phase this is; without one, only those that need no phase.
        """

    @abstractmethod
    def shapes(self, name: str, run: int, arguments: Mapping[str, Any]) -> tuple[Any, ...]:
        """Return the shape of a dynamic argument in a run, or one per device, if nothing else is read."""

    @abstractmethod
    def close(self) -> None:
        """Stop reading."""


@dataclass(frozen=True)
class Fed:
    """The feed of a compiled job; only the rows that this process needs are read."""

    feed: DataFeed
    where: SourceLine
    #: the passes through the body in a run
    passes: int
    rows: Mapping[str, Span]
    types: Mapping[str, TensorType]

    @classmethod
    def of(cls, feed: DataFeed, where: SourceLine, passes: int, parts: Sequence[Sequence[ArgumentPart]] | None, here: Collection[int] | None) -> Fed:
        """Return the feed for ranks with these parts of arguments, only those `here` if passed.

        All rows are read if other programs of the job take them too: without `parts`, and with dynamic arguments.
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
        """Read the arguments of a run with these arguments of its caller, and the results that no tensor holds; `phase` as in `arrays`."""
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
    """An array with only the rows that this process needs."""

    def __init__(self, name: str, type: TensorType, start: int, rows: Array) -> None:
        self.shape, self.dtype = type.shape, type.dtype.numpy
        self.start, self.rows, self._name = start, rows, name

    @property
    def fingerprint(self) -> str:
        return self._name

    def part(self, slices: tuple[slice, ...]) -> Array:
        first, *others = slices
        return self.rows[(slice(first.start - self.start, first.stop - self.start), *others)]
