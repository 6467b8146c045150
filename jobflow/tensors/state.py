"""The state that all tensors of a rank share: the rank, random generators, gradient mode, and caches.

The scope's root holds the state, so that ranks that are threads have separate states.
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
from jobflow.runtime.device.device import Device
from jobflow.runtime.device.numpy_device import CpuDevice
from jobflow.runtime.world.environment import launched
from jobflow.runtime.world.solo import SoloWorld
from jobflow.runtime.world.world import Rank, World

#: the number of last operations in a message about diverged ranks
REMEMBERED = 5
_MASK = (1 << 61) - 1
_FACTOR = 1_000_003
#: gives Python threads that share a generator different counters
_draw_lock = threading.Lock()


@dataclass
class Generator:
    """A counter-based random generator: a random number depends on the seed, the counter of the operation, and the index of the element."""

    seed: int = 0
    draws: int = 0

    def next(self) -> int:
        """Return the counter of the next random operation, and increment it."""
        with _draw_lock:
            self.draws += 1
            return self.draws - 1


@dataclass
class CollectiveLog:
    """A digest of all operations on a placement, to detect diverged ranks, and descriptions of the last operations, for the message."""

    number: int = 0
    last: deque[str] = field(default_factory=lambda: deque(maxlen=REMEMBERED))

    def add(self, digest: int, what: str) -> None:
        self.number = (self.number * _FACTOR + digest) & _MASK
        self.last.append(what)


def mixed(*values: int) -> int:
    """Combine several numbers, in order, into one digest."""
    digest = 0
    for value in values:
        digest = (digest * _FACTOR + value) & _MASK
    return digest


class Own(threading.local):
    """The part of `EagerState` that belongs to one Python thread."""

    def __init__(self) -> None:
        #: one per thread, because its scratch memory serves one operation at a time
        self.device: Device = CpuDevice()
        self.grad_enabled = True
        #: the gradient mode before each active `with` block that changed it
        self.modes: list[bool] = []
        #: callbacks for the end of the current backward pass
        self.after_backward: list[Callable[[], None]] = []
        #: the recorder of the program being traced, if any
        self.building: Any = None


class EagerState:
    """The state of eager execution on one rank.

    Attributes that several threads change are used with `scope.lock` held.  Other attributes belong to one thread (`own`), or only gain entries.
    """

    def __init__(self, rank: Rank) -> None:
        self.rank = rank  # deleted when the session of its world ends
        self.own = Own()
        #: device of graphs and changes of layout, which run with the lock held
        self.device: Device = CpuDevice()
        #: element type of tensors created from Python floats
        self.default_dtype = float32
        #: name of the backend that `distributed.init_process_group` received; None before
        self.process_group: str | None = None
        #: device of tensors created without `device=` and `placement=`; None is the host
        self.default_device: Any = None
        #: index of the device "cuda" without an index; None is the GPU of the rank
        self.cuda_index: int | None = None
        #: the number of GPUs that this process can use; None before the first request: see gpus.py
        self.gpu_count: int | None = None
        #: the GPUs that tensors use, by index: see gpus.py
        self.gpus: dict[int, Any] = {}
        #: number of the last graph, by class
        self.graphs: dict[str, int] = {}
        #: ranks may create different numbers of random local tensors, but create random global tensors together; without a seed, local
        #: tensors also have different values
        self.local_generator = Generator(rank.index)
        self.global_generator = Generator()
        #: cached constants: see functional/promotion.py
        self.constants: dict[Any, Any] = {}
        #: prepared operations: see run.py
        self.prepared: dict[Any, Any] = {}
        #: prepared changes of layout, by group of ranks: see convert.py
        self.conversions: dict[tuple[int, ...], Any] = {}
        #: NCCL communicators of local tensors on GPUs, by group of ranks; None for groups that use the hosts: see gpu_collectives.py
        self.nccl_groups: dict[tuple[int, ...], Any] = {}
        #: the number of local tensors converted to global ones
        self.entered = 0
        #: scopes for functions of operations, by placement: see functional/nn_base.py
        self.composing: dict[Any, Any] = {}
        self._collective_logs: dict[tuple[int, ...], CollectiveLog] = {}

    @cached_property
    def rank(self) -> Rank:
        """The rank of this process or thread."""
        return _rank()

    def part(self, world: World) -> None:
        """Clear the caches if this rank belongs to a world that ends; the next operation starts another world."""
        if any(rank is self.rank for rank in world.ranks):
            del self.rank
            for prepared in (self.prepared, self.conversions, self.nccl_groups, self.composing, self._collective_logs):
                prepared.clear()
            for gpu in self.gpus.values():
                gpu.prepared.clear()
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

    def collective_log(self, placement: Placement) -> CollectiveLog:
        log = self._collective_logs.get(placement.ranks)
        if log is None:
            log = self._collective_logs[placement.ranks] = CollectiveLog()
        return log

    def forget(self, ranks: Sequence[int]) -> None:
        """Clear the logs of operations on these ranks after a DivergedError, so that their next operations can be compared again."""
        for placed, log in self._collective_logs.items():
            if set(placed) <= set(ranks):
                log.number = 0
                log.last.clear()
        if len(ranks) == self.rank.size:
            self.entered = 0

    def manual_seed(self, seed: int) -> None:
        self.local_generator = Generator(seed)
        self.global_generator = Generator(seed)


def state() -> EagerState:
    """Return the state of this rank; the ranks of a launched program connect at the first call."""
    root = scope.current().root
    if root.eager is None:
        with root.lock:
            root.eager = root.eager or EagerState(_rank())
    return root.eager


def _rank() -> Rank:
    """Return this process as a rank of the launched program, or as the only rank of a new world.

    Raises: JobError if the launched program has a single client.
    """
    if launched() is None:
        return SoloWorld(CpuDevice()).ranks[0]
    from jobflow.engine.session import current_session, environment

    session = current_session()
    if not session.started:
        environment().client = "multi"
    world = session.start()
    if not world.multi:
        raise JobError(
            f"tensors at {user_line()}: this program started as single client, where only rank 0 runs it; "
            f'call flow.env.client("multi") before the first job'
        )
    return world.ranks[0]


def building_now() -> Any:
    """Return the recorder of the program being traced on this rank, or None."""
    here = scope.current().root.eager
    return None if here is None else here.building


def running() -> str:
    """Return the name of the tracing in progress for an error message: "nn.Graph.build", "flow.compile" or "the body of a job".

    A function with such an error is not compiled, even if its code catches the error, because a replay does not repeat the `except` branch.
    """
    building = building_now()
    note_error(building)
    name: str = building.running
    return name


def note_error(building: Any) -> None:
    """Note that user code receives an error, such as for an unknown value, that only the tracing of a compiled function raises."""
    if building is not None and building.differentiates:
        building.forbidden.append(f"the code at {user_line()} continues after an error about a value that is not known during tracing")


def refuse_tracing(what: str, problem: str, advice: str) -> None:
    """Raise JobError if a program is being traced, because its runs would not repeat the effect of `what` on Python objects.

    The message has the form "<what> at <line>: <problem> while <tracing> runs; <advice>".
    """
    building = building_now()
    if building is not None and scope.current().interpreter is not None:
        building.forbidden.append(f"{what} at {user_line()}: {problem} while {building.running} runs; {advice}")
        raise JobError(building.forbidden[-1])


@contextmanager
def gradients(enabled: bool) -> Iterator[None]:
    """Enable or disable the recording of operations for backward inside the `with` block."""
    here = state()
    before, here.grad_enabled = here.grad_enabled, enabled
    try:
        yield
    finally:
        here.grad_enabled = before
