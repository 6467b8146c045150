"""Snapshots of Python containers, to compare before a replay and to restore after a failed trace."""

from __future__ import annotations

import types
from collections.abc import Callable, Iterator
from itertools import chain
from operator import attrgetter, is_
from typing import TYPE_CHECKING, Any

import numpy as np

from jobflow.core.errors import JobError
from jobflow.functional.devices import device
from jobflow.functional.tensor_class import Tensor

if TYPE_CHECKING:
    from jobflow.nn.compiled.guards import Guards

#: placeholder for a missing item
MISSING = object()
#: code and defaults of a function
body_of = attrgetter("__code__", "__defaults__", "__kwdefaults__")


class Untraceable(JobError):
    """The error for a function with an effect that a plan cannot replay."""


class Watched:
    """A container and its content before the function ran; `kind` selects how the content is read."""

    __slots__ = ("keys", "kind", "owner", "path", "target", "values")

    def __init__(self, target: Any, kind: str, path: str, owner: Any = None) -> None:
        self.target, self.kind, self.path, self.owner = target, kind, path, owner
        self.take()

    def take(self) -> None:
        """Store the current keys and values of the container as the snapshot."""
        self.keys, self.values = self.now()

    def now(self) -> tuple[tuple[Any, ...], tuple[Any, ...]]:
        """Return the current keys and values of the container; a list has no keys, and a set has only keys."""
        target = self.target
        if self.kind == "cell":
            try:
                return (), (target.cell_contents,)
            except ValueError:
                return (), ()
        if self.kind == "slots":
            names = tuple(name for name in self.owner if hasattr(target, name))
            return names, tuple(getattr(target, name) for name in names)
        if self.kind == "list":
            return (), tuple(target)
        if self.kind == "set":
            return tuple(target), ()
        return tuple(target), tuple(target.values())

    def items(self) -> Iterator[tuple[Any, Any]]:
        """Iterate over the keys and values of the snapshot; a list has its indices, and a cell 0, as keys."""
        yield from zip(self.keys or range(len(self.values)), self.values, strict=False)

    def restore(self) -> None:
        """Restore the container to its keys and values in the snapshot."""
        target = self.target
        if self.kind == "cell":
            if self.values:
                target.cell_contents = self.values[0]
        elif self.kind == "slots":
            for name, value in zip(self.keys, self.values, strict=True):
                setattr(target, name, value)
        elif self.kind == "list":
            target.clear()
            target.extend(self.values)
        elif self.kind == "set":
            target.clear()
            target.update(self.keys)
        elif self.kind == "dict":
            target.clear()
            target.update(zip(self.keys, self.values, strict=True))
        else:  # a namespace of a module or class, where only changed names are restored
            held = dict(zip(self.keys, self.values, strict=True))
            for name in [name for name in target if name not in held]:
                _set_name(self, name, None, delete=True)
            for name, value in held.items():
                if target.get(name, held) is not value:
                    _set_name(self, name, value)

    def name(self, key: Any) -> str:
        """Return a Python expression for the item `key`, such as `config['size']`, for messages."""
        if self.kind == "cell":
            return self.path
        if self.kind in ("list", "set") or (self.kind == "dict" and self.owner is None):
            return f"{self.path}[{key!r}]"
        return f"{self.path}.{key}" if self.path else str(key)


def _set_name(watched: Watched, name: Any, value: Any, delete: bool = False) -> None:
    if watched.kind == "class":
        delattr(watched.owner, name) if delete else setattr(watched.owner, name, value)
    elif delete:
        del watched.target[name]
    else:
        watched.target[name] = value


class Snapshot:
    """The values that a plan depends on, arranged for a fast comparison."""

    def __init__(self, guards: Guards, ignored: Callable[[Watched, Any], bool]) -> None:
        self.guards, self.ignored = guards, ignored
        watched = [each for each in guards.watched.values() if self._matters(each)]
        self.maps = [each for each in watched if each.kind in ("dict", "names", "class")]
        self.lists = [each for each in watched if each.kind == "list"]
        self.others = [each for each in watched if each.kind in ("cell", "slots", "set")]
        #: attributes that the code did not read; an attribute that is added later may hide an attribute of the class
        chosen = set(map(id, watched))
        self.unread = [each for each in guards.watched.values() if id(each) not in chosen]
        self.owners = [each.owner for each in guards.watched.values() if each.kind == "dict" and each.owner is not None]
        self.classes = [*map(type, self.owners)]
        self.globals = []
        for namespace, names in guards.globals.values():
            guarded = {name: value for name, value in names.items() if (id(namespace), name) not in guards.unguarded}
            self.globals.append((namespace, tuple(guarded), list(guarded.values())))
        self.bodies = guards.bodies
        self.arrays = list(guards.arrays.values())
        self._index()

    def _matters(self, watched: Watched) -> bool:
        keys = watched.keys or range(len(watched.values))
        always = watched.kind in ("list", "set", "cell", "slots") or watched.owner is None or not keys
        return always or any(self.guards.reads(watched, key) for key in keys)

    def _index(self) -> None:
        whole = [each for each in self.maps if all(self._compares(each, key) for key in each.keys)]
        chosen = set(map(id, whole))
        self.partial = [each for each in self.maps if id(each) not in chosen]
        self.targets = [each.target for each in whole]
        self.rows = [each.target for each in self.lists]
        self.sizes = [len(each.keys) for each in whole] + [len(each.values) for each in self.lists]
        self.expected = [*chain.from_iterable(each.values for each in whole), *chain.from_iterable(each.values for each in self.lists)]
        self.whole = whole

    def _compares(self, watched: Watched, key: Any) -> bool:
        return self.guards.reads(watched, key) and not self.ignored(watched, key)

    def changed(self) -> str:
        """Return the path, the old and the new value of the first difference from the trace, as text; "" if there is none."""
        for namespace, names, values in self.globals:
            for i, name in enumerate(names):
                now = namespace.get(name, MISSING)
                if now is not values[i]:
                    if not _same(now, values[i]):
                        return _difference(name, values[i], now)
                    values[i] = now
        for function, body, path in self.bodies:
            if body_of(function) != body:
                return f"the code or the defaults of {path} changed"
        for each, before, path in self.arrays:
            if each.tobytes() != before:
                return f"the elements of the array {path} changed"
        for watched in self.unread:
            if not self.guards.names.isdisjoint(watched.target) and (problem := self._compared(watched)):
                return problem
        if [*map(type, self.owners)] != self.classes:
            return "the class of an object changed"
        for watched in chain(self.others, self.partial):
            if problem := self._compared(watched):
                return problem
        return "" if self._unchanged() else self._searched()

    def _unchanged(self) -> bool:
        if [*map(len, self.targets), *map(len, self.rows)] != self.sizes:
            return False
        now = chain(chain.from_iterable([each.values() for each in self.targets]), chain.from_iterable(self.rows))
        return all(map(is_, now, self.expected))

    def _searched(self) -> str:
        for watched in chain(self.whole, self.lists):
            if problem := self._compared(watched):
                return problem
        self._index()
        return ""

    def _compared(self, watched: Watched) -> str:
        keys, values = watched.now()
        if keys == watched.keys and len(values) == len(watched.values) and all(map(is_, values, watched.values)):
            return ""
        before = dict(zip(watched.keys or range(len(watched.values)), watched.values or watched.keys, strict=False))
        after = dict(zip(keys or range(len(values)), values or keys, strict=False))
        for key in {**before, **after}:
            old, new = before.get(key, MISSING), after.get(key, MISSING)
            if old is not new and self._compares(watched, key) and not _same(old, new):
                return _difference(watched.name(key).replace("\0", ""), old, new)
        if watched.kind == "dict" and watched.owner is None and [*before] != [*after]:
            return f"the order of the keys of {watched.path.replace(chr(0), '')} changed"
        watched.keys, watched.values = keys, values
        return ""


def _same(a: Any, b: Any) -> bool:
    """Return True if a and b are the same object, or equal values of one immutable type."""
    if a is b:
        return True
    if type(a) is not type(b):
        return False
    if isinstance(a, tuple):
        return len(a) == len(b) and all(map(_same, a, b))
    if isinstance(a, types.MethodType):
        return a.__self__ is b.__self__ and a.__func__ is b.__func__
    if isinstance(a, device):
        return a.key == b.key
    return isinstance(a, bool | int | float | complex | str | bytes | np.generic | range | slice) and repr(a) == repr(b)


def _difference(path: str, old: Any, new: Any) -> str:
    before, now = _shown(old), _shown(new)
    if before == now:
        now = "another tensor" if isinstance(new, Tensor) else f"another {type(new).__name__}"
    return f"{path or 'a value'} was {before} and is {now}"


def _shown(value: Any) -> str:
    if value is MISSING:
        return "missing"
    if isinstance(value, Tensor):
        return f"a tensor {value.tensor_type}"
    text = repr(value) if isinstance(value, bool | int | float | str | type(None) | tuple) else f"a {type(value).__name__}"
    return text if len(text) <= 60 else f"{text[:57]}..."
