"""Functions `flow.save` and `flow.load` for nested dicts, lists, tuples, numbers, strings and tensors, stored as a checkpoint directory.

`load` also reads files of `torch.save` and safetensors (`foreign_files`).

The manifest stores the structure as a JSON tree.  Safetensors files store the tensors under their paths in the tree, such as
"model.linear.weight".  Pickle is not used, so untrusted files cannot execute code.
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
from jobflow.engine.placements import placement as public_placement
from jobflow.functional import foreign_files, values
from jobflow.functional import global_tensors as moving
from jobflow.functional.devices import device
from jobflow.functional.parameter_class import Parameter
from jobflow.functional.typed import Tensor
from jobflow.storage import store
from jobflow.storage.remote import AnyPath, path_of
from jobflow.tensors.convert import convert, meeting
from jobflow.tensors.state import EagerState, refuse_tracing, state
from jobflow.tensors.tensor import Size

Path = str | os.PathLike[str]


def save(
    obj: Any,
    path: Path,
    global_dst_rank: int | None = None,
    *,
    pickle_module: Any = None,
    pickle_protocol: int | None = None,
    _use_new_zipfile_serialization: bool = True,
) -> None:
    """Write a structure to the directory `path`; an existing checkpoint is replaced atomically.

    With `global_dst_rank`, all ranks must call `save`, and this rank writes the logical values of global tensors.  Without `global_dst_rank`,
    every calling rank writes, and global tensors raise JobError.  PyTorch's options of pickles have no effect.
    Raises: CheckpointError, on all ranks, if writing fails; JobError for a global tensor without `global_dst_rank`; ArgumentError for
    objects that cannot be saved.
    """
    refuse_tracing("save", "files cannot be written", "save outside")
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


def load(
    path: Path,
    global_src_rank: int | None = None,
    map_location: Any = None,
    *,
    pickle_module: Any = None,
    weights_only: bool | None = None,
    mmap: bool | None = None,
) -> Any:
    """Return the structure that `save` wrote to the directory `path`, or the content of a file of `torch.save` or of safetensors.

    Code in a file never runs, whatever `weights_only` is.  `map_location` is a device, or a dict from saved to new devices; the
    default is the CPU, and a function is accepted without being called.  `pickle_module` and `mmap` have no effect.  `path` may also be an open
    binary file.
    With `global_src_rank`, all ranks must call `load`; this rank reads the files, and the tensors are global tensors on this rank.  A placement
    as `map_location` broadcasts them to its ranks.  Without `global_src_rank`, every rank reads the files, and the tensors are local, or global
    and broadcast with the device of a global tensor as `map_location`.
    Raises: CheckpointError, on all ranks, for damaged data or a file that contains code; ArgumentError for other arguments.
    """
    what = f"load at {user_line()}"
    if global_src_rank is not None and not isinstance(global_src_rank, int | np.integer) and map_location is None:
        global_src_rank, map_location = None, global_src_rank  # PyTorch's second argument is map_location
    devices = foreign_files.DeviceMap(what, None if isinstance(map_location, public_placement) else map_location)
    if callable(getattr(path, "read", None)):
        return _from_open_file(path, devices, what, global_src_rank)
    if isinstance(map_location, device) and map_location.placement is not None:
        map_location = map_location.placement
    here, location = state(), path_of(path)
    if global_src_rank is None:
        try:
            if foreign_files.is_foreign(location):
                return foreign_files.read(location, devices)
            checkpoint = store.load(location)
            arrays = {name: checkpoint[name] for name in checkpoint}
        except (CheckpointError, FileError) as error:
            raise type(error)(f"{error} ({what})") from None
        return decoded(_tree_of(checkpoint, what), lambda name: foreign_files.tensor_on(arrays[name], devices.target("cpu")))
    _check_rank(here, what, global_src_rank)
    return _from_one(here, location, what, global_src_rank, map_location)


def _from_open_file(file: Any, devices: foreign_files.DeviceMap, what: str, rank: int | None) -> Any:
    """Read an open file of `torch.save`; raise ArgumentError for a text file or together with `global_src_rank`."""
    if rank is not None or not isinstance(file.read(0), bytes):
        raise ArgumentError(f"{what}: path is an open file, which must be binary, and without global_src_rank; pass the path of the file instead")
    try:
        return foreign_files.read_file(file, devices)
    except CheckpointError as error:
        raise CheckpointError(f"{error} ({what})") from None


def _from_one(here: EagerState, path: AnyPath, what: str, source: int, where: Any) -> Any:
    """Read the structure on rank `source`, send it to all ranks, and return it with global tensors on rank `source`.

    A placement as `where` broadcasts the tensors to its ranks.  Raises: CheckpointError, on all ranks, if reading fails.
    """
    arrays: dict[str, Array] = {}
    message: tuple[Any, Any, ArgumentError | CheckpointError | None] = (None, None, None)
    if here.rank.index == source:
        try:
            if foreign_files.is_foreign(path):
                tree = Tree(what, arrays).encoded(foreign_files.read(path, foreign_files.DeviceMap(what, None)))
            else:
                checkpoint = store.load(path)
                arrays = {name: checkpoint[name] for name in checkpoint}
                tree = _tree_of(checkpoint, what)
            message = tree, {name: type_of(array) for name, array in arrays.items()}, None
        except (ArgumentError, CheckpointError) as error:
            message = None, None, error
        except OSError as error:
            message = None, None, CheckpointError(f"{what}: {error}")
    tree, types, failure = message
    if here.rank.size > 1:
        with meeting(here, here.rank.comm, zlib.crc32(f"load {source}".encode()), lambda: f"{what}, read by rank {source}"):
            tree, types, failure = here.rank.comm.exchange(message)[source]
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
        raise ArgumentError(f"{what}: rank {rank} does not exist; the ranks are 0 to {here.rank.size - 1}")


def _tree_of(checkpoint: store.Checkpoint, what: str) -> Any:
    if "object" not in checkpoint.extra:
        raise CheckpointError(
            f"{what}: {checkpoint.path} is a checkpoint of job variables, not of a structure; load it with train.CheckPoint or checkpoint.get"
        )
    return checkpoint.extra["object"]


class Tree:
    """Encoder of a structure as a JSON tree, which also collects the arrays of the structure."""

    def __init__(self, what: str, arrays: dict[str, Array], here: EagerState | None = None, rank: int = 0) -> None:
        self.what = what
        self.arrays = arrays
        self.here = here
        self.rank = rank

    def encoded(self, item: Any, path: str = "") -> Any:
        """Return the JSON tree of `item`, which is at `path` in the structure; raise ArgumentError for an object that cannot be saved."""
        if item is None or isinstance(item, bool | str) or type(item) is int:
            return item
        if isinstance(item, np.ndarray | np.generic):
            return {"array": self._keep(path, np.asarray(item)), "scalar": isinstance(item, np.generic)}
        if isinstance(item, float):
            return item if math.isfinite(item) else {"float": repr(item)}
        if isinstance(item, Tensor):
            entry = {"tensor": self._keep(path, self._array(item, path)), "requires_grad": item._needs_gradient and item.is_leaf}
            return entry | {"parameter": True} if isinstance(item, Parameter) else entry
        if isinstance(item, DType):
            return {"dtype": item.name}
        if isinstance(item, Mapping):
            kind = "ordered" if isinstance(item, OrderedDict) else "dict"
            return {kind: [[self.encoded(key, path), self.encoded(value, _below(path, key))] for key, value in item.items()]}
        if isinstance(item, list | tuple):
            kind = "size" if isinstance(item, Size) else "list" if isinstance(item, list) else "tuple"
            return {kind: [self.encoded(value, _below(path, i)) for i, value in enumerate(item)]}
        raise ArgumentError(
            f"{self.what}: a {type(item).__name__} at {path or 'the top'} cannot be saved; pass dicts, lists, tuples, strings, numbers, arrays and "
            f"tensors, and the state_dict() of a module instead of the module"
        )

    def _array(self, x: Tensor, path: str) -> Array:
        if x.layout is None:
            return values.value_of(x, "save")
        if self.here is None:
            raise JobError(
                f"{self.what}: the tensor {path} is global ({x.layout}); name the rank that writes it: save(..., global_dst_rank=0), on all ranks"
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
    """Return the structure that a tree encodes; `tensor(name)` returns its tensors."""
    if not isinstance(tree, dict):
        return tree
    if "tensor" in tree:
        x: Tensor = tensor(tree["tensor"])
        x._needs_gradient = bool(tree["requires_grad"])
        return Parameter(x, x._needs_gradient) if tree.get("parameter") else x
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
    raise CheckpointError(f"load at {user_line()}: the checkpoint has an entry of unknown kind {kind!r}; use the release that wrote the checkpoint")
