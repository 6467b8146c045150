"""Protocols that a session expects of its jobs, unfinished checkpoints and tensors."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any, Protocol

from jobflow.core.errors import SourceLine

if TYPE_CHECKING:
    from jobflow.engine.compiled import Compiled
    from jobflow.engine.session import Session


class Declared(Protocol):
    """A job from the view of its session."""

    @property
    def name(self) -> str: ...
    @property
    def where(self) -> SourceLine: ...
    @property
    def ahead(self) -> bool:
        """True if the job is compiled before its first call."""
        ...

    def declared_shapes(self, session: Session) -> Any: ...

    def compile(self, session: Session, shapes: Any, number: int) -> Compiled: ...
    def run(self, session: Session, args: tuple[Any, ...]) -> Callable[[], Any]: ...


class Unfinished(Protocol):
    """Background work; `wait` raises its errors and removes it from the session.

    After `part` it communicates with no other rank, and reports only errors of this process.
    """

    def wait(self) -> None: ...
    def detach(self) -> None: ...


class ProgramTensors(Protocol):
    """Tensors of the program that share memory with variables of the session."""

    def bind(self, tensors: Mapping[str, Any]) -> None:
        """Initialise new variables from these tensors, and bind them to the tensors."""
        ...

    def settle(self) -> None:
        """Copy values that the program has written to bound tensors into their variables."""
        ...

    def changed(self, names: Iterable[str]) -> None:
        """Record that these variables have new values."""
        ...

    def part(self) -> None:
        """Unbind the tensors at the end of the session; they keep their data."""
        ...

    def __contains__(self, name: str) -> bool: ...
