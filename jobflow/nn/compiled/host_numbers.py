"""Numbers that the host passes to a plan at every run: learning rates, step counts and counters of random operations."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import field
from typing import Any

from jobflow.core.dataclass import dataclass
from jobflow.core.types import Array
from jobflow.tensors.state import EagerState, Generator


@dataclass
class HostNumber:
    """A number that Python code changes between runs, such as a learning rate; `read` returns its value before every run."""

    key: str
    array: Array
    read: Callable[[], float]
    #: dictionaries of optimizer state that must have the same number
    alike: list[dict[str, Any]] = field(default_factory=list)

    def update(self) -> None:
        self.array[0] = self.read()


@dataclass
class HostSample(HostNumber):
    """An array that NumPy samples before every run; `compute` returns it.  Ranks may sample different elements."""

    is_equal = False
    compute: Callable[[], Array] = field(kw_only=True)

    def update(self) -> None:
        self.array[...] = self.compute()


@dataclass
class SessionGenerator:
    """A reference to the rank's current random generator of local or global tensors, because `manual_seed` replaces the generator."""

    here: EagerState
    local: bool

    @property
    def now(self) -> Generator:
        generator: Generator = self.here.local_generator if self.local else self.here.global_generator
        return generator

    @property
    def seed(self) -> int:
        return self.now.seed

    @property
    def draws(self) -> int:
        return self.now.draws

    @draws.setter
    def draws(self, count: int) -> None:
        self.now.draws = count

    def next(self) -> int:
        return self.now.next()
