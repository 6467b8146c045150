"""The one context variable: where in the program we are, and who takes the ops that are called here."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field, replace
from typing import Any, Literal, Protocol

from jobflow.layout import Placement
from jobflow.types import Tensor

View = Literal["consistent", "mirrored"]


class Interpreter(Protocol):
    """Takes every op that is called: a tracer records it, an eager interpreter runs it."""

    def apply(self, op: Any, inputs: Sequence[Tensor], name: str | None) -> tuple[Any, ...]: ...


@dataclass
class Root:
    """What lives as long as the process (or a test): the current session.  The only mutable part of a scope."""

    session: Any = None


@dataclass(frozen=True)
class Scope:
    """Who interprets ops here, on which placement, in which view and under which names."""

    root: Root = field(default_factory=Root)
    interpreter: Interpreter | None = None
    placement: Placement | None = None
    view: View = "consistent"
    namespace: tuple[str, ...] = ()
    stage: int | None = None

    def full_name(self, name: str) -> str:
        """`name` behind the namespaces, joined with "-" as the legacy face spells it."""
        return "-".join((*self.namespace, name))


_CURRENT: ContextVar[Scope | None] = ContextVar("jobflow_scope", default=None)
_ROOT = Scope()


def current() -> Scope:
    """The scope in force."""
    return _CURRENT.get() or _ROOT


@contextmanager
def using(**changes: Any) -> Iterator[Scope]:
    """The current scope with some fields changed, for the length of a `with` block."""
    token = _CURRENT.set(replace(current(), **changes))
    try:
        yield current()
    finally:
        _CURRENT.reset(token)
