"""A job compiled for one set of argument shapes: what its ranks run, how a call's arguments are cut for them, and how results are put together."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import field
from itertools import accumulate
from typing import Any

import numpy as np

from jobflow.compiler.front.trace import RUN_COUNTER
from jobflow.core.dataclass import dataclass
from jobflow.core.errors import JobError, JobflowError, ShapeError, SourceLine, user_line
from jobflow.core.layout import Box, Layout, Local
from jobflow.core.types import Array
from jobflow.engine.data_feed import Fed, Sized
from jobflow.graph.ir import Graph, Physical, Variable
from jobflow.graph.training import ValidRange, Watch
from jobflow.ops.source import Input
from jobflow.typing.lazy import Lazy
from jobflow.typing.results import HostResult, Results
from jobflow.typing.signature import Bound


@dataclass(frozen=True)
class ArgumentPart:
    """What a rank takes of an argument: these rows of it, all if None, and of them this box; None if its array is its own."""

    key: str
    argument: str
    rows: slice | None
    box: Box | None

    def of(self, value: Array | Lazy) -> Array:
        """A view of the caller's array; of a lazy one, what is read."""
        if isinstance(value, Lazy):
            return value[self.slices(value.shape)]
        given = value if self.rows is None else value[self.rows]
        return given if self.box is None or self.box.is_whole else given[self.box.slices]

    def slices(self, shape: tuple[int, ...]) -> tuple[slice, ...]:
        """Where it lies in an argument of this shape."""
        first = 0 if self.rows is None else self.rows.start
        if self.box is None:
            return (slice(first, shape[0] if self.rows is None else self.rows.stop), *map(slice, shape[1:]))
        rows, *others = self.box.slices
        return (slice(first + rows.start, first + rows.stop), *others)


@dataclass(frozen=True)
class Compiled:
    """A job for one set of argument shapes, known to the ranks by its number."""

    name: str
    #: where the job is declared
    where: SourceLine
    number: int
    #: per rank; the same object for all unless the ranks' shapes differ
    programs: tuple[Physical, ...]
    results: Results
    #: whom to show the outputs that come after those of `results`
    watches: tuple[Watch, ...]
    limits: tuple[ValidRange, ...]
    #: per rank, what it takes of the arguments
    parts: tuple[tuple[ArgumentPart, ...], ...]
    #: per result and watch, of how many outputs it consists, one after another along axis 0
    pieces: tuple[int, ...]
    #: `tensors` and `modes` of its tracer
    tensors: Mapping[str, Any]
    modes: Mapping[int, Callable[[], Any]]
    #: the arguments that nobody passes, if there are any
    fed: Fed | None = None
    #: why it cannot run
    refused: str = ""
    #: by name, the arguments that a run computes before the rest of it, in the order in which it does
    sized: Mapping[str, Sized] = field(default_factory=dict)

    @property
    def graph(self) -> Graph:
        return self.programs[0].graph

    @property
    def variables(self) -> dict[str, Variable]:
        return self.graph.variables

    def read(self, run: int, given: Sequence[Bound], after: str | None = None) -> tuple[list[Bound], dict[str, Any]]:
        """The arguments that nobody passes of a run in which these are, and what no tensor of the job holds of its results.

        Of those that are made of what the run computes, see `sized`, the ones that are made once it has computed `after`.
        """
        if self.fed is None:
            return [], {}
        found, beside = self.fed.bound(run, given, after)
        self.check_limits(found)
        return found, beside

    def with_beside(self, values: Sequence[Any], beside: Mapping[str, Any]) -> list[Any]:
        """All results and what is watched, from those that are tensors of the job and the others."""
        rest = iter(values)
        found = [leaf.take(beside[leaf.name]) if isinstance(leaf, HostResult) else next(rest) for leaf in self.results.leaves]
        return [*found, *rest]

    def check_limits(self, bound: Sequence[Bound]) -> None:
        """An error if one of these arguments holds what its reader cannot take; of lazy ones, `feeds` looks at what is read."""
        if self.refused:
            raise ShapeError(f"{self.name}(...) at {user_line()}: {self.refused}")
        values = {name: value for name, _, value in bound}
        for limit in self.limits:
            if limit.argument not in values:
                continue
            given = values[limit.argument]
            start = 0
            for device, array in enumerate(given if isinstance(given, list) else [given]):
                if not isinstance(array, Lazy):
                    try:
                        self._check_limit(limit, array, f" of device {device}" if isinstance(given, list) else "")
                    except JobflowError as error:
                        error.row = None if error.row is None else start + error.row
                        raise
                start += array.shape[0] if array.shape else 0

    def _check_limit(self, limit: ValidRange, array: Array, whose: str = "", first: int = 0) -> None:
        check = limit.check
        if check.passes(array):
            return
        wrong = np.argwhere(check.rejected(np, array))
        if len(wrong):
            at = tuple(map(int, wrong[0]))
            shown = f" at {[at[0] + first, *at[1:]]}" if at else ""
            least = "no 0" if check.low is None else f"none below {check.low}"
            takes = f"takes {least}" if check.high is None else f"takes {'whole numbers from ' * check.whole}{check.low} to {check.high}"
            error = check.error(
                f'{self.name}({limit.argument}=...) at {user_line()}: argument "{limit.argument}"{whose} holds {array[at].item()}{shown}; '
                f"{check.what} at {limit.where} {takes}. {check.advice or 'Pass such numbers, or make what they point into larger.'}"
            )
            error.row = at[0] + first if at else None
            raise error

    def feeds(self, bound: Sequence[Bound], run: int, here: Collection[int] | None = None) -> list[dict[str, Array]]:
        """Per rank its parts of the arguments of run number `run`: views of the caller's arrays.

        Only those of the ranks `here`, if given, are made; of lazy arguments they are read now.
        """
        given = {name: value for name, _, value in bound}
        given[RUN_COUNTER] = np.array([run])
        if absent := [name for name in self.sized if name not in given]:
            raise JobError(f"job {self.name} ({self.where}): {absent[0]} is computed before the rest of a run, which only a call of the job does")
        ranks = self.graph.placement.ranks
        feeds: list[dict[str, Array]] = []
        for rank, parts in enumerate(self.parts):
            if here is not None and rank not in here:
                parts = ()
            own = {name: value[ranks.index(rank)] if isinstance(value, list) else value for name, value in given.items()} if parts else {}
            feeds.append({part.key: self._part(part, own[part.argument]) for part in parts})
        return feeds

    def _part(self, part: ArgumentPart, value: Array | Lazy) -> Array:
        found = part.of(value)
        if isinstance(value, Lazy):
            for limit in self.limits:
                if limit.argument == part.argument:
                    self._check_limit(limit, found, first=part.slices(value.shape)[0].start if value.shape else 0)
        return found

    def close(self) -> None:
        """Read no further ahead."""
        if self.fed is not None:
            self.fed.feed.close()

    def values(self, parts: Sequence[Sequence[tuple[int, Array]]]) -> list[Any]:
        """Per returned tensor: the whole array, or a list of one array per device of a mirrored one."""
        found: dict[int, dict[int, Array]] = {}
        for rank, fetched in enumerate(parts):
            for position, array in fetched:
                found.setdefault(position, {})[rank] = array
        return self.joined([self._whole(position, found[position]) for position in range(len(self.graph.outputs))])

    def joined(self, wholes: Sequence[Any]) -> list[Any]:
        """The returned tensors from the job's outputs."""
        stops = accumulate(self.pieces)
        return [_joined(wholes[stop - count : stop]) for count, stop in zip(self.pieces, stops, strict=True)]

    def _whole(self, position: int, shards: dict[int, Array]) -> Any:
        value = self.graph.outputs[position]
        layout = self.programs[0].layouts[value]
        if isinstance(layout, Local):
            return [shards[rank] for rank in layout.placement.ranks]
        if layout.is_whole:
            return next(iter(shards.values()))
        return layout.assemble([shards[rank] for rank in layout.placement.ranks], value.tensor_type)

    def show_watched(self, values: Sequence[Any]) -> None:
        """Hand watched tensors to their watchers."""
        for watch, value in zip(self.watches, values, strict=True):
            try:
                watch.take(value)
            except Exception as error:
                error.add_note(f"while job {self.name} ({self.where}) showed {watch.value.name}, which is watched at {watch.where}")
                raise


def _joined(values: Sequence[Any]) -> Any:
    """One value, of which these are the pieces along axis 0; a list with that of each device if they are lists."""
    if len(values) == 1:
        return values[0]
    if isinstance(values[0], list):
        return [np.concatenate(pieces) for pieces in zip(*values, strict=True)]
    return np.concatenate(values)


def argument_parts(physical: Physical, rank: int) -> tuple[ArgumentPart, ...]:
    """What a rank takes of the arguments."""
    found: list[ArgumentPart] = []
    for value in physical.graph.inputs:
        layout, op = physical.layouts[value], value.node.op
        assert isinstance(op, Input)
        if rank in layout.placement.ranks:
            rows = slice(*op.part[1:]) if op.part is not None else None
            found.append(ArgumentPart(op.key, op.argument, rows, layout.box(value.shape, rank) if isinstance(layout, Layout) else None))
    return tuple(found)
