"""JSON trees of nested structures: containers, numbers, strings and tensors, whose arrays are stored beside the tree.

Tensors with the same elements in memory have one array, and share memory again when they are loaded.
"""

from __future__ import annotations

import math
from collections import Counter, OrderedDict, namedtuple
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from jobflow.core.errors import ArgumentError, CheckpointError, JobError, PlacementError
from jobflow.core.layout import B, Layout, Placement
from jobflow.core.types import Array, DType, dtype_named, dtype_of
from jobflow.functional import values
from jobflow.functional.devices import device
from jobflow.functional.gradients import detach
from jobflow.functional.parameter_class import Parameter
from jobflow.functional.typed import Tensor
from jobflow.tensors.convert import convert
from jobflow.tensors.gpus import address
from jobflow.tensors.state import EagerState
from jobflow.tensors.tensor import Size

#: the key of metadata in a safetensors file, which is not the name of an array
RESERVED = "__metadata__"
#: the identity of the elements of a tensor in memory
Memory = tuple[Any, ...]


class Encoder:
    """Encoder of a structure as a JSON tree, which also collects the arrays of the structure.

    Without `here`, global tensors raise JobError.  With `here`, all ranks encode, and rank `rank` receives the logical values of global tensors.
    """

    def __init__(self, what: str, arrays: dict[str, Array], here: EagerState | None = None, rank: int = 0) -> None:
        self.what = what
        self.arrays = arrays
        self.here = here
        self.rank = rank
        #: names of arrays by the memory of a tensor, and the tensors of each name
        self.names: dict[Memory, str] = {}
        self.tensors: dict[str, list[Tensor]] = {}
        #: ids of the containers around the present item
        self._open: set[int] = set()

    def encoded(self, item: Any, path: str = "") -> Any:
        """Return the JSON tree of `item`, which is at `path` in the structure; raise ArgumentError for an object that cannot be saved."""
        if item is None or isinstance(item, bool) or type(item) is int:
            return item
        if isinstance(item, str):
            return self._text(item, path)
        if isinstance(item, np.ndarray | np.generic):
            return {"array": self._keep(path, self._elements(np.asarray(item), path)), "scalar": isinstance(item, np.generic)}
        if isinstance(item, float):
            return item if math.isfinite(item) else {"float": repr(item)}
        if isinstance(item, Tensor):
            return self._tensor(item, path)
        if isinstance(item, Mapping | list | tuple | set | frozenset):
            return self._container(item, path)
        match item:
            case DType():
                return {"dtype": item.name}
            case device():
                return {"device": str(item)}
            case bytes():
                return {"bytes": item.hex()}
            case slice():
                return {"slice": [self.encoded(limit, path) for limit in (item.start, item.stop, item.step)]}
        raise ArgumentError(
            f"{self.what}: a {type(item).__name__} at {path or 'the top'} cannot be saved; pass dicts, lists, tuples, sets, strings, numbers, arrays "
            f"and tensors, and the state_dict() of a module instead of the module"
        )

    def _text(self, text: str, path: str) -> str:
        try:
            text.encode()
        except UnicodeEncodeError:
            raise ArgumentError(f"{self.what}: the string {text!r} at {path or 'the top'} is not valid Unicode; pass it as bytes") from None
        return text

    def _elements(self, array: Array, path: str) -> Array:
        """Return the array; raise ArgumentError for an element type that `load` cannot restore."""
        try:
            dtype_of(array.dtype)
        except (KeyError, TypeError):
            raise ArgumentError(
                f"{self.what}: the array at {path or 'the top'} has elements of type {array.dtype}, which jobflow lacks; convert it with astype()"
            ) from None
        return array

    def _container(self, item: Any, path: str) -> Any:
        if id(item) in self._open:
            raise ArgumentError(f"{self.what}: the {type(item).__name__} at {path or 'the top'} contains itself; remove the reference to itself")
        self._open.add(id(item))
        try:
            return self._mapping(item, path) if isinstance(item, Mapping) else self._sequence(item, path)
        finally:
            self._open.discard(id(item))

    def _mapping(self, item: Mapping[Any, Any], path: str) -> Any:
        kind = "ordered" if isinstance(item, OrderedDict) else "counter" if isinstance(item, Counter) else "dict"
        return {kind: [[self.encoded(key, path), self.encoded(value, _below(path, key))] for key, value in item.items()]}

    def _sequence(self, item: Any, path: str) -> Any:
        items = [self.encoded(value, _below(path, i)) for i, value in enumerate(item)]
        fields = getattr(item, "_fields", None)
        if isinstance(item, tuple) and isinstance(fields, tuple):
            return {"named": items, "name": type(item).__name__, "fields": list(fields)}
        kinds = {"size": Size, "list": list, "tuple": tuple, "set": set, "frozenset": frozenset}
        return {next(kind for kind, of in kinds.items() if isinstance(item, of)): items}

    def _tensor(self, x: Tensor, path: str) -> dict[str, Any]:
        memory = _memory(x)
        array = self._array(x, path)  # of every tensor, because all ranks communicate
        name = self.names.get(memory)
        if name is None:
            name = self.names[memory] = self._keep(path, array)
        tensors = self.tensors.setdefault(name, [])
        number = next((i for i, other in enumerate(tensors) if other is x), len(tensors))
        if number == len(tensors):
            tensors.append(x)
        entry: dict[str, Any] = {"tensor": name, "requires_grad": x._needs_gradient and x.is_leaf}
        if isinstance(x, Parameter):
            entry["parameter"] = True
        return entry | {"alias": number} if number else entry

    def _array(self, x: Tensor, path: str) -> Array:
        if x.layout is None:
            return values.value_of(x, "save")
        if self.here is None:
            raise JobError(
                f"{self.what}: the tensor {path} is global ({x.layout}); name the rank that writes it: save(..., global_dst_rank=0), on all ranks"
            )
        return convert(self.here, x, Layout(Placement("cpu", (self.rank,)), (B,)), "save")

    def _keep(self, path: str, array: Array) -> str:
        name, number = path if path not in ("", RESERVED) else "value", 1
        while name in self.arrays:
            number += 1
            name = f"{path}#{number}"
        self.arrays[name] = array
        return name


def _memory(x: Tensor) -> Memory:
    """Return the identity of the elements of x in memory; a tensor without elements on this rank shares them with no other tensor."""
    array = x.array
    if array.size == 0:
        return (id(x),)
    return x.tensor_type, x.layout, address(array), tuple(array.strides)


def _below(path: str, key: Any) -> str:
    return f"{path}.{key}" if path else str(key)


class Decoder:
    """Decoder of the tree of a structure; `tensor` returns the tensor of the array with a name."""

    def __init__(self, what: str, tensor: Callable[[str], Tensor]) -> None:
        self.what = what
        self.tensor = tensor
        self.first: dict[str, Tensor] = {}
        self.tensors: dict[tuple[str, int], Tensor] = {}

    def whole(self, tree: Any) -> Any:
        """Return the structure that a tree encodes; raise CheckpointError for a tree that `Encoder` does not write."""
        try:
            return self.decoded(tree)
        except (KeyError, TypeError, ValueError, AttributeError, PlacementError) as error:
            cause = f"{type(error).__name__}: {str(error)[:200]}"
            raise CheckpointError(f"{self.what}: the checkpoint has an invalid entry ({cause}); use the release that wrote it") from error

    def decoded(self, tree: Any) -> Any:
        if not isinstance(tree, dict):
            return tree
        if "tensor" in tree:
            return self._tensor(tree)
        (kind, value), *_ = tree.items()
        match kind:
            case "float":
                return float(value)
            case "dtype":
                return dtype_named(value)
            case "device":
                return device(value)
            case "bytes":
                return bytes.fromhex(value)
            case "array":
                array = values.numpy(self.tensor(value))
                return array[()] if tree["scalar"] else array
            case "dict" | "ordered" | "counter":
                items = [(self.decoded(key), self.decoded(entry)) for key, entry in value]
                kinds: dict[str, Callable[[Any], Any]] = {"dict": dict, "ordered": OrderedDict, "counter": _counter}
                return kinds[kind](items)
            case "slice":
                start, stop, step = map(self.decoded, value)
                return slice(start, stop, step)
            case "list" | "tuple" | "set" | "frozenset":
                return {"list": list, "tuple": tuple, "set": set, "frozenset": frozenset}[kind](map(self.decoded, value))
            case "size":
                return Size(value)
            case "named":
                created: Any = namedtuple(tree["name"], tree["fields"])  # type: ignore[misc]
                return created._make(map(self.decoded, value))
        raise CheckpointError(f"{self.what}: the checkpoint has an entry of unknown kind {kind!r}; use the release that wrote it")

    def _tensor(self, tree: dict[str, Any]) -> Tensor:
        name, alias = tree["tensor"], tree.get("alias", 0)
        if (name, alias) not in self.tensors:
            x = detach(self.first[name]) if name in self.first else self.first.setdefault(name, self.tensor(name))
            x._needs_gradient = bool(tree["requires_grad"])
            self.tensors[name, alias] = Parameter(x, x._needs_gradient) if tree.get("parameter") else x
        return self.tensors[name, alias]


def _counter(items: list[tuple[Any, Any]]) -> Counter[Any]:
    result: Counter[Any] = Counter()
    result.update(dict(items))
    return result
