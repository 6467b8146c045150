"""Protocols of objects that a session uses: unfinished checkpoints, and tensors of the program."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    pass


class Unfinished(Protocol):
    """Background work; `wait` raises its errors and removes it from the session.

    After `detach` there is no communication with other ranks, and only errors of this process are reported.
    """

    def wait(self) -> None: ...
    def detach(self) -> None: ...


class ProgramTensors(Protocol):
    """Tensors of the program that share memory with variables of the session."""

    def bind(self, tensors: Mapping[str, Any]) -> None:
        """Initialize new variables from these tensors, and bind them to the tensors."""
        ...

    def settle(self) -> None:
        """Copy values that the program has written to bound tensors into their variables."""
        ...

    def changed(self, names: Iterable[str]) -> None:
        """Mark the tensors that are bound to these variables as out of date, because the variables have new values."""
        ...

    def release(self, names: Sequence[str]) -> None:
        """Unbind the tensors of these variables; they keep their data."""
        ...

    def part(self) -> None:
        """Unbind the tensors at the end of the session; they keep their data."""
        ...

    def __contains__(self, name: str) -> bool: ...
