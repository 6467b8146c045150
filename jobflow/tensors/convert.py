"""Eager redistribution: changes of layout as plans that contain only communication and copies.

The ranks of both placements participate, as a group with its own communicator.  A plan is compiled and bound to memory once per type and pair
of layouts, and cached for the group.  Before ranks communicate, they compare digests of the operation (`Communicator.compare_digests`).
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace

import numpy as np

import jobflow.core.scope as scope
from jobflow.compiler.layouts.box import Reroute
from jobflow.compiler.layouts.paths import path
from jobflow.core.dataclass import dataclass
from jobflow.core.errors import DivergedError, user_line
from jobflow.core.layout import B, Layout, Local, Placement
from jobflow.core.types import Array, TensorType
from jobflow.graph.ir import Graph, Node, Physical, Value
from jobflow.kernels.target import CPU
from jobflow.ops.source import Input
from jobflow.plan.plan import Plan, Slot
from jobflow.program.program import Program, StorageChoice
from jobflow.program.rank_group import RankGroup
from jobflow.runtime.comm.communicator import Communicator
from jobflow.runtime.executor import Executor
from jobflow.runtime.variable_buffers import window
from jobflow.runtime.world.world import Rank
from jobflow.tensors.state import EagerState, mixed
from jobflow.tensors.tensor import TensorBase, check_current

#: the maximal number of prepared conversions per group of ranks
MAX_CONVERSIONS = 128
#: stands for the elements in the descriptions that `agree_on_values` receives
ELEMENTS = "{elements}"
#: the name of the programs of conversions
CONVERSION = "convert"


def empty(type: TensorType) -> Array:
    """Return an empty array for a rank outside of the placement, with the element type and number of axes of `type`."""
    return np.empty((0,) * type.ndim, type.dtype.numpy)


@dataclass
class Conversion:
    """A change of layout, prepared for this rank; the call maps this rank's piece in the old layout to its piece in the new layout."""

    run: Callable[[Array], Array | None]
    communicates: bool
    #: True if this rank has a piece of the result
    takes: bool

    def __call__(self, array: Array, type: TensorType) -> Array:
        piece = self.run(array)
        return piece if self.takes else empty(type)


@dataclass(frozen=True)
class Planned:
    """The execution of a change of layout by a plan with its own memory."""

    executor: Executor
    #: True if this rank has a piece of the source
    gives: bool

    def __call__(self, array: Array) -> Array | None:
        outputs = self.executor.run({"x": array} if self.gives else {})
        return outputs[0][1] if outputs else None


@dataclass(frozen=True)
class Part:
    """The execution of a change of layout without communication: a copy of this rank's piece of the source, or of a part of the piece."""

    #: the part, in bytes of the source
    slot: Slot

    def __call__(self, array: Array) -> Array:
        return np.array(window(np, np.ascontiguousarray(array).reshape(-1).view(np.uint8), self.slot))


def convert(here: EagerState, x: TensorBase, target: Layout, what: str) -> Array:
    """Return this rank's piece of the global tensor x in the layout `target`; all ranks of both placements must call this function.

    `what` names the operation in messages.
    """
    assert x.layout is not None
    return convert_array(here, x.array, x.tensor_type, x.layout, target, what, x._provenance)


def convert_array(here: EagerState, array: Array, type: TensorType, source: Layout, target: Layout, what: str, provenance: int = 0) -> Array:
    """Return this rank's piece of a tensor in the layout `target`; `array` is this rank's piece in the layout `source`.

    All ranks of both placements must call this function.  `what` names the operation in messages.
    """
    if source == target:
        return array
    ranks = tuple(sorted({*source.placement.ranks, *target.placement.ranks}))
    if here.rank.index not in ranks:
        return empty(type)
    with scope.lock():  # a bound change reuses its memory
        return _converted(here, array, type, source, target, ranks, what, provenance)


def _converted(
    here: EagerState, array: Array, type: TensorType, source: Layout, target: Layout, ranks: tuple[int, ...], what: str, provenance: int
) -> Array:
    cache = here.conversions.setdefault(ranks, {})
    key = (type, source, target)
    conversion: Conversion | None = cache.get(key)
    comm = here.rank.comm.group(ranks)
    if conversion is None or conversion.communicates:
        agree(here, comm, _digest(here, type, source, target, provenance), _described(here, what, type, source, target, provenance))
    if conversion is not None:
        del cache[key]
    elif len(cache) >= MAX_CONVERSIONS:
        cache.pop(next(iter(cache)))
    cache[key] = conversion = conversion or bound(here, comm, ranks, type, source, target)  # least recently used first
    return conversion(array, type)


def agree(here: EagerState, comm: Communicator, digest: int, what: Callable[[], str]) -> None:
    """Compare the next operation of all ranks of a communicator, described by `digest`; raise DivergedError on all ranks if the digests differ.

    `what` returns the description for the message.  The caller holds `scope.lock` until the operation ends.
    """
    here.rank.check_process()
    try:
        comm.compare_digests(mixed(digest, zlib.crc32(scope.caller().encode())), lambda: what() + in_thread(scope.caller()))
    except DivergedError:
        here.forget(comm.members)
        raise


def agree_on_values(here: EagerState, array: Array, type: TensorType, layout: Layout, what: Callable[[], str]) -> int:
    """Compare the arrays of all ranks of the world by a digest, and return the digest, the provenance of the tensor; 0 for one rank.

    Raises: DivergedError on all ranks if the arrays differ.  The message contains `what()`, and the elements of the rank.
    """
    if here.rank.size == 1:
        return 0
    content = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
    digest = zlib.crc32(content.data, zlib.crc32(f"{type} {layout}".encode()))
    with scope.lock():
        agree(here, here.rank.comm, digest, lambda: what().replace(ELEMENTS, shortened(array)))
    return digest


def shortened(array: Array) -> str:
    """Return the text of the elements in one line; more than 8 elements are abbreviated."""
    return np.array2string(array, threshold=8, edgeitems=2, separator=", ").replace("\n", "")


def in_thread(caller: str) -> str:
    """Return the end of a message for an operation that the Python thread `caller` calls; "" for the main thread of the rank."""
    return f" in Python thread {caller!r}" if caller else ""


@contextmanager
def meeting(here: EagerState, comm: Communicator, digest: int, what: Callable[[], str]) -> Iterator[None]:
    """Compare the next operation of all ranks of a communicator as `agree` does, and hold `scope.lock` inside the `with` block."""
    with scope.lock():
        agree(here, comm, digest, what)
        yield


def _digest(here: EagerState, type: TensorType, source: Layout, target: Layout, provenance: int) -> int:
    """Return a digest of a change of layout and of the provenance of the tensor.

    The digest includes the earlier operations on the placement if the ranks remain the same.
    """
    before = here.collective_log(source.placement).number if source.placement.ranks == target.placement.ranks else 0
    return mixed(before, provenance, zlib.crc32(f"{type} {source} {target}".encode()))


def _described(here: EagerState, what: str, type: TensorType, source: Layout, target: Layout, provenance: int) -> Callable[[], str]:
    def text() -> str:
        # the number distinguishes tensors that are otherwise alike
        return f"{what} of {type} #{provenance % 10_000:04} {source} -> {target} at {user_line()}{done(here, source.placement)}"

    return text


def done(here: EagerState, placement: Placement) -> str:
    """Return the end of a message, a list of the last operations on a placement; "" before the first operation."""
    last = here.collective_log(placement).last
    return "".join(["\n    after", *(f"\n      {text}" for text in last)]) if last else ""


def bound(here: EagerState, comm: Communicator, ranks: tuple[int, ...], type: TensorType, source: Layout, target: Layout) -> Conversion:
    """Return the conversion from the layout `source` to `target`, prepared for this rank; all ranks of the group must call this function.

    The conversion runs a plan bound to memory, or only copies a part of the piece if no data move between ranks.
    """
    index, group = ranks.index(here.rank.index), RankGroup((source.placement, target.placement))
    at = [group.layout(source), group.layout(target)]
    ready = Program(physical(type, *at), StorageChoice(copies=True), CPU).bind(Rank(index, len(ranks), here.device, comm))
    gives, takes = (index in layout.placement.ranks for layout in at)
    # without a schedule no rank waits for another, so a rank may copy a part instead of running the plan
    return Conversion(_part(ready.plan) or Planned(ready.executor, gives), bool(ready.plan.schedule), takes)


def _part(plan: Plan) -> Part | None:
    """Return the conversion that `plan` describes as a copy of a part of this rank's piece.

    The result is None if data move between ranks or are computed, or if this rank lacks a piece of the source or result.
    """
    if plan.schedule or plan.body or not plan.feeds or not plan.fetches:
        return None
    (feed,), ((_, slot),) = plan.feeds, plan.fetches
    return Part(replace(slot, offset=slot.offset - feed.slot.offset))


def physical(type: TensorType, source: Layout, target: Layout) -> Physical:
    """Return a program that converts a tensor of this type from the layout `source` to the layout `target`."""
    nodes = [Node(Input(type.shape, type.dtype, "x"), (), ((type, "x", False),), "x", source.placement)]
    first = here = nodes[0].outputs[0]
    layouts: dict[Value, Layout | Local] = {here: source}
    before = source
    for hop in path(source, target, type):
        name = f"x:{hop.target}"
        nodes.append(Node(Reroute(before, hop.target, hop.name), (here,), ((type, name, False),), name, hop.target.placement))
        here, before = nodes[-1].outputs[0], hop.target
        layouts[here] = before
    return Physical(Graph(CONVERSION, source.placement, tuple(nodes), (first,), (here,)), layouts)


def gathered(here: EagerState, x: TensorBase, what: str) -> Array:
    """Return a copy of the whole logical array of the global tensor x on every rank; all ranks must call this function."""
    with scope.lock():
        return _gathered(here, x, what)


def _gathered(here: EagerState, x: TensorBase, what: str) -> Array:
    assert x.layout is not None
    check_current(x)
    everywhere = Layout(Placement("cpu", tuple(range(here.rank.size))), (B,))
    if x.layout.placement.ranks == everywhere.placement.ranks and x.layout.is_whole:
        if here.rank.size > 1:
            same = x.tensor_type, x.layout, x.layout
            agree(here, here.rank.comm, _digest(here, *same, x._provenance), _described(here, what, *same, x._provenance))
        return x.array.copy()  # a write on one rank must not reach the shared copies
    return convert_array(here, x.array, x.tensor_type, x.layout, everywhere, what, x._provenance)
