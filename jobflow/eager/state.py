"""The state that all tensors of a rank share: the rank, random generators, gradient mode, and caches.

It lives in the scope's root, so that ranks which are threads each have their own.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import field
from functools import cached_property
from typing import Any

import jobflow.core.scope as scope
from jobflow.core.dataclass import dataclass
from jobflow.core.errors import JobError, user_line
from jobflow.core.layout import Placement
from jobflow.core.types import float32
from jobflow.engine.session import current_session, environment
from jobflow.runtime.device.device import Device
from jobflow.runtime.device.numpy_device import CpuDevice
from jobflow.runtime.world import launched as launch
from jobflow.runtime.world.solo import SoloWorld
from jobflow.runtime.world.world import Rank, World

#: how many of the last ops a message about ranks that diverged names
REMEMBERED = 5
_MASK = (1 << 61) - 1
_FACTOR = 1_000_003
#: of Python threads that draw from one generator, no two get the same number
_drawing = threading.Lock()


@dataclass
class Generator:
    """Counts draws: a random tensor is a function of the seed, the number of its draw, and the index of the element."""

    seed: int = 0
    draws: int = 0

    def next(self) -> int:
        """The number of the next draw."""
        with _drawing:
            self.draws += 1
            return self.draws - 1


@dataclass
class Trail:
    """What has been done on a placement, as one number, and the last of it in words: ranks that diverged find out by it."""

    number: int = 0
    last: deque[str] = field(default_factory=lambda: deque(maxlen=REMEMBERED))

    def add(self, digest: int, what: str) -> None:
        self.number = (self.number * _FACTOR + digest) & _MASK
        self.last.append(what)


def mixed(*numbers: int) -> int:
    """One number for several, in their order."""
    found = 0
    for number in numbers:
        found = (found * _FACTOR + number) & _MASK
    return found


class Own(threading.local):
    """What every Python thread of a rank has for itself."""

    def __init__(self) -> None:
        #: its scratch memory is that of one op at a time
        self.device: Device = CpuDevice()
        self.grad_enabled = True
        #: the mode of gradients before each `with` block that changed it
        self.modes: list[bool] = []
        #: what is to be done when the backward pass that runs has come to its end
        self.after_backward: list[Callable[[], None]] = []
        #: the graph that `nn.Graph.build` is building, if it runs
        self.building: Any = None


class EagerState:
    """See the module.  What is called with `scope.lock` held may be shared by threads; the rest is `own`, or is only added to."""

    def __init__(self, rank: Rank) -> None:
        self.rank = rank  # until the session ends whose world it is of
        self.own = Own()
        #: of graphs and changes of layout, which run with the lock held
        self.device: Device = CpuDevice()
        #: of tensors made of Python's floats
        self.default_dtype = float32
        #: by class, the number of the last graph
        self.graphs: dict[str, int] = {}
        #: draws of local tensors differ in number between ranks, those of global ones do not; until a seed is set, local ones
        #: differ in value too
        self.local_generator = Generator(rank.index)
        self.global_generator = Generator()
        #: numbers as tensors: see functional/promotion.py
        self.constants: dict[Any, Any] = {}
        #: prepared ops: see run.py
        self.prepared: dict[Any, Any] = {}
        #: prepared changes of layout, by group of ranks: see convert.py
        self.conversions: dict[tuple[int, ...], Any] = {}
        #: how many local tensors have become global
        self.entered = 0
        #: scopes in which functions of ops may be called, by placement: see functional/nn_base.py
        self.composing: dict[Any, Any] = {}
        self._trails: dict[tuple[int, ...], Trail] = {}

    @cached_property
    def rank(self) -> Rank:
        """This process as a rank."""
        return _rank()

    def part(self, world: World) -> None:
        """The world ends: nothing stays that was prepared for its ranks, and the next need starts another."""
        if any(rank is self.rank for rank in world.ranks):
            del self.rank
            for prepared in (self.prepared, self.conversions, self.composing, self._trails):
                prepared.clear()
            self.entered = 0

    @property
    def grad_enabled(self) -> bool:
        return self.own.grad_enabled

    @grad_enabled.setter
    def grad_enabled(self, enabled: bool) -> None:
        self.own.grad_enabled = enabled

    @property
    def building(self) -> Any:
        return self.own.building

    @building.setter
    def building(self, graph: Any) -> None:
        self.own.building = graph

    def trail(self, placement: Placement) -> Trail:
        found = self._trails.get(placement.ranks)
        if found is None:
            found = self._trails[placement.ranks] = Trail()
        return found

    def forget(self, ranks: Sequence[int]) -> None:
        """These ranks have parted, and have been told: what each did before is not compared any more, so that they can go on."""
        for placed, trail in self._trails.items():
            if set(placed) <= set(ranks):
                trail.number = 0
                trail.last.clear()
        if len(ranks) == self.rank.size:
            self.entered = 0

    def manual_seed(self, seed: int) -> None:
        self.local_generator = Generator(seed)
        self.global_generator = Generator(seed)


def state() -> EagerState:
    """That of this rank; the ranks of a launched program meet at the first need."""
    root = scope.current().root
    if root.eager is None:
        with root.lock:
            root.eager = root.eager or EagerState(_rank())
    return root.eager


def _rank() -> Rank:
    """This process as a rank: of the launched program, or alone."""
    if launch.launched() is None:
        return SoloWorld(CpuDevice()).ranks[0]
    session = current_session()
    if not session.started:
        environment().client = "multi"
    world = session.start()
    if not world.multi:
        raise JobError(
            f"tensors at {user_line()}: this program has started as single client, where only rank 0 runs it; "
            f'call flow.env.client("multi") before the first job, so that every rank does'
        )
    return world.ranks[0]


def building_now() -> Any:
    """The graph that `nn.Graph.build` is building on this rank; None if there is none."""
    here = scope.current().root.eager
    return None if here is None else here.building


def running() -> str:
    """What runs while tensors have no numbers: nn.Graph.build, or the body of a job."""
    return building_now().running


@contextmanager
def gradients(enabled: bool) -> Iterator[None]:
    """Record for `backward`, or do not, inside."""
    here = state()
    before, here.grad_enabled = here.grad_enabled, enabled
    try:
        yield
    finally:
        here.grad_enabled = before
