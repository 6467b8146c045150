"""The GPUs of eager tensors: the GPU that holds a tensor, copies to and from the host, and the calls of operations.

A tensor on a GPU has a CuPy array in place of a NumPy array.  This array alone selects the device on which operations of the tensor run.
`EagerState.gpus` contains the GPUs that tensors have used so far.  While it is empty, operations do not search for GPUs.

The operations of a GPU run in the order of the program on the stream of its device.  This stream is the current stream of each thread that
uses the GPU, also for CuPy.  Operations return before the GPU has computed them, and only reads of elements wait.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

import jobflow.core.scope as scope
from jobflow.core.errors import PlacementError, called_function, counted, user_line
from jobflow.core.layout import Layout, Placement
from jobflow.core.types import Array, DType, TensorType
from jobflow.engine.session import current_session
from jobflow.kernels import registry
from jobflow.kernels.cuda.eager_launches import ALIGNMENT, PreparedLaunches, prepare
from jobflow.kernels.eager_calls import bind_chain
from jobflow.kernels.target import Target
from jobflow.ops.chain import Chain
from jobflow.ops.op import Binder, Call, Op
from jobflow.ops.runtime_assertions import RuntimeAssertion
from jobflow.runtime.device import cuda_device as cuda
from jobflow.runtime.device.cuda_facts import PoolBytes, is_pinned, memory_info, pool_bytes
from jobflow.runtime.device.cuda_memory import size_text
from jobflow.runtime.device.device import OutOfMemory
from jobflow.runtime.world.environment import launched
from jobflow.tensors.pending_assertions import PendingAssertions
from jobflow.tensors.state import EagerState, state

if TYPE_CHECKING:
    from jobflow.tensors.tensor import TensorBase

#: layouts of operands for which an operation keeps launches
MOST_LAYOUTS = 8
#: bytes; larger allocations update the peak of the memory statistics
TRACKED = 1 << 20


class EagerGpu:
    """A GPU of this rank, with its kernels, the memory of its tensors, and the operations that are prepared for it."""

    def __init__(self, device: Any) -> None:
        self.device = device
        self.index: int = device.index
        self.xp: Any = device.xp
        #: prepared operations, as `EagerState.prepared`
        self.prepared: dict[Any, Any] = {}
        #: tensors of constants, by element type and value
        self.constants: dict[Any, Any] = {}
        self.assertions = PendingAssertions(self)
        self._peak = PoolBytes(0, 0)
        #: held while a thread uses the page-locked memory of the device
        self._copying = threading.Lock()
        #: copies from page-locked memory that may not have ended
        self._sending: deque[tuple[Any, Array]] = deque()

    def __repr__(self) -> str:
        return f"cuda:{self.index}"

    @property
    def target(self) -> Target:
        """The target of the kernels, as the session selects it.  Operations are bound to arrays without memory, so products are not timed."""
        return current_session().settings.computing.target("gpu", timed=False)

    def activate(self) -> None:
        """Make this GPU and its stream the current ones of the calling thread."""
        self.device.activate()

    # ---------------------------------------------------------------- memory

    def scratch(self, shape: tuple[int, ...], dtype: DType) -> Array:
        """Return uninitialised memory for one operation; CuPy's pool reuses freed memory in the order of the stream."""
        return self.empty(shape, dtype.numpy)

    def empty(self, shape: tuple[int, ...], dtype: Any) -> Array:
        """Return an uninitialised array; the GPU must be active.  Raises: OutOfMemory."""
        try:
            array: Array = self.xp.empty(shape, dtype)
        except MemoryError:
            raise self._too_large(shape, np.dtype(dtype)) from None
        if array.nbytes >= TRACKED:
            self.peak()
        return array

    def memory(self) -> PoolBytes:
        """Return the bytes of arrays in use, and the bytes that the pool has reserved."""
        return pool_bytes(self.index)

    def peak(self) -> PoolBytes:
        """Return the largest numbers of `memory` so far, except for the peaks of arrays below `TRACKED` bytes."""
        self._peak = PoolBytes(*map(max, self._peak, self.memory()))
        return self._peak

    def reset_peak(self) -> None:
        """Set the largest numbers of bytes to the present numbers."""
        self._peak = self.memory()

    def _too_large(self, shape: tuple[int, ...], dtype: np.dtype[Any]) -> OutOfMemory:
        free, total = memory_info(self.index)
        needed = dtype.itemsize * int(np.prod(shape, dtype=object))
        return OutOfMemory(
            f"{called_function() or 'allocation'} at {user_line()}: a tensor of {size_text(needed)} does not fit into the memory of {self}, of which "
            f"{size_text(free)} of {size_text(total)} are free; use smaller sizes, or delete tensors"
        )

    def allocator(self, type: TensorType) -> Callable[[], Array]:
        """Return a function that returns uninitialised arrays of this type."""
        return partial(self.empty, type.shape, type.dtype.numpy)

    def upload(self, array: Array, direct: bool = False) -> Array:
        """Return a copy of a NumPy array on this GPU; `array` may be changed after return.

        With `direct`, the GPU copies from page-locked memory itself, so that the caller must not change the array before the copy has ended.
        """
        self.activate()
        target = self.empty(array.shape, array.dtype)
        with self._copying:
            if direct and array.size and array.flags.c_contiguous and is_pinned(array):
                self._send(target, array)
            else:
                self.device.upload(target, array)
        return target

    def _send(self, target: Array, array: Array) -> None:
        """Copy page-locked memory to this GPU without waiting, and keep the memory until the copy has ended."""
        target.set(array, stream=self.device.stream)
        event = self.device.new_event()
        event.record(self.device.stream)
        while self._sending and self._sending[0][0].done:
            self._sending.popleft()
        self._sending.append((event, array))

    def pinned(self, array: Array) -> Array:
        """Return a copy of a NumPy array in page-locked memory."""
        host: Array = self.device.host_array(array.size, array.dtype).reshape(array.shape)
        host[...] = array
        return host

    def write(self, target: Array, source: Array) -> None:
        """Copy the elements of a NumPy array, or of an array on any GPU, to an array on this GPU, cast to its element type."""
        if isinstance(source, np.ndarray):
            self.activate()
            with self._copying:
                self.device.upload(target, np.broadcast_to(source, target.shape))
            return
        if source.device.id != self.index:
            source = self.received(source)
        self.activate()
        target[...] = source

    def download(self, array: Array) -> Array:
        """Return a NumPy copy of an array on this GPU; wait until it is computed.

        Raises: the error of a runtime assertion that failed before.
        """
        self.activate()
        host: Array = self.device.to_host(array)
        self.assertions.raise_first()
        return host

    def received(self, array: Array) -> Array:
        """Return a copy on this GPU of an array on another GPU, through the memory of the host."""
        source = gpu_of(array)
        assert source is not None
        source.activate()
        return self.upload(source.device.to_host(array))

    def synchronize(self) -> None:
        """Wait for all operations; raise the error of a runtime assertion that failed."""
        self.activate()
        self.device.synchronize()
        self.assertions.raise_first()

    # ---------------------------------------------------------------- operations

    def calls(self, op: Op) -> GpuCalls:
        """Return an object that runs an operation on arrays of this GPU."""
        return GpuCalls(op, self)

    def compute(self, op: Op, arrays: Sequence[Array], types: Sequence[TensorType]) -> list[Array]:
        """Run an operation on NumPy arrays or arrays of this GPU, and return the results as new arrays of these types."""
        inputs = [self.upload(array) if isinstance(array, np.ndarray) else array for array in arrays]
        self.activate()
        outputs = [self.empty(type.shape, type.dtype.numpy) for type in types]
        self.calls(op).run(None, inputs, outputs)
        return outputs


class GpuCalls:
    """The calls of an operation on one GPU; launches of printed kernels are prepared once for each layout of the operands."""

    def __init__(self, op: Op, gpu: EagerGpu) -> None:
        self._op, self._gpu = op, gpu
        self._bind = partial(_bind, op, gpu.target)
        #: by strides and alignment of the operands; None if they are bound at each run
        self._prepared: dict[Any, PreparedLaunches | None] = {}

    def run(self, _: Any, inputs: Sequence[Array], outputs: Sequence[Array]) -> None:
        """Launch the operation on these arrays; the GPU must be active."""
        if isinstance(self._op, RuntimeAssertion):
            self._gpu.assertions.check(self._op, inputs[0], outputs[0])
            return
        operands = (*inputs, *outputs)
        key = tuple([(a.strides, a.data.ptr % ALIGNMENT) for a in operands])
        launches = self._prepared.get(key)
        if launches is None and key not in self._prepared and len(self._prepared) < MOST_LAYOUTS:
            launches = self._prepared[key] = prepare(self._bind, self._gpu.xp, self._gpu.index, inputs, outputs)
        if launches is None or (self._op.alias and self._shares_memory(inputs)):
            for function, arguments in self._bind(self._gpu, inputs, outputs):
                function(*arguments)
        else:
            launches.run(operands, self._gpu.scratch)

    def _shares_memory(self, inputs: Sequence[Array]) -> bool:
        """Return True if an input that is updated in place may share memory with another input."""
        return any(may_share_memory(inputs[i], other) for i in set(self._op.alias.values()) for k, other in enumerate(inputs) if k != i)


def _bind(op: Op, target: Target, device: Binder, inputs: Sequence[Array], outputs: Sequence[Array]) -> list[Call]:
    """Return the calls of an operation, or of the operations of a chain."""
    if not isinstance(op, Chain):
        return registry.bind(op, target, device, inputs, outputs)
    return bind_chain(op, lambda step, _, read, results: registry.bind(step, target, device, read, results), device, inputs, outputs)


# -------------------------------------------------------------------- the GPU of a tensor


def gpu_count(here: EagerState) -> int:
    """Return the number of GPUs that this process can use; CUDA_VISIBLE_DEVICES can hide some."""
    if here.gpu_count is None:
        here.gpu_count = cuda.available()
    return here.gpu_count


def own_index(here: EagerState) -> int:
    """Return the number of the GPU of this rank: its number on the machine, modulo the number of GPUs."""
    number = here.rank.index
    if launched() is not None:
        from jobflow.runtime.world.rendezvous import local_rank  # programs of one process need no rendezvous

        number = local_rank()
    return number % max(gpu_count(here), 1)


def open_gpu(here: EagerState, index: int | None, what: str) -> EagerGpu | None:
    """Return GPU number `index` of this process, or the GPU of this rank for None; return None if this process can use no GPU.

    `what` names the caller.  Raises: PlacementError for a GPU that does not exist.
    """
    count = gpu_count(here)
    if not count:
        return None
    number = own_index(here) if index is None else index
    known: EagerGpu | None = here.gpus.get(number)
    if known is not None:
        return known
    if number >= count:
        raise PlacementError(
            f"{what}: the device cuda:{number} does not exist, because this process can use {counted(count, 'GPU')}; use a number from 0 to "
            f"{count - 1}, or change CUDA_VISIBLE_DEVICES"
        )
    with scope.lock():
        if number not in here.gpus:
            device = here.rank.device
            if device.tag != "gpu" or getattr(device, "index", None) != number:
                device = cuda.CudaDevice(number)
            device.activate()
            here.gpus[number] = EagerGpu(device)
    opened: EagerGpu = here.gpus[number]
    return opened


def gpu_of_layout(here: EagerState, layout: Layout | None) -> EagerGpu | None:
    """Return the GPU that holds this rank's piece of a tensor with this layout; None for the host."""
    if layout is None or layout.placement.tag != "cuda" or here.rank.index not in layout.placement.ranks:
        return None
    return open_gpu(here, None, f"placement({layout.placement.tag!r}) at {user_line()}")


def gpu_of(array: Any) -> EagerGpu | None:
    """Return the GPU that holds an array; None for a NumPy array, and for the missing array of a traced tensor."""
    if type(array) is np.ndarray or array is None or isinstance(array, np.ndarray | np.generic):
        return None
    here = state()
    known: EagerGpu | None = here.gpus.get(array.device.id)
    return open_gpu(here, array.device.id, f"a tensor at {user_line()}") if known is None else known


def gpu_of_operation(op: Op, arrays: Sequence[Any]) -> EagerGpu | None:
    """Return the GPU that holds these operands, activated; None if the host holds all of them.

    Raises: PlacementError for operands on several devices.
    """
    devices = {-1 if isinstance(array, np.ndarray) else array.device.id for array in arrays if array is not None}
    if devices <= {-1}:
        return None
    if len(devices) > 1:
        names = [device_name(array) for array in arrays]
        raise PlacementError(f"{op.word()}: the inputs are on different devices ({', '.join(names)}); move them to one device with x.to(device)")
    gpu = gpu_of(next(array for array in arrays if array is not None))
    assert gpu is not None
    gpu.activate()
    return gpu


def anchor_of(x: TensorBase) -> Placement | EagerGpu | None:
    """Return the placement of a global tensor, or the GPU of a local tensor; None for a local tensor on the host."""
    return gpu_of(getattr(x, "_array", None)) if x.layout is None else x.layout.placement


def device_name(array: Any) -> str:
    """Return the name of the device that holds an array, such as "cuda:0"."""
    return "cpu" if isinstance(array, np.ndarray) else f"cuda:{array.device.id}"


# -------------------------------------------------------------------- arrays on any device


def as_numpy(array: Array) -> Array:
    """Return the array itself if it is a NumPy array, otherwise a NumPy copy; wait for the GPU in this case."""
    gpu = gpu_of(array)
    return array if gpu is None else gpu.download(array)


def on_device(gpu: EagerGpu | None, array: Array, direct: bool = False) -> Array:
    """Return the array itself if it is on this GPU, or on the host for None; otherwise return a copy there.  `direct` is as in `upload`."""
    if gpu is None:
        return as_numpy(array)
    if isinstance(array, np.ndarray):
        return gpu.upload(array, direct)
    return array if array.device.id == gpu.index else gpu.received(array)


def placed(here: EagerState, array: Array, layout: Layout | None) -> Array:
    """Return this rank's piece of a tensor with this layout, on the device of its placement."""
    if layout is None or layout.placement.tag != "cuda":
        return array if isinstance(array, np.ndarray) else as_numpy(array)
    return on_device(gpu_of_layout(here, layout), array)


def write(target: Array, source: Array) -> None:
    """Copy the elements of `source` to `target`, which may be on different devices, cast to the element type of `target`."""
    gpu = gpu_of(target)
    if gpu is None:
        target[...] = as_numpy(source)
    else:
        gpu.write(target, source)


def duplicate(array: Array) -> Array:
    """Return a copy of an array on the same device, in row-major order on a GPU."""
    gpu = gpu_of(array)
    if gpu is None:
        return array.copy()
    gpu.activate()
    copy = gpu.empty(tuple(array.shape), array.dtype)
    copy[...] = array
    return copy


def in_rows(array: Array) -> Array:
    """Return the array itself if its elements are contiguous in row-major order, otherwise a copy that is."""
    if isinstance(array, np.ndarray):
        return np.asarray(array, order="C")
    return array if array.flags.c_contiguous else duplicate(array)


def zeros(like: Array, shape: tuple[int, ...], dtype: DType) -> Array:
    """Return zeros on the device of the array `like`."""
    gpu = gpu_of(like)
    if gpu is None:
        return np.zeros(shape, dtype.numpy)
    gpu.activate()
    array = gpu.empty(shape, dtype.numpy)
    array.fill(0)
    return array


def fill(array: Array, number: Any) -> None:
    """Set all elements of an array to a number."""
    gpu = gpu_of(array)
    if gpu is not None:
        gpu.activate()
    array.fill(number)


def array_at(buffer: Array, shape: tuple[int, ...], dtype: Any, offset: int, strides: tuple[int, ...]) -> Array:
    """Return an array in the bytes `buffer`, from byte `offset` on."""
    if isinstance(buffer, np.ndarray):
        return np.ndarray(shape, dtype, buffer, offset, strides)
    gpu = gpu_of(buffer)
    assert gpu is not None
    array: Array = gpu.xp.ndarray(shape, dtype, memptr=buffer.data + offset, strides=strides)
    return array


def address(array: Array) -> int:
    """Return the address of the first element, in the memory of the device that holds the array."""
    start: int = array.__array_interface__["data"][0] if isinstance(array, np.ndarray) else array.data.ptr
    return start


def may_share_memory(a: Array, b: Array) -> bool:
    """Return True if two arrays may have elements in the same memory; arrays on different devices have none."""
    if isinstance(a, np.ndarray) and isinstance(b, np.ndarray):
        return bool(np.may_share_memory(a, b))
    if isinstance(a, np.ndarray) or isinstance(b, np.ndarray) or a.device.id != b.device.id:
        return False
    (first, last), (begin, end) = byte_bounds(a), byte_bounds(b)
    return first < end and begin < last


def byte_bounds(array: Array) -> tuple[int, int]:
    """Return the addresses of the first byte of the elements, and of the byte after the last."""
    if not array.size:
        return 0, 0
    first = address(array)
    last = first + array.itemsize
    for step, n in zip(array.strides, array.shape, strict=True):
        if step < 0:
            first += step * (n - 1)
        else:
            last += step * (n - 1)
    return first, last
