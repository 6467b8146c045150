"""The interface of the observer of a traced function, which `guards` implements."""

from __future__ import annotations

from typing import Any, Protocol

from jobflow.functional.tensor_class import Tensor


class Observer(Protocol):
    """The part of the interface of `Guards` that the recorder calls."""

    def add(self, value: Any, path: str) -> None:
        """Add all values that are reachable from `value` to the snapshot; `path` names `value` in messages."""
        ...

    def path_of(self, x: Tensor) -> str | None:
        """Return the path of the tensor x if the snapshot contains it, else None."""
        ...

    def sampled(self, before: Any) -> None:
        """Accept the samples since `before`, the state of NumPy's random generator, because every run samples again."""
        ...

    def suspend(self) -> bool:
        """Stop observing this thread; return True if it was observed."""
        ...

    def resume(self) -> None:
        """Resume observing after `suspend`."""
        ...
