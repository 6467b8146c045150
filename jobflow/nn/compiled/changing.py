"""Attributes and variables that a compiled function itself changes: counters, results that it stores, lists to which it appends.

The values of such items differ in every call, so plans are not guarded by them.  A tensor is an input of the plan.  A number or a list is a
placeholder during the trace, and every call computes it again.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Container, Iterator, Sequence
from typing import Any

from jobflow.functional.tensor_class import Tensor
from jobflow.nn.compiled.guards import Guards
from jobflow.nn.compiled.snapshot import MISSING, Untraceable, Watched
from jobflow.tensors.run_values import HostList, HostValue


class ChangedValue:
    """An item of a container of the program: an attribute, a dictionary entry, or a global or closure variable."""

    __slots__ = ("key", "watched")

    def __init__(self, watched: Watched, key: Any) -> None:
        self.watched, self.key = watched, key

    @property
    def identity(self) -> tuple[int, Any]:
        """A key by which items are compared."""
        return id(self.watched.target), self.key

    @property
    def path(self) -> str:
        return self.watched.name(self.key).replace("\0", "")

    def read(self) -> Any:
        """Return the present value, or MISSING."""
        if self.watched.kind not in ("cell", "slots"):
            return self.watched.target.get(self.key, MISSING)
        keys, values = self.watched.now()
        return dict(zip(keys or (0,), values, strict=False)).get(self.key, MISSING)

    def write(self, value: Any) -> None:
        """Assign a value."""
        set_item(self.watched, self.key, value)


def is_number(value: Any) -> bool:
    """Return True for an int or a float, which can be a placeholder, but not for a bool."""
    return type(value) in (int, float)


def is_sequence(value: Any) -> bool:
    """Return True for a list to which a replay can append."""
    return type(value) in (list, deque)


def appends(watched: Watched) -> bool:
    """Return True if the list or deque has all elements of the snapshot, and further elements after them."""
    before, now = watched.values, tuple(watched.target)
    return is_sequence(watched.target) and len(now) > len(before) and all(a is b for a, b in zip(before, now, strict=False))


class Appended(Untraceable):
    """The error for a trace that appends to lists, so that it must be repeated with placeholders for these lists."""

    def __init__(self, message: str, items: Sequence[ChangedValue]) -> None:
        super().__init__(message)
        self.items = items


class Placeholders:
    """The placeholders of one trace in the containers of the program."""

    def __init__(self, items: Sequence[ChangedValue]) -> None:
        self.originals: list[tuple[ChangedValue, Any, Any]] = []
        for item in items:
            value = item.read()
            placeholder: Any = None
            if is_number(value):
                placeholder = _placeholder(item, value)
            elif is_sequence(value):
                placeholder = HostList(item.path, item.identity)
            if placeholder is not None:
                item.write(placeholder)
                self.originals.append((item, value, placeholder))

    def remove(self, guards: Guards) -> list[tuple[ChangedValue, Any]]:
        """Restore the original values, also in the snapshot of `guards`; return the items with the values that the function assigned.

        For a list, the value is its placeholder.
        """
        changes = []
        for item, value, placeholder in self.originals:
            now = item.read()
            if now is not placeholder or (isinstance(placeholder, HostList) and placeholder.appended):
                changes.append((item, now))
            item.write(value)
            guards.visited.pop(id(placeholder), None)
            for watched in _containers(guards, item):
                watched.values = tuple([value if each is placeholder else each for each in watched.values])
            for namespace, names in guards.globals.values():
                if namespace is item.watched.target and names.get(item.key) is placeholder:
                    names[item.key] = value
        self.originals.clear()
        return changes


def _placeholder(item: ChangedValue, value: Any) -> HostValue:
    """Return the placeholder of a number, which is `value` during the trace."""

    def now() -> Any:
        number = item.read()
        return value if isinstance(number, HostValue) else number

    return HostValue(item.path, type(value), lambda run: run.before[item.identity], None, now)


def _containers(guards: Guards, item: ChangedValue) -> Iterator[Watched]:
    for watched in guards.watched.values():
        if watched.target is item.watched.target:
            yield watched


def holder_of(guards: Guards, value: Any) -> ChangedValue | None:
    """Return the item that holds a list of the program, or None if it is not known."""
    for watched in guards.watched.values():
        if watched.kind in ("dict", "names", "cell", "slots"):
            keys = watched.keys or (0,)
            for key, each in zip(keys, watched.values, strict=False):
                if each is value:
                    return ChangedValue(watched, key)
    for namespace, names in guards.globals.values():
        for name, each in names.items():
            if each is value:
                return ChangedValue(Watched(namespace, "names", ""), name)
    return None


def changed_items(effects: Sequence[tuple[Watched, Any, int | None, Any]], arguments: Container[int]) -> list[ChangedValue]:
    """Return the items among the effects of a trace whose values differ in every call: computed tensors, arguments and numbers.

    `arguments` are the ids of the tensors among the arguments of the traced call.
    """
    items = []
    for watched, key, position, value in effects:
        if watched.kind in ("dict", "names", "cell", "slots") and (
            position is not None or id(value) in arguments or is_number(value) or isinstance(value, HostValue)
        ):
            now = ChangedValue(watched, key).read()
            if isinstance(now, Tensor) or is_number(now):
                items.append(ChangedValue(watched, key))
    return items


def set_item(watched: Watched, key: Any, value: Any) -> None:
    """Assign `value` to the item or attribute `key` of a container."""
    if watched.kind == "cell":
        watched.target.cell_contents = value
    elif watched.kind == "slots":
        setattr(watched.target, key, value)
    elif watched.kind == "class":
        setattr(watched.owner, key, value)
    else:
        watched.target[key] = value
