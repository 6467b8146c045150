"""flow.save and flow.load: any structure of dicts, lists, tuples, numbers, text and tensors, as a checkpoint directory.

The structure is a JSON tree in the manifest, tensors lie in safetensors files under their paths in it ("model.linear.weight"); nothing
is pickled, so that a file from elsewhere can do no harm.
"""

from __future__ import annotations

import math
import os
import zlib
from collections import OrderedDict
from collections.abc import Mapping
from typing import Any

import numpy as np

from jobflow.core.errors import ArgumentError, CheckpointError, FileError, JobError, user_line
from jobflow.core.layout import B, Layout, Placement
from jobflow.core.types import Array, DType, TensorType, dtype_named, type_of
from jobflow.eager.convert import convert, meeting
from jobflow.eager.state import EagerState, state
from jobflow.eager.tensor import Size
from jobflow.engine.placements import placement as public_placement
from jobflow.functional import global_tensors as moving
from jobflow.functional import values
from jobflow.functional.typed import Tensor
from jobflow.storage import store
from jobflow.storage.remote import AnyPath, path_of

Path = str | os.PathLike[str]


def save(obj: Any, path: Path, global_dst_rank: int | None = None) -> None:
    """Write a structure to the directory `path`; a checkpoint that was there is replaced in one step.

    With `global_dst_rank`, all ranks call it and that one writes, global tensors whole.  Without, every rank that calls it writes for
    itself, and there must be no global tensor.
    Raises: CheckpointError, on all ranks, if writing fails; JobError; ArgumentError for what cannot be saved.
    """
    what = f"save at {user_line()}"
    here, where, alone = state(), path_of(path), global_dst_rank is None
    arrays: dict[str, Array] = {}
    if global_dst_rank is not None:
        _check_rank(here, what, global_dst_rank)
    tree = Tree(what, arrays, None if alone else here, global_dst_rank or 0).encoded(obj)
    failure: str | None = None
    if alone or here.rank.index == global_dst_rank:
        try:
            store.save(where, arrays, {"object": tree}, replace=True)
        except CheckpointError as error:
            failure = f"{error} ({what})"
    if global_dst_rank is not None and here.rank.size > 1:
        with meeting(here, here.rank.comm, zlib.crc32(f"save {global_dst_rank}".encode()), lambda: f"{what}, written by rank {global_dst_rank}"):
            failure = here.rank.comm.exchange(failure)[global_dst_rank]
    if failure is not None:
        raise CheckpointError(failure)


def load(path: Path, global_src_rank: int | None = None, map_location: Any = None) -> Any:
    """What `save` wrote.

    With `global_src_rank`, all ranks call it and that one reads; tensors are global then, on that rank.  Without, every rank reads,
    and tensors are local.  `map_location`, a placement, moves global tensors there, as copies on all its ranks.
    Raises: CheckpointError, on all ranks, if something is missing or damaged.
    """
    what = f"load at {user_line()}"
    if map_location is not None and not isinstance(map_location, public_placement | str):
        raise ArgumentError(f"{what}: map_location is a placement, or the name of a device; got {map_location!r}")
    here, place = state(), path_of(path)
    if global_src_rank is None:
        try:
            found = store.load(place)
            arrays = {name: found[name] for name in found}
        except (CheckpointError, FileError) as error:
            raise type(error)(f"{error} ({what})") from None
        return decoded(_tree_of(found, what), lambda name: Tensor.new(type_of(arrays[name]), None, arrays[name]))
    _check_rank(here, what, global_src_rank)
    return _from_one(here, place, what, global_src_rank, map_location)


def _from_one(here: EagerState, path: AnyPath, what: str, source: int, where: Any) -> Any:
    """One rank reads and says what there is; the tensors are global."""
    arrays: dict[str, Array] = {}
    letter: tuple[Any, Any, CheckpointError | None] = (None, None, None)
    if here.rank.index == source:
        try:
            found = store.load(path)
            arrays = {name: found[name] for name in found}
            letter = _tree_of(found, what), {name: type_of(array) for name, array in arrays.items()}, None
        except CheckpointError as error:
            letter = None, None, error
        except OSError as error:
            letter = None, None, CheckpointError(f"{what}: {error}")
    tree, types, failure = letter
    if here.rank.size > 1:
        with meeting(here, here.rank.comm, zlib.crc32(f"load {source}".encode()), lambda: f"{what}, read by rank {source}"):
            tree, types, failure = here.rank.comm.exchange(letter)[source]
    if failure is not None:
        raise failure
    there = Layout(Placement("cpu", (source,)), (B,))

    def tensor(name: str) -> Tensor:
        type: TensorType = types[name]
        x = Tensor.new(type, there, arrays[name] if name in arrays else np.empty((0,) * type.ndim, type.dtype.numpy))
        return moving.to_global(x, where, [B] * len(where.core.mesh)) if isinstance(where, public_placement) else x

    return decoded(tree, tensor)


def _check_rank(here: EagerState, what: str, rank: int) -> None:
    if not 0 <= rank < here.rank.size:
        raise ArgumentError(f"{what}: there is no rank {rank}; there are the ranks 0 to {here.rank.size - 1}")


def _tree_of(found: store.Checkpoint, what: str) -> Any:
    if "object" not in found.extra:
        raise CheckpointError(
            f"{what}: {found.path} is a checkpoint of job variables, not of a structure; load it with train.CheckPoint or checkpoint.get"
        )
    return found.extra["object"]


class Tree:
    """Turns a structure into a JSON tree, and collects the arrays it refers to."""

    def __init__(self, what: str, arrays: dict[str, Array], here: EagerState | None = None, rank: int = 0) -> None:
        self.what = what
        self.arrays = arrays
        self.here = here
        self.rank = rank

    def encoded(self, item: Any, path: str = "") -> Any:
        """The tree of `item`, which lies at `path`."""
        if item is None or isinstance(item, bool | str) or type(item) is int:
            return item
        if isinstance(item, np.ndarray | np.generic):
            return {"array": self._keep(path, np.asarray(item)), "scalar": isinstance(item, np.generic)}
        if isinstance(item, float):
            return item if math.isfinite(item) else {"float": repr(item)}
        if isinstance(item, Tensor):
            return {"tensor": self._keep(path, self._array(item, path)), "requires_grad": item._needs_gradient and item.is_leaf}
        if isinstance(item, DType):
            return {"dtype": item.name}
        if isinstance(item, Mapping):
            kind = "ordered" if isinstance(item, OrderedDict) else "dict"
            return {kind: [[self.encoded(key, path), self.encoded(value, _below(path, key))] for key, value in item.items()]}
        if isinstance(item, list | tuple):
            kind = "size" if isinstance(item, Size) else "list" if isinstance(item, list) else "tuple"
            return {kind: [self.encoded(value, _below(path, i)) for i, value in enumerate(item)]}
        raise ArgumentError(
            f"{self.what}: a {type(item).__name__} at {path or 'the top'} cannot be saved; dicts, lists, tuples, text, numbers, arrays and "
            f"tensors can: save the state_dict() of a module rather than the module"
        )

    def _array(self, x: Tensor, path: str) -> Array:
        if x.layout is None:
            return values.value_of(x, "save")
        if self.here is None:
            raise JobError(
                f"{self.what}: the tensor {path} is global ({x.layout}); say which rank writes it: save(..., global_dst_rank=0), on all ranks"
            )
        return convert(self.here, x, Layout(Placement("cpu", (self.rank,)), (B,)), "save")

    def _keep(self, path: str, array: Array) -> str:
        name, number = path or "value", 1
        while name in self.arrays:
            number += 1
            name = f"{path}#{number}"
        self.arrays[name] = array
        return name


def _below(path: str, key: Any) -> str:
    return f"{path}.{key}" if path else str(key)


def decoded(tree: Any, tensor: Any) -> Any:
    """The structure of a tree; `tensor(name)` gives its tensors."""
    if not isinstance(tree, dict):
        return tree
    if "tensor" in tree:
        x: Tensor = tensor(tree["tensor"])
        x._needs_gradient = bool(tree["requires_grad"])
        return x
    (kind, value), *_ = tree.items()
    match kind:
        case "float":
            return float(value)
        case "dtype":
            return dtype_named(value)
        case "array":
            array = values.numpy(tensor(value))
            return array[()] if tree["scalar"] else array
        case "dict" | "ordered":
            items = [(decoded(key, tensor), decoded(entry, tensor)) for key, entry in value]
            return OrderedDict(items) if kind == "ordered" else dict(items)
        case "list":
            return [decoded(entry, tensor) for entry in value]
        case "tuple":
            return tuple(decoded(entry, tensor) for entry in value)
        case "size":
            return Size(value)
    raise CheckpointError(f"a checkpoint of a later release: it holds {kind!r}, which this one does not know")
