"""The data of tensors: an array, or a value of a program that is being traced.

A local tensor belongs to one rank.  A global tensor has a logical value, stored on the ranks of its placement according to its sbp.  Each
rank stores its piece as `array`; ranks outside the placement store an empty one.  Traced tensors have `traced` instead of an array.

`jobflow.functional.tensor_class` adds the methods.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, ClassVar, SupportsIndex, overload
from weakref import WeakValueDictionary

import numpy as np

import jobflow.core.scope as scope
from jobflow.core.errors import JobError, user_line
from jobflow.core.layout import Layout, Sbp
from jobflow.core.types import Array, DType, TensorType
from jobflow.engine.placements import placement as public_placement
from jobflow.tensors.gpus import address, array_at, duplicate

if TYPE_CHECKING:
    from jobflow.tensors.tape import TapeNode


class Size(tuple[int, ...]):
    """A shape, printed as jobflow.Size([4, 5]); its slices, sums and multiples are shapes, too."""

    __slots__ = ()

    def __repr__(self) -> str:
        return f"jobflow.Size({list(self)})"

    @overload
    def __getitem__(self, key: SupportsIndex) -> int: ...
    @overload
    def __getitem__(self, key: slice) -> Size: ...
    def __getitem__(self, key: Any) -> Any:
        item: Any = super().__getitem__(key)
        return Size(item) if key.__class__ is slice else item

    def __add__(self, other: Any) -> Size:
        return Size(super().__add__(other))

    def __radd__(self, other: tuple[int, ...]) -> Size:
        return Size(other + tuple(self))

    def __mul__(self, count: SupportsIndex) -> Size:
        return Size(super().__mul__(count))

    __rmul__ = __mul__

    def index(self, value: Any, start: SupportsIndex = 0, stop: SupportsIndex = sys.maxsize) -> int:
        """Return the position of the first size that equals `value`."""
        return super().index(value, start, stop)

    def numel(self) -> int:
        """Return the number of elements."""
        product = 1
        for n in self:
            product *= n
        return product


class ResidentMemory:
    """The memory of a variable or output of a compiled program, which tensors use for their elements.

    Only programs write to memory that several ranks share (`ranks`; empty for memory of this rank).  The arrays of tensors
    in shared memory are read-only.  Before a write to one of these tensors, all of them move to a copy that belongs to this rank (`evict`).  The
    next run of the program reads the copy, and the tensors move back (`readmit`).
    """

    __slots__ = ("array", "buffer", "copies", "copy", "exported", "offset", "ranks", "tensors", "transient", "writes")

    def __init__(self, array: Array, buffer: Array, offset: int, ranks: tuple[int, ...] = (), copies: bool = False, transient: bool = False) -> None:
        self.array = array if not ranks else _read_only(array)
        #: the flat bytes that contain `array`, and the offset of `array` in bytes
        self.buffer = buffer
        self.offset = offset
        self.ranks = ranks
        #: True if the other ranks have copies of the memory, which must remain equal
        self.copies = copies
        #: True if the next run of the program overwrites the memory with a new tensor
        self.transient = transient
        #: the number of writes by operations and programs
        self.writes = 0
        #: True if another library may write to the memory
        self.exported = False
        #: this rank's copy of the elements, after a write
        self.copy: Array | None = None
        self.tensors: WeakValueDictionary[int, TensorBase] = WeakValueDictionary()

    def evict(self) -> None:
        """Move the tensors to a copy in memory of this rank alone."""
        if self.copy is None:
            self.copy = duplicate(self.array)
            self._move(self.array, self.copy)

    def readmit(self) -> None:
        """Move the tensors back to the memory that ranks share."""
        if self.copy is not None:
            self._move(self.copy, self.array)
            self.copy = None

    def _move(self, old: Array, new: Array) -> None:
        """Make tensors with elements in `old` use the same part of `new`."""
        bytes_ = new.reshape(-1).view(np.uint8)
        for x, offset in self._tensors_in(old):
            x.array = array_at(bytes_, x.array.shape, x.array.dtype, offset, x.array.strides)

    def _tensors_in(self, at: Array) -> Iterator[tuple[TensorBase, int]]:
        """Iterate over the tensors with elements in the array `at`, and their offsets in it, in bytes."""
        for x in list(self.tensors.values()):
            offset = address(x.array) - address(at)
            if 0 <= offset < max(at.nbytes, 1):
                yield x, offset


class RemoteMemory(ResidentMemory):
    """Memory that this thread cannot address, on a GPU or in pieces on other threads; `fetch` returns its elements.

    `array` has the elements of the last fetch.  When these elements are out of date, the tensors have no array until one of the tensors is read.
    """

    __slots__ = ("fetch", "fetched", "stale")

    def __init__(self, array: Array, fetch: Callable[[], Array]) -> None:
        super().__init__(_read_only(array), array.reshape(-1).view(np.uint8), 0, copies=True)
        self.fetch = fetch
        self.fetched = array
        #: array by id of a tensor; None while `array` holds the current elements
        self.stale: dict[int, Array] | None = None

    def invalidate(self) -> None:
        """Mark the fetched elements as out of date."""
        if self.stale is None:
            tensors = [x for x, _ in self._tensors_in(self.array)]
            self.stale = {id(x): x.array for x in tensors}
            for x in tensors:
                del x._array

    def refresh(self) -> None:
        """Fetch the elements again if the fetched elements are out of date."""
        if self.stale is not None:
            np.copyto(self.fetched, self.fetch())
            stale, self.stale = self.stale, None
            for x in list(self.tensors.values()):
                if id(x) in stale and not has_array(x):
                    x.array = stale[id(x)]


def _read_only(array: Array) -> Array:
    view = array.view()
    view.flags.writeable = False
    return view


class Storage:
    """The state that a tensor and its views share: the number of writes, and the memory that a program assigned to them."""

    __slots__ = ("before", "exported", "reshaped", "resident", "shared", "version")

    def __init__(self) -> None:
        self.version = 0
        self.resident: ResidentMemory | None = None
        #: the layout of the tensor before a graph stored it in another one
        self.before: Layout | None = None
        #: True if a view uses the memory
        self.shared = False
        #: True if a tensor with views changed its shape in place
        self.reshaped = False
        #: True if another library has the address of the memory
        self.exported = False

    def wrote(self) -> None:
        """Increment the number of writes to the memory."""
        self.version += 1
        if self.resident is not None:
            self.resident.writes += 1


class TensorBase:
    """Base class of Tensor: state and properties, without operations."""

    __slots__ = (
        "__dict__",
        "__weakref__",
        "_array",
        "_copied_from",
        "_device",
        "_gradient",
        "_needs_gradient",
        "_provenance",
        "_retains",
        "_storage",
        "_synced_version",
        "base",
        "hooks",
        "index",
        "layout",
        "node",
        "strides",
        "tensor_type",
        "traced",
    )

    #: makes NumPy arrays on the left of an operator defer to the tensor
    __array_priority__ = 1000

    #: the class of the results of operations, with all methods
    new: ClassVar[Any]

    def __init__(self, type: TensorType, layout: Layout | None, array: Array, traced: Any = None) -> None:
        self.tensor_type = type
        self.layout = layout
        #: `array`; unset while the storage is remote and was written to since it was fetched
        self._array = array
        self.traced = traced
        #: the values of `requires_grad` and `grad` (`jobflow.functional.gradients`)
        self._needs_gradient = False
        self._gradient: Any = None
        #: the recorded operation that computed the tensor, and the index of its output
        self.node: TapeNode | None = None
        self.index = 0
        self.hooks: dict[int, Callable[[Any], Any]] | None = None
        self._retains = False
        self._storage: Storage | None = None
        #: the base of a view and the view operation; `_synced_version` is the version of the memory that its node refers to
        self.base: tuple[Any, Any] | None = None
        self._synced_version = 0
        #: symbolic strides of a view of a global or traced tensor, as if its base were in the memory of one rank
        self.strides: tuple[int, ...] | None = None
        #: storage and version of the base, for a part of a global tensor that is a copy because elements moved between ranks
        self._copied_from: tuple[Storage, int] | None = None
        #: device of a local tensor; None is the host
        self._device: Any = None
        #: provenance of a global tensor: a digest of its computation, the same on all ranks; 0 if unknown
        self._provenance = 0

    # ---------------------------------------------------------------- properties

    @property
    def array(self) -> Array:
        """The elements on this rank, fetched first if the storage is remote; None for a traced tensor."""
        try:
            return self._array
        except AttributeError:
            return self._fetched()

    @array.setter
    def array(self, array: Array) -> None:
        self._array = array

    def _fetched(self) -> Array:
        """Fetch the elements of a remote storage."""
        remote = self.memory.resident
        assert isinstance(remote, RemoteMemory), "the storage of a tensor without an array is remote"
        with scope.lock():
            remote.refresh()
        return self._array

    @property
    def shape(self) -> Size:
        """The shape of the logical tensor."""
        return Size(self.tensor_type.shape)

    @property
    def dtype(self) -> DType:
        return self.tensor_type.dtype

    @property
    def ndim(self) -> int:
        return len(self.tensor_type.shape)

    @property
    def is_global(self) -> bool:
        return self.layout is not None

    @property
    def is_local(self) -> bool:
        return self.layout is None

    @property
    def sbp(self) -> tuple[Sbp, ...]:
        """The sbp of a global tensor, one entry per dimension of the mesh.  Raises: JobError for a local tensor."""
        return self._global("sbp").sbp

    @property
    def placement(self) -> public_placement:
        """The placement of a global tensor.  Raises: JobError for a local tensor."""
        return public_placement.of(self._global("placement").placement)

    def _global(self, what: str) -> Layout:
        if self.layout is None:
            raise JobError(f"{what} at {user_line()}: only global tensors have '{what}'; use 'device' of a local tensor, or to_global")
        return self.layout

    @property
    def is_leaf(self) -> bool:
        """True if no recorded operation computed the tensor, so that `backward` adds its gradient to `grad`."""
        return self.node is None

    @property
    def grad_fn(self) -> TapeNode | None:
        """The recorded operation that computed the tensor; None for leaves."""
        return self.node

    @property
    def version(self) -> int:
        """The number of writes to the memory of the tensor."""
        return 0 if self._storage is None else self._storage.version

    @property
    def memory(self) -> Storage:
        """The storage, which the tensor and its views share; created at the first access."""
        if self._storage is None:
            self._storage = Storage()
        return self._storage

    def wrote(self) -> None:
        """Increment the number of writes to the memory of the tensor."""
        self.memory.wrote()

    def shares(self, view: TensorBase) -> None:
        """Make `view` use the storage of this tensor, with the same number of writes."""
        view._storage, view._copied_from, view.strides = self.memory, self._copied_from, self.strides
        view._storage.shared = True
        if view._storage.resident is not None:
            view._storage.resident.tensors[id(view)] = view

    #: tensors are keys by identity
    __hash__ = object.__hash__


def has_array(x: TensorBase) -> bool:
    """Return True unless the elements must be fetched from a remote storage first."""
    return hasattr(x, "_array")


def attach_memory(x: TensorBase, resident: ResidentMemory) -> None:
    """Make x use this memory for its elements."""
    x.memory.resident, x.array = resident, resident.array
    resident.tensors[id(x)] = x


def note_export(x: TensorBase) -> None:
    """Note that another library may read and write the memory of x: programs keep this memory and never rely on copies of its elements."""
    x.memory.exported = True
    if x.memory.resident is not None:
        x.memory.resident.exported = True


def lasting_array(x: TensorBase) -> Array:
    """Return the array of x, after moving tensors out of memory that the next run of their program overwrites.

    A NumPy view of the array therefore retains its elements.
    """
    resident = None if x._storage is None else x._storage.resident
    if resident is not None and resident.transient:
        resident._move(resident.array, duplicate(resident.array))
    return x.array


def move_memory(x: TensorBase, resident: ResidentMemory) -> None:
    """Make x use the memory `resident` for its elements; views of x that use its old memory are unchanged."""
    if not has_array(x) or address(resident.array) != address(x.array):
        before = x.memory.before
        x._storage = None
        x.memory.before = before
    attach_memory(x, resident)


def shows(x: TensorBase, view: TensorBase) -> None:
    """Make `view` use the memory of x, with a number of writes that is independent of x."""
    view._copied_from, view.strides = x._copied_from, x.strides
    if x._storage is not None and x._storage.resident is not None:
        view.memory.resident = x._storage.resident
        x._storage.resident.tensors[id(view)] = view


def check_current(x: TensorBase) -> None:
    """Raise JobError if x is a copied part of a global tensor, and the global tensor was overwritten after the copy."""
    if x._copied_from is not None and x._copied_from[0].version != x._copied_from[1]:
        raise JobError(
            f"reading a tensor at {user_line()}: {x.tensor_type} is a copied part of a global tensor, because its elements moved between ranks; the "
            f"tensor was written to since, so the part is out of date; select it again, or clone() it before the write to use the old values"
        )


def check_memory(x: TensorBase, what: str) -> None:
    """Raise JobError if x cannot be overwritten: x is a copied part, its NumPy array is read-only, or several elements share memory."""
    if x._copied_from is not None:
        raise JobError(
            f"{what} at {user_line()}: {x.tensor_type} is a copied part of a global tensor, because its elements moved between ranks; a write to it "
            f"would be lost; assign to the tensor itself, x[...] = value, or redistribute it first (to_global)"
        )
    if x.traced is not None:
        return
    array = x.array
    flags: Any = array.flags
    if isinstance(array, np.ndarray) and not flags.writeable and (x._storage is None or x._storage.resident is None):
        raise JobError(f"{what} at {user_line()}: {x.tensor_type} has the memory of a read-only NumPy array; clone() it first")
    if not (flags.c_contiguous or flags.f_contiguous) and _overlaps_itself(array):
        raise JobError(f"{what} at {user_line()}: several elements of the tensor {x.tensor_type} share memory; clone() it first")


def _overlaps_itself(array: Array) -> bool:
    """Return True if two elements share memory, as in an array of `numpy.lib.stride_tricks.as_strided`."""
    steps = sorted((abs(step), n) for step, n in zip(array.strides, array.shape, strict=True) if n > 1)
    reach = array.itemsize
    for step, n in steps:
        if step < reach:
            break
        reach += step * (n - 1)
    else:
        return False
    places = np.zeros(1, np.int64)
    for step, n in steps:
        places = np.add.outer(places, step * np.arange(n)).reshape(-1)
    places.sort()
    return bool((np.diff(places) < array.itemsize).any())


def own(x: TensorBase, what: str) -> Array:
    """Return the array of x for writing, in memory of this rank alone.  Raises: JobError as `check_memory` does."""
    check_memory(x, what)
    array, storage = x.array, x._storage
    if storage is not None and storage.resident is not None and isinstance(array, np.ndarray) and not array.flags.writeable:
        storage.resident.evict()
        return x.array
    return array


def __getattr__(name: str) -> Any:
    """Return the tensor class for the name `Tensor`, which pickles of older versions contain; raise AttributeError for other names."""
    if name == "Tensor":
        return TensorBase.new
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
