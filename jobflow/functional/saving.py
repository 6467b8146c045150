"""Functions `flow.save` and `flow.load` for nested containers of numbers, strings and tensors, stored as a checkpoint directory.

`load` also reads files of `torch.save` and safetensors (`foreign_files`).

The manifest stores the structure as a JSON tree.  Safetensors files store the tensors under their paths in the tree, such as
"model.linear.weight".  An open file receives one safetensors file, whose metadata contain the tree.  Pickle is not used, so untrusted files cannot
execute code.
"""

from __future__ import annotations

import io
import zlib
from typing import Any

import numpy as np

from jobflow.core.errors import ArgumentError, CheckpointError, FileError, user_line
from jobflow.core.layout import B, Layout, Placement
from jobflow.core.types import Array, TensorType, type_of
from jobflow.engine.placements import placement as public_placement
from jobflow.functional import foreign_files
from jobflow.functional import global_tensors as moving
from jobflow.functional.devices import device
from jobflow.functional.saved_structures import Decoder, Encoder
from jobflow.functional.typed import Tensor
from jobflow.storage import store
from jobflow.storage.remote import AnyPath, path_of
from jobflow.tensors.convert import meeting
from jobflow.tensors.state import EagerState, refuse_tracing, state


def save(
    obj: Any,
    path: Any,
    global_dst_rank: int | None = None,
    *,
    pickle_module: Any = None,
    pickle_protocol: int | None = None,
    _use_new_zipfile_serialization: bool = True,
) -> None:
    """Write a structure to the directory `path`; an existing checkpoint or file is replaced atomically.

    `path` may also be an open binary file, such as io.BytesIO, which receives one safetensors file.
    With `global_dst_rank`, all ranks must call `save`, and this rank writes the logical values of global tensors.  Without `global_dst_rank`,
    every calling rank writes, and global tensors raise JobError.  PyTorch's options of pickles have no effect.
    Raises: CheckpointError, on all ranks, if writing fails; JobError for a global tensor without `global_dst_rank`; ArgumentError for
    objects that cannot be saved.

    Examples:
        >>> flow.save({"weight": flow.ones(2), "step": 3}, path)  # a directory
        >>> flow.load(path)["step"]
        3
    """
    refuse_tracing("save", "files cannot be written", "save outside")
    what = f"save at {user_line()}"
    here, alone = state(), global_dst_rank is None
    target = _open_file(path, what) or path_of(path)
    arrays: dict[str, Array] = {}
    if global_dst_rank is not None:
        _check_rank(here, what, global_dst_rank)
    tree = Encoder(what, arrays, None if alone else here, global_dst_rank or 0).encoded(obj)
    failure: str | None = None
    if alone or here.rank.index == global_dst_rank:
        try:
            _write(target, arrays, tree)
        except (CheckpointError, OSError) as error:
            failure = f"{error} ({what})"
    if global_dst_rank is not None and here.rank.size > 1:
        with meeting(here, here.rank.host_comm, zlib.crc32(f"save {global_dst_rank}".encode()), lambda: f"{what}, written by rank {global_dst_rank}"):
            failure = here.rank.host_comm.exchange(failure)[global_dst_rank]
    if failure is not None:
        raise CheckpointError(failure)


def _open_file(path: Any, what: str) -> Any:
    """Return `path` if it is an open binary file, and None for a path; raise ArgumentError for a text file."""
    if not callable(getattr(path, "write", None)):
        return None
    if isinstance(path, io.TextIOBase):
        raise ArgumentError(f'{what}: path is an open text file; open the file with mode "wb"')
    return path


def _write(target: Any, arrays: dict[str, Array], tree: Any) -> None:
    """Write a structure to an open file or a directory; raise CheckpointError or OSError if writing fails."""
    if callable(getattr(target, "write", None)):
        foreign_files.write_file(target, arrays, tree)
    else:
        store.save(target, arrays, {"object": tree}, replace=True, over_files=True)


def load(
    path: Any,
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
    binary file, also one that `save` wrote.
    With `global_src_rank`, all ranks must call `load`; this rank reads the files, and the tensors are global tensors on this rank.  A placement
    as `map_location` broadcasts them to its ranks.  Without `global_src_rank`, every rank reads the files, and the tensors are local, or global
    and broadcast with the device of a global tensor as `map_location`.
    Raises: CheckpointError, on all ranks, for damaged data or a file that contains code; ArgumentError for other arguments.

    Examples:
        >>> flow.save({"weight": flow.ones(2)}, path)
        >>> flow.load(path)["weight"]
        tensor([1., 1.], dtype=jobflow.float32)
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
        decoder = Decoder(what, lambda name: foreign_files.tensor_on(arrays[name], devices.target("cpu")))
        return decoder.whole(_tree_of(checkpoint, what))
    _check_rank(here, what, global_src_rank)
    return _from_one(here, location, what, global_src_rank, map_location)


def _from_open_file(file: Any, devices: foreign_files.DeviceMap, what: str, rank: int | None) -> Any:
    """Read an open file of `save`, safetensors or `torch.save`; raise ArgumentError for a text file or together with `global_src_rank`."""
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
                tree = Encoder(what, arrays).encoded(foreign_files.read(path, foreign_files.DeviceMap(what, None)))
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
        with meeting(here, here.rank.host_comm, zlib.crc32(f"load {source}".encode()), lambda: f"{what}, read by rank {source}"):
            tree, types, failure = here.rank.host_comm.exchange(message)[source]
    if failure is not None:
        raise failure
    there = Layout(Placement("cpu", (source,)), (B,))

    def tensor(name: str) -> Tensor:
        type: TensorType = types[name]
        x = Tensor.new(type, there, arrays[name] if name in arrays else np.empty((0,) * type.ndim, type.dtype.numpy))
        return moving.to_global(x, where, [B] * len(where.core.mesh)) if isinstance(where, public_placement) else x

    return Decoder(what, tensor).whole(tree)


def _check_rank(here: EagerState, what: str, rank: int) -> None:
    if not 0 <= rank < here.rank.size:
        raise ArgumentError(f"{what}: rank {rank} does not exist; the ranks are 0 to {here.rank.size - 1}")


def _tree_of(checkpoint: store.Checkpoint, what: str) -> Any:
    if "object" not in checkpoint.extra:
        raise CheckpointError(
            f"{what}: {checkpoint.path} is a checkpoint of job variables, not of a structure; load it with train.CheckPoint or checkpoint.get"
        )
    return checkpoint.extra["object"]
