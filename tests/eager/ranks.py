"""Global tensors on ranks that are threads of the test."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from jobflow import scope
from jobflow.eager.state import EagerState
from jobflow.runtime.device.numpy_device import CpuDevice
from jobflow.runtime.world.solo import SoloWorld
from jobflow.runtime.world.threads import ThreadsWorld
from jobflow.runtime.world.world import Rank


def on_ranks(n: int, program: Callable[..., Any], *arguments: Any) -> list[Any]:
    """What `program(rank, *arguments)` gives on each of n ranks, all of which run it."""

    def command(rank: Rank, _: Any) -> Any:
        with scope.using(root=scope.Root(eager=EagerState(rank))):
            return program(rank.index, *arguments)

    world = SoloWorld(CpuDevice()) if n == 1 else ThreadsWorld([CpuDevice() for _ in range(n)])
    try:
        return world.call(command)
    finally:
        world.close()


def agree(n: int, program: Callable[..., Any], *arguments: Any) -> Any:
    """The same, where all ranks must give the same; that."""
    first, *others = on_ranks(n, program, *arguments)
    for other in others:
        assert other == first
    return first
