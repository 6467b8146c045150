"""The storage of variables: buffers, slots, and memory shared by ranks.

Variables of one group and element type, declared together, are contiguous in one buffer, and each variable is aligned.  Therefore one
update covers all of them.  Variables that every rank of a node stores whole may be in memory shared by the ranks: once, instead of one copy per rank.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import field

from jobflow.core.dataclass import dataclass
from jobflow.core.layout import Broadcast
from jobflow.core.types import DType, contiguous_strides
from jobflow.graph.ir import Graph, Value, Variable
from jobflow.ops.guarded_update import GuardedUpdate
from jobflow.ops.layout_ops import ToGlobal
from jobflow.ops.update import Assign
from jobflow.plan.plan import Slot, aligned

#: prefixes of the names of private buffers, and of buffers shared by ranks
OWN, COMMON = "state/", "common/"
#: prefix of the names of buffers with half-precision copies of variables
SHADOW = "shadow/"

#: prefix of the names of arguments in the caller's memory, whose address changes between runs
ARGUMENT = "given/"


@dataclass(frozen=True)
class RankMemory:
    """The memory of variables and arguments on a rank, which exists before the program is planned."""

    rank: int
    #: the rank's shards of variables
    slots: Mapping[str, Slot]
    #: the rank's shards of arguments by key: in shared memory, and in private memory
    places: Mapping[str, Slot] = field(default_factory=dict)
    own: Mapping[str, Slot] = field(default_factory=dict)
    #: True if this rank returns replicated outputs; otherwise only the first rank does
    copies: bool = False
    #: True if all arguments pass through the shared I/O buffers; the same on all ranks
    io_buffers: bool = False


def is_argument(buffer: str) -> bool:
    """Return True for the name of a buffer that is an argument in the caller's memory."""
    return buffer.startswith(ARGUMENT)


def is_common(buffer: str) -> bool:
    """Return True for the name of a buffer that ranks share."""
    return buffer.startswith(COMMON)


def shadow_slot(variable: Slot, half: DType) -> Slot:
    """Return the slot of the shadow of a float32 variable, or of a part of it, in the type `half`."""
    buffer = f"{SHADOW}{half.name}/{variable.buffer}"
    return Slot(buffer, variable.offset // 2, variable.type.with_dtype(half), tuple(stride // 2 for stride in variable.strides))


def shadowed_buffer(shadow: str) -> str:
    """Return the name of the buffer with the variables of a buffer of shadows."""
    return shadow.removeprefix(SHADOW).partition("/")[2]


def private_copies(graph: Graph) -> frozenset[str]:
    """Return the names of variables that are assigned a tensor of the mirrored view; their copies may differ between ranks."""
    ops = {name: _assigned(value).node.op for name, value in graph.updates.items()}
    return frozenset(name for name, op in ops.items() if isinstance(op, ToGlobal) and any(isinstance(sbp, Broadcast) for sbp in op.sbp))


def _assigned(value: Value) -> Value:
    """Return the value that a guarded assignment writes to a variable; return other values unchanged."""
    op = value.node.op
    return value.node.inputs[1] if isinstance(op, GuardedUpdate) and isinstance(op.op, Assign) else value


def place_variables(
    variables: Iterable[Variable], rank: int, number: int = 0, sharing: tuple[int, ...] = (), own: Collection[str] = ()
) -> tuple[dict[str, Slot], dict[str, int]]:
    """Return the slots of the shards of `rank` by variable name, and the sizes in bytes by buffer name.

    `number` is the number of the first buffer.  `sharing` lists the ranks that can share memory; variables in `own` are not shared.
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
    """Return True for a variable that exactly the ranks in `sharing` store whole, except scalars and gradients.

    Scalars are private, because all ranks read and write them concurrently.  Gradients are private, because programs write to them.
    """
    private = variable.group in ("scalar", "gradient")
    return len(sharing) > 1 and variable.placement.ranks == sharing and variable.layout.is_whole and not private
