"""Global tensors on ranks that are threads of the test."""

from __future__ import annotations

import functools
import inspect
import threading
from collections.abc import Callable
from typing import Any

import pytest

from jobflow import scope
from jobflow.eager.state import EagerState
from jobflow.runtime.device.numpy_device import CpuDevice
from jobflow.runtime.world.solo import SoloWorld
from jobflow.runtime.world.threads import ThreadsWorld
from jobflow.runtime.world.world import Rank, World

#: the end of the names of threads that are left for the next test
KEPT = " (kept)"
#: by number of ranks: a world that ran its last program to the end, and the state of each rank after it
_kept: dict[int, tuple[World, list[EagerState]]] = {}


def _begun(n: int) -> tuple[World, list[EagerState]]:
    before = set(threading.enumerate())
    world = SoloWorld(CpuDevice()) if n == 1 else ThreadsWorld([CpuDevice() for _ in range(n)])
    for thread in set(threading.enumerate()) - before:
        thread.name += KEPT
    return world, [EagerState(rank) for rank in world.ranks]


def on_ranks(n: int, program: Callable[..., Any], *arguments: Any, anew: bool = False) -> list[Any]:
    """What `program(rank, *arguments)` gives on each of n ranks, all of which run it.

    The state is new, but for what is prepared of ops and changes of layout: that takes longer than all else, and other programs had the same.
    With `anew`, the world is new as well: messages number what its ranks have agreed on.
    """
    world, states = _begun(n) if anew else _kept.pop(n, None) or _begun(n)

    def command(rank: Rank, _: Any) -> Any:
        before, states[rank.index] = states[rank.index], EagerState(rank)
        for prepared in ("constants", "prepared", "conversions", "composing"):
            setattr(states[rank.index], prepared, getattr(before, prepared))
        with scope.using(root=scope.Root(eager=states[rank.index])):
            return program(rank.index, *arguments)

    try:
        found = world.call(command)
    except BaseException:
        world.close()
        raise
    if n in _kept:
        world.close()
    else:
        _kept[n] = world, states
    return found


def with_ranks(*counts: int) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """The test runs once for each of the counts, on so many ranks; it may take its `rank`, and `n`, how many there are."""

    def hang(test: Callable[..., None]) -> Callable[..., None]:
        wanted = inspect.signature(test).parameters

        @functools.wraps(test)
        def run(n: int, **given: Any) -> None:
            on_ranks(n, lambda rank: test(**given, **{name: value for name, value in (("rank", rank), ("n", n)) if name in wanted}))

        others = [each for name, each in wanted.items() if name not in ("rank", "n")]
        vars(run)["__signature__"] = inspect.Signature([inspect.Parameter("n", inspect.Parameter.POSITIONAL_OR_KEYWORD), *others])
        return pytest.mark.parametrize("n", counts)(run)

    return hang


def agree(n: int, program: Callable[..., Any], *arguments: Any) -> Any:
    """The same, where all ranks must give the same; that."""
    first, *others = on_ranks(n, program, *arguments)
    for other in others:
        assert other == first
    return first
