"""The storage of variables: buffers, slots, and what ranks share.

Variables that are declared together and share a group and an element type lie end to end in one buffer, each at a multiple of
the alignment, so that an update may treat them as one.  What every rank of a node holds whole may lie in memory that they have in
common: once, instead of a copy each.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import field

from jobflow.core.dataclass import dataclass
from jobflow.core.layout import Broadcast
from jobflow.core.types import contiguous_strides
from jobflow.graph.ir import Graph, Value, Variable
from jobflow.ops.layout_ops import ToGlobal
from jobflow.ops.skipped_steps import Unless
from jobflow.ops.update import Assign
from jobflow.plan.plan import Slot, aligned

#: what the names of buffers begin with that are one rank's own, and that ranks have in common
OWN, COMMON = "state/", "common/"


#: what the name of a buffer begins with that is an argument where this rank has it, which may be elsewhere in every run
GIVEN = "given/"


@dataclass(frozen=True)
class RankMemory:
    """What a rank has before its program is planned, and where."""

    rank: int
    #: its parts of variables
    slots: Mapping[str, Slot]
    #: its parts of arguments, by key: in memory that ranks have in common, and in its own
    places: Mapping[str, Slot] = field(default_factory=dict)
    own: Mapping[str, Slot] = field(default_factory=dict)
    #: whether it hands out outputs that all ranks hold whole, which else the first alone does
    copies: bool = False
    #: whether all arguments come through the shared I/O buffers; the same on all ranks
    io_buffers: bool = False


def is_given(buffer: str) -> bool:
    """True for an argument that is read where this rank has it."""
    return buffer.startswith(GIVEN)


def is_common(buffer: str) -> bool:
    """True for a buffer that ranks have in common."""
    return buffer.startswith(COMMON)


def apart(graph: Graph) -> frozenset[str]:
    """The variables that take a tensor of the mirrored view: of these each rank has a copy of its own, which may come to differ."""
    ops = {name: _assigned(value).node.op for name, value in graph.updates.items()}
    return frozenset(name for name, op in ops.items() if isinstance(op, ToGlobal) and any(isinstance(sbp, Broadcast) for sbp in op.sbp))


def _assigned(value: Value) -> Value:
    """The value that a guarded assignment gives a variable; others as they are."""
    op = value.node.op
    return value.node.inputs[1] if isinstance(op, Unless) and isinstance(op.op, Assign) else value


def place_variables(
    variables: Iterable[Variable], rank: int, number: int = 0, sharing: tuple[int, ...] = (), own: Collection[str] = ()
) -> tuple[dict[str, Slot], dict[str, int]]:
    """The slots of this rank's parts by variable, and the bytes of the buffers by name; `number` is that of the first buffer.

    `sharing` are the ranks that can have memory in common; variables called in `own` do not lie in it.
    """
    groups: dict[tuple[str, str, str], list[Variable]] = {}
    for variable in variables:
        if rank in variable.placement.ranks:
            kind = COMMON if variable.name not in own and _is_shared(variable, sharing) else OWN
            groups.setdefault((kind, variable.group, variable.type.dtype.name), []).append(variable)
    slots: dict[str, Slot] = {}
    sizes: dict[str, int] = {}
    for i, ((kind, group, _), members) in enumerate(groups.items(), number):
        buffer, offset = f"{kind}{i}:{group}", 0
        for variable in members:
            type = variable.layout.local_type(variable.type, rank)
            slots[variable.name] = Slot(buffer, offset, type, contiguous_strides(type.shape, type.dtype.itemsize))
            offset += aligned(max(type.nbytes, 1))
        sizes[buffer] = offset
    return slots, sizes


def _is_shared(variable: Variable, sharing: tuple[int, ...]) -> bool:
    """Scalars stay each rank's own: they are read and written at once on all ranks, and cost nothing."""
    return len(sharing) > 1 and variable.placement.ranks == sharing and variable.layout.is_whole and variable.group != "scalar"
