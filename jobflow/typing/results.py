"""Return annotations of jobs: a check of the body's result, and the nesting of tuples, lists and dicts in which a call returns it."""

from __future__ import annotations

import typing
from collections.abc import Callable, Sequence
from typing import Any, Literal

from jobflow.core.dataclass import dataclass
from jobflow.core.errors import JobError
from jobflow.core.types import Array, Tensor, TensorType
from jobflow.typing.annotations import Bundle, Callback, ListListNumpy, ListNumpy, Numpy

#: The form of a leaf of a result: one whole array, a list with one array or one list per device, or (without annotation) an object that
#: converts to all of these forms.
Kind = Literal["numpy", "list", "lists", "local"]
#: nothing: None.  value: the value.  callback: a function that takes a handler.  future: an object with get() and async_get().
Mode = Literal["nothing", "value", "callback", "future"]


@dataclass(frozen=True)
class HostResult:
    """A result that is computed on the host, with arrays of different shapes; `tensor_type` has the maximum size of each axis.

    The job's feed returns one array per row under `name`, and `take` converts the list of these arrays to the result of a call.
    This result is an array, a list with one array per device, or, if `nested`, a list with one list per device.
    """

    name: str
    tensor_type: TensorType
    take: Callable[[list[Array]], Any]
    nested: bool = False

    @property
    def shape(self) -> tuple[int, ...]:
        """The maximum shape: the maximum size of each axis."""
        return self.tensor_type.shape

    @property
    def is_dynamic(self) -> bool:
        """True, because the shape differs between runs."""
        return True


@dataclass(frozen=True)
class HostArgument:
    """An argument of a job's body that is a list of arrays per device, processed on the host."""

    name: str
    #: the type of the longest list with the largest arrays
    declared: TensorType
    devices: int


@dataclass(frozen=True)
class _Leaf:
    kind: Kind


@dataclass(frozen=True)
class _Tuple:
    arms: tuple[Any, ...]


@dataclass(frozen=True)
class _List:
    arm: Any


@dataclass(frozen=True)
class _Dict:
    key: type
    arm: Any


@dataclass(frozen=True)
class _Any:
    """An annotation that accepts any nesting of tuples, lists and dicts."""

    kind: Kind


@dataclass(frozen=True)
class Results:
    """The result of a job's body: its tensors (`leaves`), and the requested form of each tensor.

    `structure` has the nesting of the result, with the index i in place of tensor leaves[i].
    """

    mode: Mode
    leaves: tuple[Tensor, ...]
    kinds: tuple[Kind, ...]
    structure: Any
    #: per leaf, the axis whose length depends on the data, or None if all lengths are fixed
    dynamic_axes: tuple[int | None, ...] = ()

    def build(self, arrays: Sequence[Any]) -> Any:
        """Return the result of a call: `structure` with arrays[i] in place of tensor leaves[i], or None in mode "nothing"."""
        return _rebuilt(self.structure, arrays) if self.mode != "nothing" else None


@dataclass(frozen=True)
class Returned:
    """A parsed return annotation of a job; `tree` is None for ``-> None``."""

    mode: Mode
    tree: Any

    def results(self, returned: Any, what: str) -> Results:
        """Return the tensors in `returned`, the result of the job's body; raise JobError if it does not match the annotation.

        `what` is the description of the job in messages.
        """
        if self.mode == "future" and returned is None:
            return Results("nothing", (), (), None)
        if self.tree is None:
            if returned is not None:
                raise JobError(f"{what} is annotated None but its body returned {_kind(returned)}; return nothing, or annotate the result")
            return Results(self.mode, (), (), None)
        leaves: list[Tensor] = []
        kinds: list[Kind] = []
        structure = _Reader(what, leaves, kinds).read(self.tree, returned, "the result")
        return Results(self.mode, tuple(leaves), tuple(kinds), structure)


def read_return(annotation: Any, missing: bool, what: str) -> Returned:
    """Parse the return annotation of a job; raise JobError if jobs do not accept it.

    `missing` is True for a function without a return annotation; calls of this job return a future.
    """
    if missing:
        return Returned("future", _Any("local"))
    if annotation is None or annotation is type(None):
        return Returned("nothing", None)
    if typing.get_origin(annotation) is Callback:
        (inner,) = typing.get_args(annotation)
        return Returned("callback", None if inner is type(None) else _tree(inner, what))
    return Returned("value", _tree(annotation, what))


def _tree(annotation: Any, what: str) -> Any:
    if annotation in _LEAVES:
        return _leaf(annotation)
    origin, arms = typing.get_origin(annotation), typing.get_args(annotation)
    if origin is Bundle and arms[0] in _LEAVES:
        return _Any(_leaf(arms[0]).kind)
    if origin is tuple and arms and Ellipsis not in arms:
        return _Tuple(tuple(_tree(arm, what) for arm in arms))
    if origin is list and arms:
        return _List(_tree(arms[0], what))
    if origin is dict and arms and isinstance(arms[0], type):
        return _Dict(arms[0], _tree(arms[1], what))
    legal = "None, tp.Numpy, tp.ListNumpy, Tuple[...], List[...], Dict[K, ...] of them, tp.Bundle[tp.Numpy], or tp.Callback[...] around any of these"
    raise JobError(f"{what}: the return annotation {_named(annotation)} is not one of {legal}")


_LEAVES: dict[Any, Kind] = {Numpy: "numpy", ListNumpy: "list", ListListNumpy: "lists"}


def _leaf(annotation: Any) -> _Leaf:
    return _Leaf(_LEAVES[annotation])


def _named(annotation: Any) -> str:
    return annotation.__name__ if isinstance(annotation, type) else str(annotation)


@dataclass(frozen=True)
class _Reader:
    """A recursive walk over the result of a job's body and its annotation, which collects the tensors in `leaves`."""

    what: str
    leaves: list[Tensor]
    kinds: list[Kind]

    def read(self, tree: Any, value: Any, path: str) -> Any:
        if isinstance(tree, _Leaf):
            return self._leaf(tree.kind, value, path)
        if isinstance(tree, _Any):
            return self._any(tree, value, path)
        if isinstance(tree, _Dict):
            self._container(dict, value, path)
            for key in value:
                if type(key) is not tree.key:
                    raise JobError(f"{self.what}: {path} has the key {key!r}; the annotation requires keys of type {tree.key.__name__}")
            return {key: self.read(tree.arm, branch, f"{path}[{key!r}]") for key, branch in value.items()}
        if isinstance(tree, _List):
            self._container(list, value, path)
            return [self.read(tree.arm, branch, f"{path}[{i}]") for i, branch in enumerate(value)]
        self._container(tuple, value, path)
        if len(value) != len(tree.arms):
            remedy = f"annotate it -> {_annotation(value)}"
            raise JobError(f"{self.what}: {path} is a tuple of length {len(value)}; the annotation has length {len(tree.arms)}; {remedy}")
        return tuple(self.read(arm, branch, f"{path}[{i}]") for i, (arm, branch) in enumerate(zip(tree.arms, value, strict=True)))

    def _any(self, tree: _Any, value: Any, path: str) -> Any:
        if isinstance(value, dict):
            return {key: self._any(tree, branch, f"{path}[{key!r}]") for key, branch in value.items()}
        if isinstance(value, tuple):
            return tuple(self._any(tree, branch, f"{path}[{i}]") for i, branch in enumerate(value))
        if isinstance(value, list):
            return [self._any(tree, branch, f"{path}[{i}]") for i, branch in enumerate(value)]
        return self._leaf(tree.kind, value, path)

    def _container(self, kind: type, value: Any, path: str) -> None:
        if type(value) is not kind:
            remedy = f"; annotate it -> {_annotation(value)}" if _is_tensor(value) or isinstance(value, tuple | list | dict) else ""
            raise JobError(f"{self.what}: {path} is {_kind(value)}; the annotation requires a {kind.__name__}{remedy}")

    def _leaf(self, kind: Kind, value: Any, path: str) -> int:
        if not _is_tensor(value):
            remedy = f"; annotate it -> {_annotation(value, kind)}" if isinstance(value, tuple | list | dict) and value else ""
            raise JobError(f"{self.what}: {path} is {_kind(value)}; it must be a tensor that the body computed{remedy}")
        ragged, nested = isinstance(value, HostResult), isinstance(value, HostResult) and value.nested
        if (kind == "numpy" and ragged) or (kind == "list" and nested) or (kind == "lists" and not nested):
            fits = "tp.ListListNumpy" if nested else "tp.ListNumpy" if ragged else "tp.Numpy or tp.ListNumpy"
            raise JobError(f"{self.what}: {path} is {'a tensor whose shape differs between runs' if ragged else 'one tensor'}; annotate it -> {fits}")
        self.leaves.append(value)
        self.kinds.append(kind)
        return len(self.leaves) - 1


def _is_tensor(value: Any) -> bool:
    return isinstance(getattr(value, "tensor_type", None), TensorType)


def _annotation(value: Any, kind: Kind = "numpy") -> str:
    """Return an annotation that accepts `value`, the result of a job's body, as text for messages."""
    leaf = "tp.ListNumpy" if kind == "list" else "tp.Numpy"
    if isinstance(value, tuple):
        return f"tuple[{', '.join(_annotation(entry, kind) for entry in value)}]"
    if isinstance(value, list):
        return f"list[{_annotation(value[0], kind)}]" if value else f"list[{leaf}]"
    if isinstance(value, dict):
        return f"dict[{type(next(iter(value))).__name__}, {_annotation(next(iter(value.values())), kind)}]" if value else f"dict[str, {leaf}]"
    return leaf


def _kind(value: Any) -> str:
    if value is None:
        return "None"
    return f"a tensor ({value.tensor_type})" if _is_tensor(value) else f"a {type(value).__name__}"


def _rebuilt(structure: Any, arrays: Sequence[Any]) -> Any:
    if isinstance(structure, dict):
        return {key: _rebuilt(branch, arrays) for key, branch in structure.items()}
    if isinstance(structure, tuple):
        return tuple(_rebuilt(branch, arrays) for branch in structure)
    if isinstance(structure, list):
        return [_rebuilt(branch, arrays) for branch in structure]
    return None if structure is None else arrays[structure]
