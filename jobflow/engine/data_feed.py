"""What a job takes beside its arguments: arrays that its body reads from files.

A reader that is called in the body of a job (`flow.data.ofrecord_reader`) records an argument that no caller passes.  The job's feed gives all of
them together, one batch for each run: which samples a batch has is a function of the number of the run, so a job that goes on where a checkpoint
ended sees what follows.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from jobflow.core.dataclass import dataclass
from jobflow.core.errors import SourceLine
from jobflow.core.types import Array, TensorType
from jobflow.typing.annotations import Declared
from jobflow.typing.lazy import Lazy
from jobflow.typing.signature import Bound

if TYPE_CHECKING:
    from jobflow.graph.ir import Value
    from jobflow.program.arguments import ArgumentPart

#: rows of an array: the first, and behind the last
Span = tuple[int, int]


@dataclass(frozen=True, eq=False)
class Ragged:
    """An array, or one of each device, whose shape is that of the run."""

    #: the largest there may be, which is what the program sees
    type: TensorType
    #: whether each device has one of its own
    per_device: bool


@dataclass(frozen=True, eq=False)
class Sized(Ragged):
    """What is made of a value that a run computes before the rest of the job: only that says what shape it has, or the host needs it."""

    value: Value
    made: Callable[[Array], Array]
    #: what a job can do that must not compute it before
    instead: str

    def of(self, found: Any) -> Any:
        """It, or a list with one for each device."""
        return [self.made(each) for each in found] if self.per_device else self.made(found)


class DataFeed(ABC):
    """Gives the arrays of a job that are read from files; `types` says which, of one run through the body."""

    types: Mapping[str, TensorType]
    #: those whose shapes are known when they are read
    ragged: Mapping[str, Ragged]
    #: by name, what no tensor of the job holds of its results
    results: Mapping[str, Any]
    #: of those that are made of what a run computes before the rest of it, what that is: names of `Sized`, in their order
    made_of: Mapping[str, Sequence[str]]
    #: the variable, if there is one, that has counted the passes through the body: what is read goes on from the count that was loaded
    counter: str | None = None

    def after(self, name: str) -> str | None:
        """The last of what a run computes before something is made."""
        return self.made_of[name][-1] if name in self.made_of else None

    @abstractmethod
    def arrays(self, run: int, passes: int, rows: Mapping[str, Span], given: Mapping[str, Any], after: str | None) -> dict[str, Any]:
        """The arrays of a run that passes so often through the body, one batch for each, with these arguments: of each name these rows.

        And by their names those that are ragged, or lists with one for each device, and the `HostResult`s of the job, lists with an array
        for each row.  Only those that are made once the run has computed `after`; without one, those that need nothing which it computes.
        """

    @abstractmethod
    def shapes(self, name: str, run: int, given: Mapping[str, Any]) -> tuple[Any, ...]:
        """The shape, or one for each device, of what is ragged in a run with these arguments, of which nothing else is read."""

    @abstractmethod
    def close(self) -> None:
        """Read no further."""


@dataclass(frozen=True)
class Fed:
    """A job's feed as arguments of its runs: what is not asked for in this process is not read."""

    feed: DataFeed
    where: SourceLine
    #: how often a run passes through the body
    passes: int
    rows: Mapping[str, Span]
    types: Mapping[str, TensorType]

    @classmethod
    def of(
        cls, feed: DataFeed, where: SourceLine, passes: int, parts: Sequence[Sequence[ArgumentPart]], here: Collection[int] | None, sized: bool
    ) -> Fed:
        """For ranks that take these parts of arguments; of them only those `here` if given.

        All rows of each if other programs of the job take them too: those for other shapes that are read, or of what is computed before the rest.
        """
        types = {name: type.with_shape((type.shape[0] * passes, *type.shape[1:])) for name, type in feed.types.items()}
        if sized or feed.ragged:
            return cls(feed, where, passes, {name: (0, type.shape[0]) for name, type in types.items()}, types)
        rows: dict[str, Span] = {}
        for part in (part for rank, own in enumerate(parts) if here is None or rank in here for part in own):
            if part.argument in types:
                whole = types[part.argument].shape
                start, stop = (0, whole[0]) if here is None else (part.slices(whole)[0].start, part.slices(whole)[0].stop)
                known = rows.get(part.argument, (start, stop))
                rows[part.argument] = (min(start, known[0]), max(stop, known[1]))
        return cls(feed, where, passes, rows, types)

    def bound(self, run: int, given: Sequence[Bound], after: str | None) -> tuple[list[Bound], dict[str, Any]]:
        """The further arguments of a run in which these are passed, and what no tensor of the job holds of its results; `after` as in `arrays`."""
        rows = {name: span for name, span in self.rows.items() if self.feed.after(name) == after}
        found = self.feed.arrays(run, self.passes, rows, {name: value for name, _, value in given}, after)
        arrays = {name: found.pop(name) for name in rows}
        read = [(name, Declared(self.types[name], False, self.where), self._given(name, run, rows)) for name, rows in arrays.items()]
        for name, ragged in self.feed.ragged.items():
            if name in found:
                read.append((name, Declared(ragged.type, ragged.per_device, self.where), found.pop(name)))
        return read, found

    def _given(self, name: str, run: int, rows: Array) -> Array | Lazy:
        type = self.types[name]
        return rows if rows.shape == type.shape else RowsHere(f"{name}/{run}", type, self.rows[name][0], rows)


class RowsHere(Lazy):
    """An array of which this process has some rows."""

    def __init__(self, what: str, type: TensorType, start: int, rows: Array) -> None:
        self.shape, self.dtype = type.shape, type.dtype.numpy
        self.start, self.rows, self._what = start, rows, what

    @property
    def fingerprint(self) -> str:
        return self._what

    def part(self, slices: tuple[slice, ...]) -> Array:
        first, *others = slices
        return self.rows[(slice(first.start - self.start, first.stop - self.start), *others)]
