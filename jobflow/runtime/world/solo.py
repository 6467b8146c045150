"""The world of one rank, in the calling thread."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from jobflow.core.errors import JobError
from jobflow.runtime.comm.solo_communicator import SoloCommunicator
from jobflow.runtime.device.device import Device
from jobflow.runtime.world.node_map import NodeMap
from jobflow.runtime.world.world import Command, Rank, each_argument, failure


class SoloWorld:
    """A world of one rank."""

    size = 1
    multi = False
    unwinding = False
    map = NodeMap.of_one(1)

    def __init__(self, device: Device) -> None:
        self._rank = Rank(0, 1, device, SoloCommunicator(device))
        self.ranks: Sequence[Rank] = (self._rank,)
        self.tags: Sequence[str] = (device.tag,)

    def call(self, command: Command, arguments: Sequence[Any] | None = None) -> list[Any]:
        if not self.ranks:
            raise JobError("call of a command: this world has been closed; create another one")
        argument = each_argument(1, arguments)[0]
        self._rank.device.activate()
        try:
            return [command(self._rank, argument)]
        except Exception as error:  # noqa: BLE001 - raised again, with the rank
            raise failure(0, 1, error)  # noqa: B904 - which has its cause
        finally:
            self._rank.comm.reset()

    def broadcast(self, item: Any, what: str) -> Any:
        return item

    def close(self) -> None:
        self.ranks = ()
        self._rank.memory.clear()
