"""Global tensors on ranks that are threads of the test."""

from __future__ import annotations

import functools
import inspect
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from jobflow import scope
from jobflow.runtime.device.numpy_device import CpuDevice
from jobflow.runtime.world.solo import SoloWorld
from jobflow.runtime.world.threads import ThreadsWorld
from jobflow.runtime.world.world import Rank, World
from jobflow.tensors.state import EagerState

#: suffix of the names of threads that remain for the next test
IDLE = " (kept)"
#: by number of ranks: a world that ran its last program to the end, and the state of each rank after it
_idle_worlds: dict[int, tuple[World, list[EagerState]]] = {}


def new_world(n: int) -> World:
    """Start a world of n threads; n = 0 is the calling thread alone."""
    return ThreadsWorld([CpuDevice() for _ in range(n)]) if n else SoloWorld(CpuDevice())


@contextmanager
def world_of(n: int) -> Iterator[World]:
    """Yield a new world of n threads, and close it."""
    world = new_world(n)
    try:
        yield world
    finally:
        world.close()


def _begun(n: int) -> tuple[World, list[EagerState]]:
    before = set(threading.enumerate())
    world = new_world(0 if n == 1 else n)
    for thread in set(threading.enumerate()) - before:
        thread.name += IDLE
    return world, [EagerState(rank) for rank in world.ranks]


def on_ranks(n: int, program: Callable[..., Any], *arguments: Any, anew: bool = False) -> list[Any]:
    """Return the results of `program(rank, *arguments)` on each of n ranks.

    The state is fresh except for prepared ops and redistributions, which are slow to prepare and equal in all programs.
    With `anew` the world is fresh too, because messages have numbers that its ranks share.
    """
    world, states = _begun(n) if anew else _idle_worlds.pop(n, None) or _begun(n)

    def command(rank: Rank, _: Any) -> Any:
        before, states[rank.index] = states[rank.index], EagerState(rank)
        for prepared in ("constants", "prepared", "conversions", "composing"):
            setattr(states[rank.index], prepared, getattr(before, prepared))
        with scope.using(root=scope.Root(eager=states[rank.index])):
            return program(rank.index, *arguments)

    try:
        results = world.call(command)
    except BaseException:
        world.close()
        raise
    if n in _idle_worlds:
        world.close()
    else:
        _idle_worlds[n] = world, states
    return results


def with_ranks(*counts: int) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Run the test on each of these numbers of ranks; it may accept its `rank`, and the number `n` of ranks."""

    def decorate(test: Callable[..., None]) -> Callable[..., None]:
        parameters = inspect.signature(test).parameters

        @functools.wraps(test)
        def run(n: int, **arguments: Any) -> None:
            on_ranks(n, lambda rank: test(**arguments, **{name: value for name, value in (("rank", rank), ("n", n)) if name in parameters}))

        others = [each for name, each in parameters.items() if name not in ("rank", "n")]
        vars(run)["__signature__"] = inspect.Signature([inspect.Parameter("n", inspect.Parameter.POSITIONAL_OR_KEYWORD), *others])
        return pytest.mark.parametrize("n", counts)(run)

    return decorate


def agree(n: int, program: Callable[..., Any], *arguments: Any) -> Any:
    """Return the result of `program(rank, *arguments)`, which must be equal on n ranks."""
    first, *others = on_ranks(n, program, *arguments)
    for other in others:
        assert other == first
    return first
