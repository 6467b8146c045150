"""The arguments of one call of a compiled function."""

from __future__ import annotations

from collections.abc import Iterator, Sequence, Set
from typing import Any

import jobflow.core.scope as scope
from jobflow.functional.devices import device
from jobflow.functional.tensor_class import Tensor
from jobflow.nn.compiled.changing import ChangedValue
from jobflow.nn.compiled.pure_code import is_library, slots_of
from jobflow.nn.modules.module import Module
from jobflow.optim.optimizer import Optimizer
from jobflow.tensors.tape import follow

#: types of values that are compared by their text
PLAIN_VALUES = (bool, int, float, complex, str, bytes, type(None), device)


def _memory_order(x: Tensor) -> tuple[int, ...] | None:
    """Return the strides of an argument in bytes; None for a contiguous local tensor, and for a global tensor that is not a view."""
    if x.layout is not None:
        return x.strides
    array = x.array
    return None if array.flags.c_contiguous else array.strides


def is_batch(x: Any) -> bool:
    """Return True for an object of a class of the program that holds tensors and plain values only, at least one tensor among them."""
    if is_library(type(x).__module__) or isinstance(x, Tensor | Module | Optimizer) or not hasattr(x, "__dict__") or slots_of(type(x)):
        return False
    leaves = list(_leaves(list(vars(x).values())))
    return any(isinstance(leaf, Tensor) for leaf in leaves) and all(isinstance(leaf, (Tensor, *PLAIN_VALUES)) for leaf in leaves)


def _leaves(x: Any) -> Iterator[Any]:
    if isinstance(x, list | tuple):
        for each in x:
            yield from _leaves(each)
    elif type(x) is dict:
        yield from _leaves(list(x.values()))
    else:
        yield x


class Call:
    """The arguments of one call: the tensors in order, and a key of structure, tensor types and other values, by which plans are cached."""

    __slots__ = ("args", "by_content", "changing", "containers", "key", "kinds", "names", "objects", "options", "tensors")

    def __init__(
        self, args: tuple[Any, ...], options: dict[str, Any], by_content: Set[type] = frozenset(), changing: Sequence[ChangedValue] = ()
    ) -> None:
        self.args, self.options, self.by_content, self.changing = args, options, by_content, changing
        #: classes of arguments that are compared by content
        self.kinds: list[type] = []
        self.tensors: list[Tensor] = []
        self.names: list[str] = []
        #: objects that are compared by identity, with their names
        self.objects: list[tuple[Any, str]] = []
        self.containers: list[tuple[Any, str]] = []
        keys = [*(self._key(x, f"argument {i}") for i, x in enumerate(args)), *((name, self._key(x, name)) for name, x in options.items())]
        self.key = (scope.current().autocast, *keys, *(self._key_of_item(item) for item in changing))

    def _key_of_item(self, item: ChangedValue) -> Any:
        value = item.read()
        return (*item.identity, self._key(value, item.path) if isinstance(value, Tensor) else type(value))

    def _key(self, x: Any, name: str) -> Any:
        if isinstance(x, Tensor):
            self.tensors.append(x)
            self.names.append(name)
            needs = x._needs_gradient if x.base is None else follow(x)
            return x.tensor_type, x.layout, needs, x.node is None, self._first(x), _memory_order(x)
        if isinstance(x, PLAIN_VALUES):
            return type(x), x.key if isinstance(x, device) else repr(x)
        if type(x) in (list, dict):
            self.containers.append((x, name))
        if type(x) is dict:
            return "dict", tuple([(key, self._key(each, f"{name}[{key!r}]")) for key, each in x.items()])
        if type(x) in (list, tuple) or (isinstance(x, tuple) and hasattr(x, "_fields")):
            return type(x), tuple([self._key(each, f"{name}[{i}]") for i, each in enumerate(x)])
        if type(x) in self.by_content:
            self.kinds.append(type(x))
            self.containers.append((vars(x), name))
            return type(x), tuple([(key, self._key(each, f"{name}.{key}")) for key, each in vars(x).items()])
        self.objects.append((x, name))
        return type(x), id(x)

    def replaced(self, others: Sequence[tuple[Any, str]]) -> set[type]:
        """Return the classes of batches that replace other objects, the `objects` of an earlier call."""
        pairs = zip(self.objects, others, strict=False)
        return {
            type(x)
            for (x, name), (before, before_name) in pairs
            if name == before_name and x is not before and type(x) is type(before) and is_batch(x)
        }

    def _first(self, x: Tensor) -> int:
        """Return the position, among the tensors of the call so far, of the first tensor that shares memory with x; it may be x."""
        return next(i for i, other in enumerate(self.tensors) if other is x or (x._storage is not None and other._storage is x._storage))
