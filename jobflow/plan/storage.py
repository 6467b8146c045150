"""Where variables are stored.

Variables that are declared together and share a group and an element type lie end to end in one buffer, each at a multiple of
the alignment, so that an update may treat them as one.
"""

from __future__ import annotations

from collections.abc import Iterable

from jobflow.graph.ir import Variable
from jobflow.plan.plan import ALIGNMENT, Slot
from jobflow.types import contiguous_strides


def place_variables(variables: Iterable[Variable], rank: int, number: int = 0) -> tuple[dict[str, Slot], dict[str, int]]:
    """The slots of this rank's parts by variable, and the bytes of the buffers by name; `number` is that of the first buffer."""
    groups: dict[tuple[str, str], list[Variable]] = {}
    for variable in variables:
        if rank in variable.placement.ranks:
            groups.setdefault((variable.group, variable.type.dtype.name), []).append(variable)
    slots: dict[str, Slot] = {}
    sizes: dict[str, int] = {}
    for i, ((group, _), members) in enumerate(groups.items(), number):
        buffer, offset = f"state/{i}:{group}", 0
        for variable in members:
            type = variable.layout.local_type(variable.type, rank)
            slots[variable.name] = Slot(buffer, offset, type, contiguous_strides(type.shape, type.dtype.itemsize))
            offset += -(-max(type.nbytes, 1) // ALIGNMENT) * ALIGNMENT
        sizes[buffer] = offset
    return slots, sizes
