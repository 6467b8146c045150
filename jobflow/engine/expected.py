"""What a session expects of the jobs, the checkpoints under way and the tensors that it holds."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any, Protocol

from jobflow.core.errors import SourceLine

if TYPE_CHECKING:
    from jobflow.engine.compiled import Compiled
    from jobflow.engine.session import Session


class Declared(Protocol):
    """A job, as the session that holds it sees it."""

    @property
    def name(self) -> str: ...
    @property
    def where(self) -> SourceLine: ...
    @property
    def ahead(self) -> bool:
        """Whether it is compiled before it is called."""
        ...

    def declared_shapes(self, session: Session) -> Any: ...

    def compile(self, session: Session, shapes: Any, number: int) -> Compiled: ...
    def run(self, session: Session, args: tuple[Any, ...]) -> Callable[[], Any]: ...


class Unfinished(Protocol):
    """Work behind the program's back that must be waited for; `wait` raises what went wrong, and takes it off the session.

    After `part` it asks no other rank, and knows what went wrong in this process.
    """

    def wait(self) -> None: ...
    def detach(self) -> None: ...


class ProgramTensors(Protocol):
    """Tensors of the program that are variables of the session too, with the same numbers."""

    def tie(self, tensors: Mapping[str, Any]) -> None:
        """Have new variables begin with the numbers of these tensors, which are one from then on."""
        ...

    def settle(self) -> None:
        """Have variables take what the program has written to their tensors."""
        ...

    def changed(self, names: Iterable[str]) -> None:
        """These variables have taken new values."""
        ...

    def part(self) -> None:
        """The session ends: tensors keep their numbers."""
        ...

    def __contains__(self, name: str) -> bool: ...
