"""Forward hooks of modules, with and without keyword arguments."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from typing import Any

from jobflow.core.errors import ArgumentError, user_line
from jobflow.functional.gradients import RemovableHandle


class WithKeywords:
    """A forward hook that also receives the keyword arguments of the call."""

    def __init__(self, hook: Callable[..., Any]) -> None:
        self.hook = hook

    def __call__(self, *arguments: Any) -> Any:
        return self.hook(*arguments)


def changed_inputs(module: Any, hook: Callable[..., Any], inputs: tuple[Any, ...], named: dict[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Call a hook before forward, and return the arguments for forward.

    Raises: ArgumentError if a hook with keyword arguments returns anything but None or (inputs, kwargs).
    """
    if not isinstance(hook, WithKeywords):
        changed = hook(module, inputs)
        return inputs if changed is None else changed if isinstance(changed, tuple) else (changed,), named
    changed = hook(module, inputs, named)
    if changed is None:
        return inputs, named
    if not isinstance(changed, tuple) or len(changed) != 2 or not isinstance(changed[1], dict):
        raise ArgumentError(
            f"{type(module).__name__} at {user_line()}: a forward pre-hook with kwargs must return None or (inputs, kwargs); got {changed!r}"
        )
    inputs, named = changed
    return inputs if isinstance(inputs, tuple) else (inputs,), named


def add_hook(hooks: OrderedDict[int, Any], hook: Callable[..., Any], first: bool = False) -> RemovableHandle:
    """Add a hook after the others, or before them, and return a handle that removes it."""
    handle = RemovableHandle(hooks)
    hooks[handle.id] = hook
    if first:
        hooks.move_to_end(handle.id, last=False)
    return handle
