"""Files of other libraries as structures of tensors: `torch.save` and safetensors."""

from __future__ import annotations

import json
from collections import Counter, OrderedDict
from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple

from jobflow.core.errors import ArgumentError, CheckpointError, PlacementError
from jobflow.core.types import Array, DType, dtype_of, type_of
from jobflow.functional.devices import checked_device, device
from jobflow.functional.global_tensors import loaded_on
from jobflow.functional.parameter_class import Parameter
from jobflow.functional.saved_structures import Decoder
from jobflow.functional.typed import Tensor
from jobflow.runtime.collection import collection_paused
from jobflow.storage import safetensors, torch_files
from jobflow.storage.remote import AnyPath, RemotePath
from jobflow.storage.torch_pickle import OPERATIONS, Device, Sizes, StorageRef, TensorRef
from jobflow.storage.untrusted import MEMORY, json_tree, open_regular, read_at_most
from jobflow.tensors.tensor import Size

#: maximum nesting depth; the conversion stays far below the recursion limit of Python
_DEPTH = 100
#: the name of the metadata in which `flow.save` stores the structure of a safetensors file
_TREE = "jobflow structure"
_PLAIN = (str, bytes, int, float, bool, type(None), slice, DType)


class DeviceMap:
    """The devices of loaded tensors, from the argument `map_location`.

    A device applies to all tensors; a dict maps the names of saved devices.  Tensors that no entry of the dict names are on the CPU, as are all
    tensors if `map_location` is a function.
    """

    def __init__(self, what: str, targets: Any) -> None:
        self.what = what
        self._map: dict[str, device | None] = {}
        self._default: device | None = None
        if isinstance(targets, Mapping):
            self._map = {str(checked_device(what, source)): self._device(target) for source, target in targets.items()}
        elif not callable(targets) or isinstance(targets, device):
            self._default = self._device(targets)

    def _device(self, target: Any) -> device | None:
        try:
            if isinstance(target, int):
                raise PlacementError("a number")
            return checked_device(self.what, target)
        except PlacementError:
            raise ArgumentError(
                f"{self.what}: map_location must be a placement, a device, the name of a device, or a dict from devices to devices; got {target!r}"
            ) from None

    def target(self, saved: str) -> device | None:
        """Return the device for a tensor that was saved from the device `saved`; None is the CPU."""
        try:
            return self._map.get(str(device(saved)), self._default) if self._map else self._default
        except PlacementError:  # a device of another library
            return self._default


def is_foreign(path: AnyPath) -> bool:
    """Return True if `path` is a file, and False for the directory of a checkpoint or a missing path."""
    return path.exists() and not path.is_dir()


def read(path: AnyPath, devices: DeviceMap) -> Any:
    """Return the content of a file of `torch.save` or safetensors.

    Raises: CheckpointError for damaged files, and for objects that are not tensors, numbers, text or containers.
    """
    if path.suffix == ".safetensors" or _start(path)[8:9] == b"{":
        return _tensors(safetensors.opened(path), str(path), lambda info: safetensors.read_tensor(path, info), devices)
    with collection_paused():  # millions of objects are created, and none is released
        return _Builder(torch_files.read(path), str(path), devices).whole()


def read_file(file: Any, devices: DeviceMap) -> Any:
    """Return the content of an open binary file from its position to its end, as `read` does."""
    name = str(getattr(file, "name", "the file"))
    content = read_at_most(file, MEMORY, name, CheckpointError)
    if content[8:9] == b"{":
        header = safetensors.parsed(content, name)
        return _tensors(header, name, lambda info: safetensors.array_in(content, info), devices)
    with collection_paused():
        return _Builder(torch_files.parse(memoryview(content), name), name, devices).whole()


def _start(path: AnyPath) -> bytes:
    if isinstance(path, RemotePath):
        return path.span(0, 9)
    with open_regular(path, CheckpointError) as file:
        return file.read(9)


def write_file(file: Any, arrays: Mapping[str, Array], tree: Any) -> None:
    """Write a safetensors file of these arrays, whose metadata contain the JSON tree of a structure, to an open binary file."""
    stored = {name: safetensors.storable(name, array) for name, array in arrays.items()}
    for part in safetensors.encoded(stored, {_TREE: json.dumps(tree)}):
        file.write(part)


def _tensors(header: safetensors.Header, name: str, read_array: Callable[[safetensors.TensorInfo], Array], devices: DeviceMap) -> Any:
    """Return the tensors of a safetensors file by name, or the structure of its metadata."""
    for key, info in header.infos.items():
        try:
            dtype_of(info.dtype.newbyteorder("="))
        except KeyError:
            raise CheckpointError(
                f"{name}: tensor {key!r} has the element type {info.dtype.name}, which jobflow lacks; convert the tensor before saving"
            ) from None

    def tensor(key: str) -> Tensor:
        return tensor_on(read_array(header.infos[key]), devices.target("cpu"))

    if _TREE not in header.metadata:
        return {key: tensor(key) for key in header.infos}
    try:
        tree = json_tree(header.metadata[_TREE].encode())
    except ValueError as error:
        raise CheckpointError(f"{name} is damaged: its metadata {_TREE!r} are not JSON ({error})") from None
    return Decoder(name, tensor).whole(tree)


def tensor_on(array: Array, where: device | None) -> Tensor:
    """Return a tensor in the memory of the array, on a device; None is the host."""
    return loaded_on(Tensor.new(type_of(array), None, array), "load", where)


class _Extent(NamedTuple):
    """The number of levels of containers in an object, and the number of objects inside, counted once per occurrence."""

    levels: int
    items: int


#: default entry in `_Builder.results`, for an object that was not converted before
_NEW = (None, _Extent(0, 0))


class _Builder:
    """Converter of an object in a file of `torch.save` to tensors and containers of Python.

    Objects that occur several times are converted once.  Tensors of one storage share memory, as in PyTorch.
    """

    def __init__(self, file: torch_files.TorchFile, name: str, devices: DeviceMap) -> None:
        self.file = file
        self.name = name
        self.devices = devices
        #: result and extent by the identity of the original; None while its items are converted
        self.results: dict[int, tuple[Any, _Extent] | None] = {}
        self.first: dict[str, Tensor] = {}
        self.most = OPERATIONS.most

    def whole(self) -> Any:
        return self.built(self.file.tree, 1)[0]

    def built(self, item: Any, level: int) -> tuple[Any, _Extent]:
        """Return the object for `item` at nesting depth `level`, and its extent; raise CheckpointError for deep nesting."""
        if type(item) in _PLAIN:
            return item, _Extent(0, 1 + (len(item) >> 6 if isinstance(item, str | bytes) else 0))
        known = self.results.get(id(item), _NEW)
        if known is None:
            raise CheckpointError(f"{self.name} contains a container that contains itself; save tensors, numbers, text and containers of them")
        if known is _NEW:
            self.check(level)
            self.results[id(item)] = None
            known = self.results[id(item)] = self.converted(item, level)
            if known[1].items > self.most:
                OPERATIONS.check(known[1].items, f"{self.name}: a container of shared items", CheckpointError)
        self.check(level + known[1].levels)
        return known

    def check(self, depth: int) -> None:
        if depth > _DEPTH:
            raise CheckpointError(f"{self.name} contains containers nested more than {_DEPTH} deep; save a flat dict, such as state_dict()")

    def converted(self, item: Any, level: int) -> tuple[Any, _Extent]:
        kind = type(item)
        if kind in (dict, OrderedDict, Counter):
            values, extent = self.items(item.values(), level)
            result: Any = kind()
            for key, value in zip(item, values, strict=True):
                result[key] = value
            return result, extent
        if kind in (list, tuple):
            values, extent = self.items(item, level)
            return kind(values), extent
        return self.single(item), _Extent(1, len(item) + 1 if isinstance(item, set | frozenset) else 1)

    def items(self, items: Iterable[Any], level: int) -> tuple[list[Any], _Extent]:
        """Return the objects for the items of a container at nesting depth `level`, and the extent of the container."""
        values, levels, count = [], 0, 1
        for item in items:
            value, extent = self.built(item, level + 1)
            values.append(value)
            levels, count = max(levels, extent.levels), count + extent.items
        return values, _Extent(levels + 1, count)

    def single(self, item: Any) -> Any:
        """Return the object for `item`, which contains no objects that need a conversion; raise CheckpointError for an unsupported class."""
        match item:
            case set() | frozenset():
                return item
            case TensorRef():
                return self.tensor(item)
            case Sizes():
                return Size(item)
            case Device():
                return self.device(item)
        noun = "a storage; save tensors" if isinstance(item, StorageRef) else "a class; save tensors, numbers, text and containers of them"
        raise CheckpointError(f"{self.name} contains {noun}")

    def tensor(self, item: TensorRef) -> Tensor:
        x = tensor_on(self.file.array(item), self.devices.target(item.storage.location))
        x._needs_gradient = item.requires_grad
        first = self.first.setdefault(item.storage.key, x)
        if first is not x:
            first.shares(x)
        return Parameter(x, item.requires_grad) if item.parameter else x

    def device(self, item: Device) -> device:
        try:
            return device(item.name)
        except PlacementError:
            raise CheckpointError(f"{self.name} contains the device {item.name!r}, which jobflow lacks; remove it before saving") from None
