"""An interpreter of the pickles that `torch.save` writes.

The interpreter builds plain containers, numbers and text, and descriptions of tensors.  It has a fixed list of names, and never imports or calls
anything that a file names.  Lengths, counts and the extents of tensors are checked before memory is allocated for them.
"""

from __future__ import annotations

import math
import struct
from collections import Counter, OrderedDict
from collections.abc import Callable
from dataclasses import replace
from typing import Any, NoReturn

from jobflow.core.dataclass import dataclass
from jobflow.core.errors import CheckpointError
from jobflow.core.types import DType, bfloat16, bool_, float16, float32, float64, int8, int16, int32, int64, uint8
from jobflow.storage.untrusted import AXES, LARGEST, MEMORY, Limit, whole

#: limit of the operations of a pickle; each allocates at most a few hundred bytes, apart from text of the file
OPERATIONS = Limit("JOBFLOW_MAX_PICKLE_OPERATIONS", 5_000_000, "operations")
#: limits: bytes of an integer, length of a name, and number of parts of a tuple that is a key of a dict
_INTEGER, _NAME, _PARTS = 32, 1000, 64
#: limits of the keys of dicts: largest integer, and number of tuples, because keys with equal hashes take quadratic time
_KEY, _TUPLES = 2**61 - 1, 10_000

_ELEMENTS = {
    "Double": float64, "Float": float32, "Half": float16, "BFloat16": bfloat16, "Long": int64, "Int": int32, "Short": int16, "Char": int8,
    "Byte": uint8, "Bool": bool_,
}  # fmt: skip
_STORAGES = {f"torch.{name}Storage": dtype for name, dtype in _ELEMENTS.items()}
_DTYPES = {f"torch.{dtype.name.rstrip('_')}": dtype for dtype in _ELEMENTS.values()}
#: names of storages and functions for element types that jobflow lacks
_LACKING = {
    "torch.ComplexFloatStorage": "complex64", "torch.ComplexDoubleStorage": "complex128",
    "torch.QInt8Storage": "qint8", "torch.QUInt8Storage": "quint8", "torch.QInt32Storage": "qint32", "torch._utils._rebuild_qtensor": "qint8",
    "torch._utils._rebuild_tensor_v3": "uint16, uint32, uint64 or float8", "torch.storage.UntypedStorage": "untyped storage",
}  # fmt: skip


class Sizes(tuple[int, ...]):
    """A `torch.Size`."""

    __slots__ = ()


@dataclass(frozen=True)
class Device:
    """A `torch.device`."""

    name: str


@dataclass(frozen=True)
class StorageKind:
    """A class of storages, with its element type."""

    dtype: DType


@dataclass(frozen=True, eq=False)
class StorageRef:
    """A reference to a storage of the file: key, element type, number of elements, and the device that it was saved from."""

    key: str
    dtype: DType
    elements: int
    location: str

    @property
    def nbytes(self) -> int:
        return self.elements * self.dtype.itemsize


@dataclass(frozen=True, eq=False)
class TensorRef:
    """A tensor in a storage of the file; offset and strides count elements."""

    storage: StorageRef
    offset: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    requires_grad: bool
    parameter: bool = False


class Interpreter:
    """The state of a pickle at position `at` of `data`; `run` executes one pickle and returns its object."""

    def __init__(self, data: memoryview, name: str, storage_size: Callable[[str], int] | None = None) -> None:
        self.data = data
        self.at = 0
        self.name = name
        #: returns the bytes of a storage; None if the sizes follow the pickle
        self.storage_size = storage_size
        self.storages: dict[str, StorageRef] = {}
        self.operations = self.tuples = 0
        self.most = OPERATIONS.most
        self.stack: list[Any] = []
        self.marks: list[list[Any]] = []
        self.memo: dict[int, Any] = {}

    def fail(self, text: str) -> NoReturn:
        raise CheckpointError(f"{self.name} {text}")

    def run(self) -> Any:
        """Execute the operations up to STOP, and return the object.

        Raises: CheckpointError for damaged data, other classes than those of the list, or more operations than the limit.
        """
        self.stack, self.marks, self.memo = [], [], {}
        try:
            while (code := self.data[self.at]) != _STOP:
                self.at += 1
                self.operations += 1
                if self.operations > self.most:
                    self.spend(0)
                action = _ACTIONS.get(code)
                if action is None:
                    self.fail(f"is damaged, or a pickle of another kind: its byte {self.at - 1} is the unknown operation {code:#x}; use torch.save")
                action(self)
            self.at += 1
            return self.stack.pop()
        except (IndexError, KeyError, TypeError, ValueError, struct.error) as error:
            raise CheckpointError(f"{self.name} is damaged: its pickle is invalid before byte {self.at} ({_brief(error)})") from error

    def spend(self, operations: int) -> None:
        """Count operations; raise CheckpointError above the limit."""
        self.operations += operations
        if self.operations > self.most:
            OPERATIONS.check(self.operations, f"{self.name}: its pickle", CheckpointError)

    # ---------------------------------------------------------------- bytes

    def take(self, count: int) -> memoryview:
        """Return the next bytes without a copy."""
        stop = self.at + count
        if stop > len(self.data):
            raise ValueError(f"{count} bytes are expected, but {len(self.data) - self.at} are left")
        part = self.data[self.at : stop]
        self.at = stop
        return part

    def number(self, form: str) -> Any:
        return struct.unpack(form, self.take(struct.calcsize(form)))[0]

    def line(self) -> str:
        """Return the text up to the next line feed."""
        text = bytes(self.data[self.at : self.at + _NAME])
        stop = text.index(b"\n")
        self.at += stop + 1
        return text[:stop].decode()

    def integer(self, count: int) -> int:
        if count > _INTEGER:
            raise ValueError(f"an integer has {count} bytes, more than the limit of {_INTEGER}")
        return int.from_bytes(self.take(count), "little", signed=True)

    # ---------------------------------------------------------------- containers

    def marked(self) -> list[Any]:
        """Return the objects on the stack above the last mark, and remove the mark."""
        items = self.stack
        self.stack = self.marks.pop()
        return items

    def extend(self, items: list[Any]) -> None:
        target = self.stack[-1]
        if type(target) is not list:
            raise TypeError("objects are appended to an object that is not a list")
        target.extend(items)

    def assign(self, items: list[Any]) -> None:
        target = self.stack[-1]
        if type(target) not in (dict, OrderedDict) or len(items) % 2:
            raise TypeError("items are assigned to an object that is not a dict")
        for key, value in zip(items[::2], items[1::2], strict=True):
            target[self.key(key)] = value

    def add(self, items: list[Any]) -> None:
        target = self.stack[-1]
        if type(target) is not set:
            raise TypeError("elements are added to an object that is not a set")
        target.update(map(self.key, items))

    def key(self, item: Any) -> Any:
        """Return a key of a dict or an element of a set; raise TypeError unless its hash is cheap and rarely equals other hashes."""
        parts = [item]
        if type(item) is tuple:
            self.tuples += 1
            if self.tuples > _TUPLES:
                raise ValueError(f"more than {_TUPLES:,} keys are tuples")
            for part in parts:
                if type(part) is tuple:
                    parts += part[:_PARTS]
                if len(parts) > _PARTS:
                    raise ValueError(f"a key has more than {_PARTS} parts")
        for part in parts:
            if type(part) not in _HASHED or (type(part) is int and abs(part) >= _KEY):
                raise TypeError(f"a key is a {type(part).__name__}, but keys are text, small numbers and tuples of them")
        return item

    def store(self, index: int) -> None:
        self.memo[index] = self.stack[-1]

    # ---------------------------------------------------------------- names and calls

    def look_up(self, module: str, name: str) -> Any:
        """Return the object of the fixed list with this name; raise CheckpointError for other names."""
        full = f"{'builtins' if module == '__builtin__' else module}.{name}"
        if full in _DTYPES:
            return _DTYPES[full]
        if full in _STORAGES:
            return StorageKind(_STORAGES[full])
        if full in _CALLS:
            return _CALLS[full]
        lacking = _LACKING.get(full) or (name[:20] if module == "torch" and name.startswith(("int", "uint", "complex", "float8")) else None)
        if lacking:
            self.fail(f"contains data of the element type {lacking}, which jobflow lacks; convert the tensors in PyTorch, and save them again")
        self.fail(
            f"contains the class or function {full[:200]!r}, and a file must not run code; in PyTorch, save state_dict() instead of the module, and "
            f"numbers, text and tensors instead of other objects"
        )

    def reduce(self) -> None:
        arguments, function = self.stack.pop(), self.stack.pop()
        if not isinstance(function, _Call) or type(arguments) is not tuple:
            raise TypeError("an object is called that is not a function")
        self.stack.append(function.action(self, *arguments))

    def build(self) -> None:
        """Drop the attributes of an OrderedDict, in which PyTorch's `state_dict` stores the versions of modules."""
        attributes, target = self.stack.pop(), self.stack[-1]
        if type(target) is not OrderedDict or type(attributes) is not dict or set(attributes) - {"_metadata"}:
            raise TypeError("attributes are set on an object that has none")

    def persistent(self) -> None:
        """Replace the identifier of a storage on the stack by a `StorageRef`."""
        word, kind, key, location, elements, *view = self.stack.pop()
        if word != "storage" or not isinstance(kind, StorageKind) or not isinstance(key, str) or not isinstance(location, str) or any(view):
            raise TypeError("a storage has an unknown form; save the file with a newer release of PyTorch")
        reference = StorageRef(key, kind.dtype, _whole(elements), location)
        known = self.storages.setdefault(key, reference)
        if (known.dtype, known.elements) != (reference.dtype, reference.elements):
            raise ValueError(f"storage {key!r:.40} has two sizes or element types")
        if self.storage_size is not None and known is reference and reference.nbytes != self.storage_size(key):
            raise ValueError(f"storage {key!r:.40} needs {reference.nbytes} bytes, but the file has {self.storage_size(key)}")
        self.stack.append(known)


def _brief(error: Exception) -> str:
    return f"{type(error).__name__}: {error}"[:200]


@dataclass(frozen=True, eq=False)
class _Call:
    """A marker for a function of the fixed list, whose call executes `action`."""

    action: Callable[..., Any]


def _tensor(
    vm: Interpreter, storage: Any, offset: Any, size: Any, stride: Any, requires_grad: Any = False, hooks: Any = None, meta: Any = None
) -> Any:
    if not isinstance(storage, StorageRef) or type(requires_grad) is not bool or meta:
        raise TypeError("a tensor has an unknown form")
    start, shape, strides = _whole(offset), _sizes(size), _sizes(stride)
    if len(shape) != len(strides):
        raise ValueError(f"a tensor has {len(shape)} sizes and {len(strides)} strides")
    itemsize = storage.dtype.itemsize
    last = start + sum((n - 1) * step for n, step in zip(shape, strides, strict=True)) if 0 not in shape else start - 1
    if last >= storage.elements or math.prod(max(n, 1) for n in shape) * itemsize > LARGEST:
        raise ValueError(f"a tensor with offset {start}, sizes {shape} and strides {strides} exceeds its storage of {storage.elements} elements")
    nbytes = math.prod(shape) * itemsize
    if nbytes > storage.nbytes:  # a broadcast tensor, which takes its logical size as soon as it is copied
        MEMORY.check(nbytes, f"{vm.name}: a tensor", CheckpointError)
    if requires_grad and not storage.dtype.is_float:
        raise ValueError(f"a tensor of type {storage.dtype.name} requires a gradient")
    return TensorRef(storage, start, shape, strides, requires_grad)


def _parameter(vm: Interpreter, data: Any, requires_grad: Any, hooks: Any = None) -> TensorRef:
    if not isinstance(data, TensorRef) or type(requires_grad) is not bool or (requires_grad and not data.storage.dtype.is_float):
        raise TypeError("a parameter has an unknown form")
    return replace(data, requires_grad=requires_grad, parameter=True)


def _whole(number: Any) -> int:
    """Return an integer from 0 to `LARGEST`; raise an error without the object, whose text may be endless, for other objects."""
    if type(number) is not int:
        raise TypeError("a size is not an integer")
    return whole(number)


def _sizes(sizes: Any) -> tuple[int, ...]:
    if type(sizes) not in (tuple, Sizes) or len(sizes) > AXES:
        raise TypeError(f"a shape is not a tuple of at most {AXES} sizes")
    return tuple(map(_whole, sizes))


def _ordered(vm: Interpreter, *pairs: Any) -> OrderedDict[Any, Any]:
    (items,) = pairs or ([],)
    return OrderedDict((vm.key(key), value) for key, value in _copied(vm, list, items))


def _copied(vm: Interpreter, kind: type[list[Any]] | type[dict[Any, Any]], items: Any) -> Any:
    """Return the items of a container that is copied, and count them as operations, because a small file may copy a large container many times."""
    if type(items) is not kind:
        raise TypeError("a container is built from another object")
    vm.spend(len(items))
    return items


def _slice(vm: Interpreter, *bounds: Any) -> slice:
    if any(bound is not None and type(bound) is not int for bound in bounds):
        raise TypeError("a slice has bounds that are not integers")
    return slice(*bounds)


def _encode(vm: Interpreter, text: Any, encoding: Any) -> bytes:
    """Return `text` as bytes: older pickles write bytes as text and its encoding."""
    if type(text) is not str or encoding != "latin1":
        raise TypeError("bytes have an unknown encoding")
    vm.spend(len(text) >> 6)
    return text.encode("latin1")


def _device(vm: Interpreter, kind: Any, index: Any = None) -> Device:
    if type(kind) is not str or len(kind) > _PARTS or (index is not None and type(index) is not int):
        raise TypeError("a device has an unknown form")
    return Device(kind if index is None else f"{kind}:{index}")


_CALLS = {
    "torch._utils._rebuild_tensor": _Call(_tensor),
    "torch._utils._rebuild_tensor_v2": _Call(_tensor),
    "torch._utils._rebuild_parameter": _Call(_parameter),
    "torch.Size": _Call(lambda vm, sizes: Sizes(_sizes(sizes))),
    "torch.device": _Call(_device),
    "collections.OrderedDict": _Call(_ordered),
    "collections.Counter": _Call(lambda vm, counts: Counter(_copied(vm, dict, counts))),
    "builtins.set": _Call(lambda vm, items: set(map(vm.key, _copied(vm, list, items)))),
    "builtins.frozenset": _Call(lambda vm, items: frozenset(map(vm.key, _copied(vm, list, items)))),
    "builtins.slice": _Call(_slice),
    "_codecs.encode": _Call(_encode),
}
#: classes of keys
_HASHED = {str, int, float, bool, bytes, type(None), tuple}


# -------------------------------------------------------------------- operations


def _push(value: Callable[[Interpreter], Any]) -> Callable[[Interpreter], None]:
    """Return the operation that pushes value(interpreter) on the stack."""

    def action(vm: Interpreter) -> None:
        item = value(vm)
        vm.stack.append(item)

    return action


def _text(form: str, decode: Callable[[memoryview], Any]) -> Callable[[Interpreter], None]:
    """Return the operation that pushes text or bytes, whose length has the format `form`."""
    return _push(lambda vm: decode(vm.take(vm.number(form))))


def _tuple(count: int) -> Callable[[Interpreter], None]:
    def action(vm: Interpreter) -> None:
        if len(vm.stack) < count:
            raise IndexError("a tuple lacks items")
        vm.stack[-count:] = [tuple(vm.stack[-count:])]

    return action


def _mark(vm: Interpreter) -> None:
    vm.marks.append(vm.stack)
    vm.stack = []


def _with_marked(use: Callable[[Interpreter, list[Any]], Any]) -> Callable[[Interpreter], None]:
    """Return the operation that calls `use` with the objects on the stack above the last mark."""
    return lambda vm: use(vm, vm.marked())


def _global(vm: Interpreter) -> Any:
    module = vm.line()
    return vm.look_up(module, vm.line())


def _stack_global(vm: Interpreter) -> Any:
    name, module = vm.stack.pop(), vm.stack.pop()
    if type(name) is not str or type(module) is not str:
        raise TypeError("a name is not text")
    return vm.look_up(module, name)


def _assign_one(vm: Interpreter) -> None:
    value, key = vm.stack.pop(), vm.stack.pop()
    vm.assign([key, value])


def _utf8(part: memoryview) -> str:
    return bytes(part).decode()


def _frame(vm: Interpreter) -> None:
    """Skip the size of a frame."""
    vm.take(8)


_STOP = ord(".")
_ACTIONS: dict[int, Callable[[Interpreter], None]] = {
    0x80: lambda vm: None if vm.number("<B") in (2, 3, 4, 5) else vm.fail("is a pickle of an unknown protocol; use torch.save"),
    0x95: _frame,
    ord("("): _mark,
    ord("N"): _push(lambda vm: None),
    0x88: _push(lambda vm: True),
    0x89: _push(lambda vm: False),
    ord("J"): _push(lambda vm: vm.number("<i")),
    ord("K"): _push(lambda vm: vm.number("<B")),
    ord("M"): _push(lambda vm: vm.number("<H")),
    0x8A: _push(lambda vm: vm.integer(vm.number("<B"))),
    0x8B: _push(lambda vm: vm.integer(vm.number("<I"))),
    ord("G"): _push(lambda vm: vm.number(">d")),
    ord("X"): _text("<I", _utf8),
    0x8C: _text("<B", _utf8),
    0x8D: _text("<Q", _utf8),
    ord("U"): _text("<B", _utf8),
    ord("T"): _text("<I", _utf8),
    ord("C"): _text("<B", bytes),
    ord("B"): _text("<I", bytes),
    0x8E: _text("<Q", bytes),
    ord(")"): _push(lambda vm: ()),
    ord("]"): _push(lambda vm: []),
    ord("}"): _push(lambda vm: {}),
    0x8F: _push(lambda vm: set()),
    0x85: _tuple(1),
    0x86: _tuple(2),
    0x87: _tuple(3),
    ord("t"): _with_marked(lambda vm, items: vm.stack.append(tuple(items))),
    ord("l"): _with_marked(lambda vm, items: vm.stack.append(items)),
    0x91: _with_marked(lambda vm, items: vm.stack.append(frozenset(map(vm.key, items)))),
    ord("e"): _with_marked(Interpreter.extend),
    ord("u"): _with_marked(Interpreter.assign),
    0x90: _with_marked(Interpreter.add),
    ord("a"): lambda vm: vm.extend([vm.stack.pop()]),
    ord("s"): _assign_one,
    ord("q"): lambda vm: vm.store(vm.number("<B")),
    ord("r"): lambda vm: vm.store(vm.number("<I")),
    0x94: lambda vm: vm.store(len(vm.memo)),
    ord("h"): _push(lambda vm: vm.memo[vm.number("<B")]),
    ord("j"): _push(lambda vm: vm.memo[vm.number("<I")]),
    ord("c"): _push(_global),
    0x93: _push(_stack_global),
    ord("R"): Interpreter.reduce,
    ord("b"): Interpreter.build,
    ord("Q"): Interpreter.persistent,
}
