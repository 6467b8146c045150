"""Guards on the Python values that a trace may depend on.

A plan is valid as long as every Python value that the function could read is unchanged.  During tracing, `Guards` observes which code runs.
For code outside of jobflow it takes a snapshot of the global names, closure cells and default arguments of the code.  The snapshot includes
all values reachable from there: containers, attributes of objects and classes, modules.  An attribute of an object is compared only if
executed code names it.

The snapshot has three uses.  Before a replay, `changed` compares it with the current values.  After the trace, `effects` lists the changes by
the function itself.  If tracing fails, `restore` restores the values.
"""

from __future__ import annotations

import collections.abc
import functools
import random
import sys
import types
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from operator import is_
from typing import Any

import numpy as np

from jobflow.core.errors import is_ours, user_line
from jobflow.functional.tensor_class import Tensor
from jobflow.nn.compiled.pure_code import (
    CONTAINERS,
    IMPURE,
    PLAIN,
    PURE_MODULES,
    PURE_OWNERS,
    STANDARD,
    global_names,
    is_constant,
    is_jobflow,
    is_library,
    is_own,
    is_record,
    is_standard,
    slots_of,
)
from jobflow.nn.compiled.snapshot import MISSING, Snapshot, Untraceable, Watched, body_of
from jobflow.nn.modules.module import Module
from jobflow.optim.lr_scheduler import LRScheduler
from jobflow.optim.optimizer import Optimizer
from jobflow.tensors.host_arrays import numpy_state

#: maximum number of elements of all containers in one snapshot
LARGEST = 200_000
#: maximum number of elements of one container, and of bytes of one array, that are compared before every call
LARGE, LARGE_BYTES = 4096, 1 << 16

#: names with which code reads attributes by computed names
_DYNAMIC = frozenset({"getattr", "vars", "__dict__", "attrgetter", "dir", "__getattribute__", "eval", "exec", "globals", "locals"})
#: attributes of a schedule that change at every step
_OF_SCHEDULES = frozenset({"last_epoch", "last_step", "get_lr", "get_last_lr", "rates", "rates_after", "state_dict"})
_OF_MODULES = frozenset({"training", "_parameters", "_buffers", "_modules", "_passing", "_before", "_after", "_back_before", "_back_after"})
#: attributes of a module that the import system assigns
_OF_IMPORTS = ("__builtins__", "__loader__", "__spec__")


class Guards:
    """A snapshot of the Python values that a traced function may read."""

    def __init__(self) -> None:
        self.watched: dict[int, Watched] = {}
        #: objects that have been visited, kept alive so that ids stay unique
        self.visited: dict[int, Any] = {}
        #: names that executed code reads, and True if it also reads computed names
        self.names: set[str] = set()
        self.dynamic = False
        #: paths of tensors, by id
        self.paths: dict[int, str] = {}
        #: reached functions of the program with their paths, by code
        self.functions: dict[types.CodeType, list[tuple[Any, str]]] = {}
        #: functions that ran, with their code and defaults
        self.bodies: list[tuple[Any, tuple[Any, ...], str]] = []
        self.executed: dict[types.CodeType, None] = {}
        #: globals that executed code reads: by id of the namespace, the namespace and the old values
        self.globals: dict[int, tuple[dict[str, Any], dict[str, Any]]] = {}
        self.arrays: dict[int, tuple[Any, bytes, str]] = {}
        #: values that cannot be compared, with their containers and keys
        self.opaque: list[tuple[Watched | None, Any, str]] = []
        #: iterators and states of user-defined optimizers, whose elements a failed trace cannot return
        self.iterators: list[tuple[Watched | None, Any, str]] = []
        #: reasons why the function cannot be replayed, with source lines
        self.reasons: list[str] = []
        self.schedules: list[LRScheduler] = []
        #: containers among the arguments, which are different objects in every call
        self.arguments: list[Watched] = []
        self._count = 0
        #: files of jobflow
        self._ours: set[str] = set()
        self._nested: set[types.CodeType] = set()
        self._paused = False
        self._importing: Any = None
        self._callback: Callable[[Any, str, Any], None] | None = None
        self._random = random.getstate(), np.random.get_state()
        #: global variables that the function itself changes, as pairs of the id of the namespace and the name
        self.unguarded: set[tuple[int, Any]] = set()
        #: the state of NumPy's generator after the samples that replays repeat
        self._sampled = numpy_state()

    # ---------------------------------------------------------------- observing

    @contextmanager
    def observing(self) -> Iterator[None]:
        """Observe, with a profiling function, which code runs inside the `with` block."""
        before: Any = sys.getprofile()
        if before is not None and not callable(before):  # cProfile: an object that enables itself
            before.disable()
        self._callback = self._profile
        sys.setprofile(self._callback)
        try:
            yield
        finally:
            self._callback = None
            sys.setprofile(before if callable(before) else None)
            if before is not None and not callable(before):
                before.enable()

    def suspend(self) -> bool:
        """Stop observing this thread, before code of jobflow that calls no user code; return True if this thread was observed."""
        observed = self._callback is not None and sys.getprofile() is self._callback
        if observed:
            sys.setprofile(None)
        return observed

    def resume(self) -> None:
        """Resume observing after `suspend`."""
        sys.setprofile(self._callback)

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Do not observe code that runs inside the `with` block."""
        before, self._paused = self._paused, True
        try:
            yield
        finally:
            self._paused = before

    def _profile(self, frame: Any, event: str, arg: Any) -> None:
        code = frame.f_code
        if code.co_filename in self._ours or self._paused:
            return
        if self._importing is not None:
            if event == "return" and frame is self._importing:
                self._importing = None
            return
        if event == "call":
            if code not in self.executed:
                self._entered(code, frame)
                self.refuse_unrestorable()
        elif event == "c_call":
            self._called(arg, frame)

    def _entered(self, code: types.CodeType, frame: Any) -> None:
        module = str(frame.f_globals.get("__name__", ""))
        if module == "importlib._bootstrap":  # modules are imported once, by any caller
            self._importing = frame
            return
        if _is_package(frame) or is_jobflow(module):
            if not code.co_filename.startswith("<"):
                self._ours.add(code.co_filename)
            return
        root = module.partition(".")[0]
        if is_library(module):
            if not self._serves_program(frame.f_back):
                return
            self.executed[code] = None
            if root not in STANDARD and module not in STANDARD:
                self._refuse(f"the function calls {module}.{code.co_qualname}, whose result or effect is not repeated")
            self._named(code)
            return
        self.executed[code] = None
        self._named(code)
        self._nested.update(each for each in code.co_consts if isinstance(each, types.CodeType))
        self._read_globals(code, frame.f_globals, module)
        known = self.functions.get(code, [])
        for function, path in known:
            self._descend_function(function, path)
        if code.co_freevars and not known and code not in self._nested:
            self._refuse(f"the function calls {code.co_qualname}, a closure that was created elsewhere, with variables that cannot be compared")

    def _serves_program(self, frame: Any) -> bool:
        """Return True if `frame` runs user code, or code of a library that user code calls; False if code of jobflow calls the library."""
        while frame is not None and is_library(str(frame.f_globals.get("__name__", ""))):
            if frame.f_code.co_filename in self._ours or _is_package(frame) or is_jobflow(str(frame.f_globals.get("__name__", ""))):
                return False
            frame = frame.f_back
        return frame is not None

    def _named(self, code: types.CodeType) -> None:
        self.names.update(code.co_names)
        self.names.update(each for each in code.co_consts if isinstance(each, str) and each.isidentifier())
        if _DYNAMIC.intersection(code.co_names):
            self.dynamic = self.dynamic or not is_standard(code)

    def _read_globals(self, code: types.CodeType, namespace: dict[str, Any], module: str) -> None:
        _, names = self.globals.setdefault(id(namespace), (namespace, {}))
        for name in global_names(code):
            if name not in names:
                names[name] = namespace.get(name, MISSING)
                self.descend(names[name], name, None, name)

    def _called(self, function: Any, frame: Any) -> None:
        """Raise Untraceable if user code calls a C function that has effects, or whose result does not depend on its arguments alone."""
        if frame.f_code not in self.executed or not self._serves_program(frame):
            return
        owner = getattr(function, "__self__", None)
        name = getattr(function, "__name__", str(function))
        if owner is None or isinstance(owner, types.ModuleType):
            module = str(getattr(function, "__module__", None) or getattr(owner, "__name__", ""))
            if name in IMPURE.get(module, ()) or (module not in PURE_MODULES and not module.startswith("jobflow")):
                self._refuse(f"the function calls {module}.{name}(), whose result or effect is not repeated")
        elif isinstance(owner, type) and owner.__module__ == "datetime":
            self._refuse(f"the function calls {owner.__name__}.{name}(), whose result changes")
        elif not isinstance(owner, (*PURE_OWNERS, types.GeneratorType)) and not is_own(type(owner)):
            self._refuse(f"the function calls {type(owner).__name__}.{name}(), whose result or effect is not repeated")

    def refuse_unrestorable(self) -> None:
        """Raise Untraceable if the function is about to read an iterator, or a value such as a large array that `restore` cannot restore."""
        for watched, key, what in self.iterators:
            if self.reads(watched, key):
                self._refuse(f"the function reads {what.replace(chr(0), '')}, whose elements a replay does not repeat")
        if reason := self._incomparable():
            self._refuse(reason)

    def _incomparable(self) -> str:
        """Return a message if the function reads a value that cannot be compared between calls, else ""."""
        for watched, key, what in self.opaque:
            if not (watched is None and key is None) and self.reads(watched, key):
                return f"the function reads {what.replace(chr(0), '')}, which cannot be compared between calls"
        return ""

    def _refuse(self, reason: str) -> None:
        """Store `reason` with the user's line, and raise Untraceable; call this before an effect that cannot be undone."""
        self.reasons.append(f"{reason}, at {user_line()}")
        raise Untraceable(self.reasons[-1])

    def sampled(self, before: Any) -> None:
        """Accept the samples since `before`, the state of NumPy's random generator, because every run samples again."""
        if before == self._sampled:
            self._sampled = numpy_state()

    # ---------------------------------------------------------------- reaching values

    def add(self, value: Any, path: str) -> None:
        """Add all values that are reachable from `value` to the snapshot; `path` names `value` in messages."""
        with self.paused():
            self.descend(value, path)

    def add_argument(self, value: Any, path: str) -> None:
        """Add the content of the list or dict `value`, an argument of the call, so that changes by the function are detected."""
        self.arguments.append(Watched(value, _kind_of(value), path))

    def path_of(self, x: Tensor) -> str | None:
        """Return the path of the tensor x if the snapshot contains it, else None."""
        path = self.paths.get(id(x))
        return None if path is None else path.replace("\0", "")

    def tensors_read(self, names: frozenset[str]) -> list[Tensor]:
        """Return all tensors of the snapshot if executed code reads one of the attributes `names`, else an empty list."""
        return [self.visited[i] for i in self.paths] if self.dynamic or not names.isdisjoint(self.names) else []

    def descend(self, value: Any, path: str, holder: Watched | None = None, key: Any = None) -> None:
        """Add a value and all values that are reachable from it to the snapshot.

        `path` names the value in messages.  `holder` and `key` are the container and the key under which the value was found.
        """
        waiting: list[tuple[Any, str, Watched | None, Any]] = [(value, path, holder, key)]
        while waiting:
            value, path, holder, key = waiting.pop()
            if value is MISSING or isinstance(value, PLAIN) or id(value) in self.visited:
                continue
            self.visited[id(value)] = value
            waiting.extend(reversed(list(self._visit(value, path, holder, key))))

    def _visit(self, value: Any, path: str, holder: Watched | None, key: Any) -> Iterator[tuple[Any, str, Watched | None, Any]]:
        """Add one value to the snapshot, and yield the values that are directly reachable from it, with path, container and key."""
        kind = type(value)
        if isinstance(value, Tensor):
            self.paths.setdefault(id(value), path)
            yield from self._attributes(value, path)
        elif isinstance(value, np.ndarray):
            self._array(value, path, holder, key)
        elif isinstance(value, tuple | frozenset):
            for i, each in enumerate(value):
                yield each, f"{path}[{i}]", holder, key
            if not is_library(kind.__module__):
                yield kind, kind.__name__, holder, key
                yield from self._attributes(value, path)
        elif isinstance(value, types.FunctionType | types.MethodType | functools.partial | staticmethod | classmethod | property):
            yield from self._callable(value, path, holder, key)
        elif isinstance(value, types.ModuleType):
            if not is_library(value.__name__):
                yield from self._items(Watched(vars(value), "names", path, value))
        elif isinstance(value, type):
            if not is_library(value.__module__):
                yield from self._items(Watched(vars(value), "class", path, value))
                for base in value.__bases__:
                    yield base, f"{path}.{base.__name__}", holder, key
        elif isinstance(value, LRScheduler):
            self.schedules.append(value)
            yield value.optimizer, f"{path}.optimizer", holder, key
            yield kind, kind.__name__, holder, key
        elif isinstance(value, CONTAINERS):
            if len(value) > LARGE:
                self.opaque.append((holder, key, f"{path}, {kind.__name__} of {len(value)} elements"))
            else:
                yield from self._items(Watched(value, _kind_of(value), path))
            if not is_library(kind.__module__):
                yield kind, kind.__name__, holder, key
                yield from self._attributes(value, path)
        else:
            yield from self._object(value, path, holder, key)

    def _attributes(self, value: Any, path: str) -> Iterator[tuple[Any, str, Watched | None, Any]]:
        """Yield the entries of the `__dict__` of a tensor, function or container, with path, container and key."""
        attributes = getattr(value, "__dict__", None)
        if attributes is not None:
            yield from self._items(Watched(attributes, "dict", path, value))

    def _object(self, value: Any, path: str, holder: Watched | None, key: Any) -> Iterator[tuple[Any, str, Watched | None, Any]]:
        kind = type(value)
        own = getattr(value, "__dict__", None)
        if kind is object:  # a sentinel, which is compared by identity only
            return
        if kind.__name__ == "_Uncompiled" and is_own(kind):
            yield value.module, path, holder, key
            return
        if is_library(kind.__module__) and not isinstance(value, Module | Optimizer):
            iterates = issubclass(kind, collections.abc.Iterator) and not (holder is None and key is None)
            if iterates or not (is_constant(kind) or is_record(kind)):
                (self.iterators if iterates else self.opaque).append((holder, key, f"{path}, a {kind.__module__}.{kind.__name__}"))
            if iterates or not is_record(kind):
                return
        yield kind, kind.__name__, holder, key
        if isinstance(value, Optimizer):
            yield own.get("param_groups"), f"{path}.param_groups", holder, key  # type: ignore[union-attr]
            if is_library(kind.__module__):
                return
        slots = tuple(name for base in kind.__mro__ for name in slots_of(base) if name not in ("__dict__", "__weakref__"))
        if slots:
            yield from self._items(Watched(value, "slots", path, slots))
        if isinstance(own, dict):
            yield from self._items(Watched(own, "dict", path, value))
        elif not slots:
            self.opaque.append((holder, key, f"{path}, a {kind.__name__}"))

    def _items(self, watched: Watched) -> Iterator[tuple[Any, str, Watched | None, Any]]:
        self.watched[id(watched.target) if watched.kind != "slots" else id(watched)] = watched
        self.visited[id(watched.target)] = watched.target
        self._count += len(watched.values) + len(watched.keys)
        if self._count > LARGEST:
            self._refuse(f"more than {LARGEST} Python values are reachable from the function, last {watched.path}")
            return
        skip: tuple[str, ...] = ("state",) if isinstance(watched.owner, Optimizer) else ()
        if isinstance(watched.owner, types.ModuleType):
            skip = _OF_IMPORTS
        elif skip and not is_own(type(watched.owner)):  # code of the user must not store traced tensors in the state
            self.iterators.append((watched, "state", f"{watched.path}.state, the state of the optimizer {type(watched.owner).__name__}"))
        keys = watched.keys or range(len(watched.values))
        for key, value in zip(keys, watched.values, strict=False):
            if not isinstance(value, PLAIN) and key not in skip:
                yield value, self._path(watched, key), watched, key

    @staticmethod
    def _path(watched: Watched, key: Any) -> str:
        own = watched.path
        if isinstance(watched.owner, Module):
            return f"{own}.{key}" if key not in ("_parameters", "_buffers", "_modules") else f"{own}\0"
        return f"{own[:-1]}.{key}" if own.endswith("\0") else watched.name(key)

    def _callable(self, value: Any, path: str, holder: Watched | None, key: Any) -> Iterator[tuple[Any, str, Watched | None, Any]]:
        if isinstance(value, types.MethodType):
            yield value.__self__, path.rpartition(".")[0] or f"{path}.__self__", holder, key
            yield value.__func__, path, holder, key
        elif isinstance(value, functools.partial):
            yield from ((each, path, holder, key) for each in (value.func, value.args, value.keywords))
        elif isinstance(value, property):
            yield from ((each, path, holder, key) for each in (value.fget, value.fset) if each is not None)
        elif isinstance(value, staticmethod | classmethod):
            yield value.__func__, path, holder, key
        elif not is_library(value.__module__ or ""):
            self.functions.setdefault(value.__code__, []).append((value, path))
            if value.__code__ in self.executed:
                self._descend_function(value, path)
            yield from self._attributes(value, path)
            wrapped = value.__dict__.get("__wrapped__")
            if wrapped is not None:
                yield wrapped, path, holder, key

    def _descend_function(self, function: Any, path: str) -> None:
        for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=False):
            watched = Watched(cell, "cell", name)
            self.watched[id(cell)] = watched
            self.visited[id(cell)] = cell
            for value in watched.values:
                self.descend(value, name, watched, 0)
        self.bodies.append((function, body_of(function), path))
        for defaults in (function.__defaults__, function.__kwdefaults__):
            self.descend(defaults, f"the defaults of {path}", None, path)

    def _array(self, value: Any, path: str, holder: Watched | None, key: Any) -> None:
        if value.nbytes > LARGE_BYTES or value.dtype.hasobject:
            self.opaque.append((holder, key, f"{path}, a NumPy array of {value.nbytes} bytes; make it a tensor"))
        else:
            self.arrays[id(value)] = value, value.tobytes(), path

    # ---------------------------------------------------------------- after the trace

    def reads(self, watched: Watched | None, key: Any) -> bool:
        """Return True if executed code may read the item `key` of the container `watched`; code that computes names may read all items."""
        if watched is None or self.dynamic or not isinstance(key, str):
            return True
        if watched.kind == "dict" and isinstance(watched.owner, Optimizer | Module) and is_library(type(watched.owner).__module__):
            return True
        if watched.kind in ("names", "class", "slots") or (watched.kind == "dict" and watched.owner is not None):
            return key in self.names or (isinstance(watched.owner, Module) and key in _OF_MODULES)
        return True

    def refused(self) -> str:
        """Return the reason why the function cannot be replayed, or "" if it can."""
        if self.reasons:
            return self.reasons[0]
        if reason := self._incomparable():
            return reason
        for array, before, path in self.arrays.values():
            if array.tobytes() != before:
                return f"the function writes to the NumPy array {path.replace(chr(0), '')}, which a replay does not repeat"
        if random.getstate() != self._random[0] or numpy_state() != self._sampled:
            return "the function samples random numbers from Python or NumPy; use the random functions of jobflow"
        if self.schedules and _OF_SCHEDULES & self.names:
            return "the function reads the position or rates of a schedule, which change at every step"
        return ""

    def restore(self) -> None:
        """Restore all values to their state before the function ran."""
        random.setstate(self._random[0])
        np.random.set_state(self._random[1])
        for array, before, _ in self.arrays.values():
            if array.tobytes() != before:
                array[...] = np.frombuffer(before, array.dtype).reshape(array.shape)
        for watched in (*self.watched.values(), *self.arguments):
            keys, values = watched.now()
            if len(values) != len(watched.values) or keys != watched.keys or not all(map(is_, values, watched.values)):
                watched.restore()
        for namespace, name, before, _ in self._changed_globals():
            if before is MISSING:
                del namespace[name]
            else:
                namespace[name] = before

    def effects(self) -> list[tuple[Watched, Any, Any]]:
        """Return the changes of containers by the function: container, key and new value.

        The new value is `MISSING` for a removed item.  For a list or set, key and new value are None.
        """
        changes: list[tuple[Watched, Any, Any]] = []
        for watched in (*self.watched.values(), *self.arguments):
            keys, values = watched.now()
            if keys == watched.keys and len(values) == len(watched.values) and all(map(is_, values, watched.values)):
                continue
            if watched.kind in ("list", "set"):
                changes.append((watched, None, None))
                continue
            before = dict(zip(watched.keys or range(len(watched.values)), watched.values, strict=False))
            after = dict(zip(keys or range(len(values)), values, strict=False))
            changes += [(watched, key, value) for key, value in after.items() if before.get(key, MISSING) is not value]
            changes += [(watched, key, MISSING) for key in before if key not in after]
        changes += [(Watched(namespace, "names", ""), name, now) for namespace, name, _, now in self._changed_globals()]
        return changes

    def _changed_globals(self) -> Iterator[tuple[dict[str, Any], str, Any, Any]]:
        """Yield namespace, name, old value and new value of each global name that the function assigned."""
        for namespace, names in self.globals.values():
            for name, before in names.items():
                now = namespace.get(name, MISSING)
                if now is not before:
                    yield namespace, name, before, now

    def finish(self, ignored: Callable[[Watched, Any], bool]) -> Snapshot:
        """Return the snapshot for the comparison before every replay; items for which ignored(container, key) is True are not compared."""
        return Snapshot(self, ignored)


def _is_package(frame: Any) -> bool:
    """Return True if a frame runs code of jobflow; frozen modules of the standard library, such as os, do not count."""
    return is_ours(frame) and not frame.f_code.co_filename.startswith("<frozen ")


def _kind_of(value: Any) -> str:
    return "dict" if isinstance(value, dict) else "set" if isinstance(value, set) else "list"
