"""Layouts of a logical tensor on ranks: S, B, P, placements, boxes, rules.  Only this module defines how an axis is split.

An axis of `size` elements is split among n ranks in balance: the first `size mod n` ranks get one element more, so

    cut(7, 3) == ((0, 3), (3, 5), (5, 7))        cut(2, 3) == ((0, 1), (1, 2), (2, 2))

and a shard may be empty.  On a mesh of several dimensions, each dimension splits the shards of the previous one again:

    nested_cut(5, (2, 2)) == ((0, 2), (2, 3), (3, 4), (4, 5))

A tensor that is partial along several mesh dimensions is reduced along the innermost first: P, P(max) is a sum of maxima.
"""

from __future__ import annotations

import enum
import math
from collections.abc import Iterator, Sequence
from functools import cache
from itertools import product
from typing import Any, ClassVar

import numpy as np

from jobflow.core.dataclass import dataclass
from jobflow.core.errors import PlacementError, SbpError
from jobflow.core.types import Array, TensorType


class Reduction(enum.Enum):
    """The reduction that combines the local values of a partial tensor."""

    SUM = "sum"
    MAX = "max"
    MIN = "min"

    @property
    def ufunc(self) -> np.ufunc:
        return {"sum": np.add, "max": np.maximum, "min": np.minimum}[self.value]

    def identity(self, dtype: Any) -> Any:
        """Return the identity element for a NumPy dtype: 0 for SUM, the lowest value (-inf for floats) for MAX, the highest value for MIN."""
        if self is Reduction.SUM:
            return 0
        kind = np.dtype(dtype)
        if kind.kind in "fV":
            return -np.inf if self is Reduction.MAX else np.inf
        if kind.kind == "b":
            return self is Reduction.MIN
        bounds = np.iinfo(kind)
        return bounds.min if self is Reduction.MAX else bounds.max


SUM, MAX, MIN = Reduction.SUM, Reduction.MAX, Reduction.MIN


@dataclass(frozen=True)
class Split:
    """A layout in which each rank holds one balanced shard along `axis`."""

    axis: int

    def __str__(self) -> str:
        return f"S({self.axis})"

    def __repr__(self) -> str:
        return f"jobflow.sbp.split(dim={self.axis})"


@dataclass(frozen=True)
class Broadcast:
    """A layout in which each rank holds the whole tensor."""

    def __str__(self) -> str:
        return "B"

    def __repr__(self) -> str:
        return "jobflow.sbp.broadcast"

    def __call__(self) -> Broadcast:
        """Return self, because programs write both `sbp.broadcast` and `sbp.broadcast()`."""
        return self


@dataclass(frozen=True)
class Partial:
    """A layout in which the logical value is the reduction of the ranks' values."""

    reduce: Reduction = SUM

    def __str__(self) -> str:
        return "P" if self.reduce is SUM else f"P({self.reduce.value})"

    def __repr__(self) -> str:
        return f"jobflow.sbp.partial_{self.reduce.value}"

    def __call__(self) -> Partial:
        """Return self, because programs write both `sbp.partial_sum` and `sbp.partial_sum()`."""
        return self


Sbp = Split | Broadcast | Partial
B = Broadcast()
P = Partial()


@cache
def S(axis: int) -> Split:
    return Split(axis)


@cache
def cut(size: int, n: int) -> tuple[tuple[int, int], ...]:
    """Return the balanced (start, stop) shards of an axis of `size` elements among n ranks."""
    each, extra = divmod(size, n)
    starts = [rank * each + min(rank, extra) for rank in range(n + 1)]
    return tuple(zip(starts[:-1], starts[1:], strict=True))


@cache
def nested_cut(size: int, mesh: tuple[int, ...]) -> tuple[tuple[int, int], ...]:
    """Return the shards of an axis that all mesh dimensions split one after another, in row-major order of the mesh."""
    pieces: tuple[tuple[int, int], ...] = ((0, size),)
    for n in mesh:
        pieces = tuple((start + a, start + b) for start, stop in pieces for a, b in cut(stop - start, n))
    return pieces


@cache
def _grid(mesh: tuple[int, ...]) -> tuple[tuple[int, ...], ...]:
    """Return all coordinates of a mesh, in row-major order."""
    return tuple(product(*map(range, mesh)))


class Interned(type):
    """Metaclass that returns one shared object for all instances with the same `key`.

    Threads may create instances concurrently, because only complete instances are registered.
    """

    def __call__(cls, *arguments: Any, **named: Any) -> Any:
        instance = super().__call__(*arguments, **named)
        return instance._known.setdefault(instance.key, instance)


@dataclass(frozen=True, eq=False)
class Placement(metaclass=Interned):
    """An ordered set of ranks, arranged as a grid with `mesh[d]` ranks along mesh dimension d.  Equal placements are one object."""

    tag: str
    ranks: tuple[int, ...]
    mesh: tuple[int, ...] = ()

    _known: ClassVar[dict[tuple[Any, ...], Placement]] = {}

    @property
    def key(self) -> tuple[Any, ...]:
        """The fields that identify a placement."""
        return self.tag, self.ranks, self.mesh

    def __reduce__(self) -> tuple[Any, ...]:
        return Placement, self.key

    def __post_init__(self) -> None:
        if not self.mesh:
            object.__setattr__(self, "mesh", (len(self.ranks),))
        if len(set(self.ranks)) != len(self.ranks):
            raise PlacementError(f"placement {self.tag}{list(self.ranks)} contains a rank twice; list each rank once")
        if math.prod(self.mesh) != len(self.ranks):
            raise PlacementError(f"placement {self.tag}{list(self.ranks)}: {len(self.ranks)} ranks do not fill a mesh of {self.mesh}")

    def __str__(self) -> str:
        ranks = self.ranks
        run = len(ranks) > 1 and ranks == tuple(range(ranks[0], ranks[-1] + 1))
        listed = f"{ranks[0]}-{ranks[-1]}" if run else ",".join(map(str, ranks))
        grid = "" if len(self.mesh) == 1 else ":" + "x".join(map(str, self.mesh))
        return f"{self.tag}[{listed}{grid}]"

    @property
    def size(self) -> int:
        """Number of ranks."""
        return len(self.ranks)

    def coordinates(self, rank: int) -> tuple[int, ...]:
        """Return the coordinates of `rank` on the mesh."""
        return _grid(self.mesh)[self.ranks.index(rank)]

    def along(self, dimensions: Sequence[int]) -> tuple[tuple[int, ...], ...]:
        """Return the groups of ranks whose coordinates differ only along `dimensions`, each group in row-major order.

        The groups are ordered by their first ranks.
        """
        groups: dict[tuple[int, ...], list[int]] = {}
        for rank, at in zip(self.ranks, _grid(self.mesh), strict=True):
            groups.setdefault(tuple(i for d, i in enumerate(at) if d not in dimensions), []).append(rank)
        return tuple(map(tuple, groups.values()))


class ParallelConf(str):
    """A placement as a string, such as "cpu[0-1]"."""

    placement: Placement

    @classmethod
    def of(cls, placement: Placement) -> ParallelConf:
        """Return the string of `placement`, with `placement` as an attribute."""
        conf = cls(placement)
        conf.placement = placement
        return conf

    def device_tag(self) -> str:
        """Return the kind of device: "cpu" or "gpu"."""
        return self.placement.tag


@cache
def first_ranks(tag: str, count: int) -> Placement:
    """Return the placement of ranks 0 to `count` - 1 on devices of kind `tag`, with one mesh dimension."""
    return Placement(tag, tuple(range(count)))


Span = tuple[int, int]


@dataclass(frozen=True)
class Box:
    """The shard of a logical tensor on one rank: a (start, stop) per axis, and the logical shape."""

    spans: tuple[Span, ...]
    whole: tuple[int, ...]

    @property
    def shape(self) -> tuple[int, ...]:
        return tuple(stop - start for start, stop in self.spans)

    @property
    def start(self) -> tuple[int, ...]:
        return tuple(start for start, _ in self.spans)

    @property
    def is_whole(self) -> bool:
        return self.shape == self.whole

    @property
    def slices(self) -> tuple[slice, ...]:
        return tuple(slice(*span) for span in self.spans)

    def meet(self, other: Box) -> Box:
        """Return the intersection of two boxes (possibly empty)."""
        spans = []
        for (a, b), (c, d) in zip(self.spans, other.spans, strict=True):
            start = max(a, c)
            spans.append((start, max(start, min(b, d))))
        return Box(tuple(spans), self.whole)

    def within(self, outer: Box) -> tuple[slice, ...]:
        """Return slices that select this box from the array of `outer`."""
        return tuple(slice(a - o, b - o) for (a, b), (o, _) in zip(self.spans, outer.spans, strict=True))

    @property
    def is_empty(self) -> bool:
        return any(a >= b for a, b in self.spans)


def whole_box(shape: Sequence[int]) -> Box:
    return Box(tuple((0, n) for n in shape), tuple(shape))


@dataclass(frozen=True, eq=False)
class Layout(metaclass=Interned):
    """Placement and one S/B/P per mesh dimension; prints as ``cpu[0-3]:S(0)``.  Equal layouts are one object."""

    placement: Placement
    sbp: tuple[Sbp, ...]

    _known: ClassVar[dict[tuple[Any, ...], Layout]] = {}

    @property
    def key(self) -> tuple[Any, ...]:
        """The fields that identify a layout."""
        return self.placement, self.sbp

    def __reduce__(self) -> tuple[Any, ...]:
        return Layout, self.key

    def __post_init__(self) -> None:
        if len(self.sbp) != len(self.placement.mesh):
            raise SbpError(
                f"layout of {self.placement}: {len(self.sbp)} S/B/P for a mesh of {len(self.placement.mesh)} dimensions; pass one per dimension"
            )

    def __str__(self) -> str:
        return f"{self.placement}:{','.join(map(str, self.sbp))}"

    @property
    def is_partial(self) -> bool:
        return any(isinstance(sbp, Partial) for sbp in self.sbp)

    @property
    def is_whole(self) -> bool:
        """True if every rank holds the whole tensor."""
        return all(isinstance(sbp, Broadcast) for sbp in self.sbp)

    def box(self, shape: Sequence[int], rank: int) -> Box:
        """Return the shard of a tensor of logical `shape` on `rank`."""
        return self._box(shape, self.placement.coordinates(rank))

    def boxes(self, shape: Sequence[int]) -> dict[int, Box]:
        """Return the shard of every rank, in placement order."""
        return {rank: self._box(shape, at) for rank, at in zip(self.placement.ranks, _grid(self.placement.mesh), strict=True)}

    def _box(self, shape: Sequence[int], at: tuple[int, ...]) -> Box:
        spans = [(0, n) for n in shape]
        for sbp, n, i in zip(self.sbp, self.placement.mesh, at, strict=True):
            if isinstance(sbp, Split):
                start, stop = spans[sbp.axis]
                a, b = cut(stop - start, n)[i]
                spans[sbp.axis] = (start + a, start + b)
        return Box(tuple(spans), tuple(shape))

    def local_type(self, type: TensorType, rank: int) -> TensorType:
        return type.with_shape(self.box(type.shape, rank).shape)

    def shards(self, array: Array) -> list[Array]:
        """Split a whole NumPy array into one shard per rank; the shards are views.

        Along a partial mesh dimension, only ranks at coordinate 0 receive values.  The shards of all other ranks are new arrays that contain
        the identity element of the reduction.
        """
        parts = [array[self.box(array.shape, rank).slices] for rank in self.placement.ranks]
        for i, rank in enumerate(self.placement.ranks):
            at = self.placement.coordinates(rank)
            for sbp, where in zip(self.sbp, at, strict=True):
                if isinstance(sbp, Partial) and where > 0:
                    parts[i] = np.full_like(parts[i], sbp.reduce.identity(array.dtype))
        return parts

    def assemble(self, shards: Sequence[Array], type: TensorType) -> Array:
        """Assemble the whole array from shards in placement order; partial values are reduced along the innermost mesh dimension first."""
        if self.is_whole:
            return np.array(shards[0])
        parts = dict(zip(_grid(self.placement.mesh), shards, strict=True))
        for dimension in reversed(range(len(self.sbp))):
            parts = _folded(parts, dimension, self.sbp[dimension])
        out: Array = np.empty(type.shape, type.dtype.numpy)
        for at, part in parts.items():
            out[(*self._box(type.shape, at).slices, ...)] = part
        return out


def _folded(parts: dict[tuple[int, ...], Array], dimension: int, sbp: Sbp) -> dict[tuple[int, ...], Array]:
    """Combine shards along a mesh dimension; the keys of `parts` are mesh coordinates.

    Partial values are reduced, and the first of equal copies is taken.  Shards of a split dimension are returned unchanged.
    """
    if isinstance(sbp, Split):
        return parts
    left: dict[tuple[int, ...], Array] = {}
    for at, part in parts.items():
        first = (*at[:dimension], 0, *at[dimension + 1 :])
        if first not in left:
            left[first] = part
        elif isinstance(sbp, Partial):
            left[first] = sbp.reduce.ufunc(left[first], part)
    return left


@dataclass(frozen=True, eq=False)
class FlatPieces(Layout):
    """A layout in which rank i holds the contiguous range `spans[i]` of the flattened tensor; the ranges need not be balanced."""

    spans: tuple[Span, ...] = ()

    @property
    def key(self) -> tuple[Any, ...]:
        return self.placement, self.sbp, self.spans

    def __reduce__(self) -> tuple[Any, ...]:
        return FlatPieces, self.key

    def __str__(self) -> str:
        return f"{self.placement}:pieces"

    def _box(self, shape: Sequence[int], at: tuple[int, ...]) -> Box:
        return Box((self.spans[at[0]],), (math.prod(shape),))


def layout(placement: Placement, *sbp: Sbp) -> Layout:
    """Return a layout; a single S/B/P applies to every mesh dimension."""
    return Layout(placement, sbp if len(sbp) == len(placement.mesh) else sbp * len(placement.mesh))


@dataclass(frozen=True)
class Signature:
    """One legal combination of input and output S/B/P of an op along one mesh dimension.

    A signature with `divides` > 0 is legal only if the number of ranks that split the axis divides this number.
    Merging reshapes use `divides`: shards of [b, t] are shards of [b * t] only if the number of ranks divides b.
    """

    inputs: tuple[Sbp, ...]
    outputs: tuple[Sbp, ...]
    divides: int = 0

    def __str__(self) -> str:
        return f"{' '.join(map(str, self.inputs))} -> {' '.join(map(str, self.outputs))}{f' (n divides {self.divides})' if self.divides else ''}"

    def legal(self, n: int) -> bool:
        """Return True if n ranks may run the op with this signature."""
        return self.divides % n == 0


@dataclass(frozen=True)
class Rule:
    """The axes of an op that are split together, e.g. ``Rule("mk,kn->mn", linear=((0,), (1,)))``.

    A lower-case letter is an axis that may be split; any other mark is an axis that is not split.  A single input without axes is written "1",
    because an empty left side means no inputs.  Splitting a letter has these layouts: S for every tensor with the letter, B for
    inputs without it, and P(`reduce`) for outputs without it.

    `linear` lists groups of inputs in which the op is jointly linear: if exactly the inputs of a group are P(sum), every output is P(sum).
    `also` has signatures that letters cannot express.  These signatures follow the signatures of the letters and precede the all-B signature,
    which is legal unless `whole` is False.  Of signatures with equal cost, layout inference prefers the first one in `signatures()`.
    """

    spec: str
    reduce: Reduction = SUM
    linear: tuple[tuple[int, ...], ...] = ()
    also: tuple[Signature, ...] = ()
    whole: bool = True

    def signatures(self) -> tuple[Signature, ...]:
        return _signatures(self)


@cache
def _signatures(rule: Rule) -> tuple[Signature, ...]:
    left, _, right = rule.spec.partition("->")
    inputs = left.split(",") if left else []
    outputs = right.split(",")
    signatures = list(_letter_signatures(inputs, outputs, rule.reduce))
    for group in rule.linear:
        signatures.append(Signature(tuple(P if i in group else B for i in range(len(inputs))), (P,) * len(outputs)))
    signatures.extend(rule.also)
    if rule.whole:
        signatures.append(Signature((B,) * len(inputs), (B,) * len(outputs)))
    return tuple(dict.fromkeys(signatures))


def _letter_signatures(inputs: list[str], outputs: list[str], reduce: Reduction) -> Iterator[Signature]:
    letters = dict.fromkeys(mark for word in [*inputs, *outputs] for mark in word if mark.islower())
    for axis in letters:
        if not any(axis in word for word in inputs) and inputs:
            continue  # new axes of outputs have no split signature
        yield Signature(
            tuple(S(word.index(axis)) if axis in word else B for word in inputs),
            tuple(S(word.index(axis)) if axis in word else Partial(reduce) for word in outputs),
        )


@dataclass(frozen=True)
class Local:
    """The layout of a value in the mirrored view: each rank of the placement has a separate value, without a logical tensor."""

    placement: Placement

    def __str__(self) -> str:
        return f"{self.placement}:local"
