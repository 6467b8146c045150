"""Communicators of one rank: the world of a single rank, and groups of one rank.  A collective is a copy, or does nothing."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from jobflow.core.errors import AbortedError, PlacementError, PlanError
from jobflow.core.types import Array
from jobflow.ops.op import Call
from jobflow.runtime.comm.communicator import Binding, Communicator, Transfers, Waited
from jobflow.runtime.device.device import Device

if TYPE_CHECKING:
    from jobflow.plan.traffic import Traffic


def copying(source: Array, target: Array) -> list[Call]:
    """Return the calls that copy `source` to `target`; none if both have the same memory."""
    if source.size != target.size or source.dtype != target.dtype:
        raise PlanError(f"copy of {source.dtype}[{source.size}] to {target.dtype}[{target.size}]: types and sizes must be equal")
    if source.size == 0:
        return []
    if isinstance(source, np.ndarray):
        same = source.__array_interface__["data"] == target.__array_interface__["data"]
        return [] if same else [(np.copyto, (target, source))]
    return [] if source.data.ptr == target.data.ptr else [(target.__setitem__, (..., source))]


class SoloCommunicator(Communicator):
    """The communicator of a world of one rank."""

    rank = 0
    size = 1
    members: tuple[int, ...] = (0,)

    def __init__(self, device: Device) -> None:
        self._allocate: Callable[[int], Array] = device.allocate
        self._reason: str | None = None

    def group(self, ranks: Sequence[int]) -> Communicator:
        if tuple(ranks) != (0,):
            raise PlacementError(f"group of ranks {list(ranks)}: this world has only rank 0")
        return self

    def compare_digests(self, digest: int, what: Callable[[], str]) -> None:
        """Do nothing: there is no other rank to compare with."""

    def allocate(self, nbytes: int) -> Array:
        return self._allocate(nbytes)

    def allocate_common(self, nbytes: int) -> Array | None:
        return None  # there is no other rank

    def bind(self, what: Binding) -> list[Call]:
        if tuple(what.ranks) != (0,):
            raise PlanError(f'communication "{what.name}" of ranks {list(what.ranks)}: this world has only rank 0')
        return copying(what.source, what.target)

    def bind_send(self, peer: int, source: Array, name: str = "") -> Transfers:
        raise PlanError(f'send of "{name}" to rank {peer}: this world has only rank 0')

    def bind_receive(self, peer: int, target: Array, name: str = "") -> Transfers:
        raise PlanError(f'receive of "{name}" from rank {peer}: this world has only rank 0')

    def seal(self) -> None:
        """Do nothing: the calls are ready when bound."""

    def sent(self) -> dict[str, Traffic]:
        return {}

    def barrier(self) -> None:
        self.check()

    def check(self) -> None:
        if self._reason is not None:
            raise AbortedError(self._reason)

    def exchange(self, item: Any) -> list[Any]:
        return [item]

    def observe(self, waited: Waited | None) -> None:
        """Do nothing: there is no other rank to wait for."""

    def abort(self, reason: str) -> None:
        self._reason = reason

    def reset(self) -> None:
        self._reason = None

    def close(self) -> None:
        """Do nothing: there is no shared memory."""


class SingleRankGroup(SoloCommunicator):
    """A group of one rank of a larger world; it fails and aborts with the world."""

    def __init__(self, allocate: Callable[[int], Array], member: int, world: Communicator) -> None:
        self._allocate = allocate
        self.members = (member,)
        self._world = world

    def check(self) -> None:
        self._world.check()

    def abort(self, reason: str) -> None:
        self._world.abort(reason)

    def reset(self) -> None:
        """Do nothing: the world clears its aborts."""
