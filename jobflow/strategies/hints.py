"""Hints: what a strategy asks of a program, as plain data."""

from __future__ import annotations

from collections.abc import Mapping
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from typing import Protocol

from jobflow.core.layout import Sbp
from jobflow.graph.ir import Node, Value
from jobflow.graph.traced import Traced


@dataclass(frozen=True)
class Hints:
    """What is wished along one dimension of the ranks."""

    #: how variables are stored; those not named: whole
    stored: Mapping[str, Sbp] = field(default_factory=dict)
    #: how variables are read; those not named: whole.  None leaves it to layout inference
    read: Mapping[str, Sbp] | None = None
    #: how values are read, and how their gradients are, where inference is not to choose
    values: Mapping[Value, Sbp] = field(default_factory=dict)
    gradients: Mapping[Value, Sbp] = field(default_factory=dict)
    #: False if every rank along the dimension takes the whole of every argument
    cuts_arguments: bool = False
    #: gradients are brought to where their variables are stored as soon as they are made, not when all are made
    reduces_at_once: bool = False
    #: what is read otherwise than it is stored is brought together again for the backward pass, and not kept from the forward pass
    gathers_again: bool = False
    #: the stage of a pipeline that each node runs in
    stages: Mapping[Node, int] = field(default_factory=dict)
    #: how many stages there are, if not one for each rank of the dimension
    stage_count: int = 0


class Dimension(Protocol):
    """One dimension of parallelism: `size` ranks along it, or None for all that other dimensions leave."""

    @property
    def size(self) -> int | None: ...
    @property
    def is_pipeline(self) -> bool: ...
    def hints(self, program: Traced, n: int, split: Mapping[str, AbstractSet[int]]) -> Hints: ...
