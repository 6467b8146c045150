"""A GPU of eager tensors: memory, copies to and from the host, and the calls of operations."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np

from jobflow.core.errors import called_function, user_line
from jobflow.core.types import Array, DType, TensorType
from jobflow.engine.session import current_session
from jobflow.kernels import registry
from jobflow.kernels.cuda.eager_launches import ALIGNMENT, PreparedLaunches, prepare
from jobflow.kernels.eager_calls import bind_chain
from jobflow.kernels.target import Target
from jobflow.ops.chain import Chain
from jobflow.ops.op import Binder, Call, Op
from jobflow.ops.runtime_assertions import RuntimeAssertion
from jobflow.runtime.device.cuda_arrivals import LEAST
from jobflow.runtime.device.cuda_errors import KernelFailure
from jobflow.runtime.device.cuda_facts import PoolBytes, is_pinned, memory_info, pool_bytes
from jobflow.runtime.device.cuda_memory import size_text
from jobflow.runtime.device.device import OutOfMemory
from jobflow.tensors.gpus import gpu_of, may_share_memory
from jobflow.tensors.pending_assertions import PendingAssertions

#: layouts of operands for which an operation keeps launches
MOST_LAYOUTS = 8
#: bytes; larger allocations update the peak of the memory statistics
TRACKED = 1 << 20


class EagerGpu:
    """A GPU of this rank, with its kernels, the memory of its tensors, and the operations that are prepared for it."""

    #: kernels receive the numbers of operations as arguments, so a new number needs no compilation
    passes_numbers = True

    def __init__(self, device: Any) -> None:
        self.device = device
        self.index: int = device.index
        self.xp: Any = device.xp
        #: prepared operations, as `EagerState.prepared`
        self.prepared: dict[Any, Any] = {}
        #: tensors of constants, by element type and value
        self.constants: dict[Any, Any] = {}
        self.arrivals = device.arrivals(lambda nbytes: self.empty((nbytes,), np.uint8))
        self.assertions = PendingAssertions(self)
        self._peak = PoolBytes(0, 0)
        #: held while a thread changes `_sending`
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
            try:
                self.arrivals.clear()
                array = self.xp.empty(shape, dtype)
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
        direct = direct and array.size > 0 and array.flags.c_contiguous and is_pinned(array)
        if array.nbytes >= LEAST:
            target = self.arrivals.receive(array, direct)
        else:
            target = self.empty(array.shape, array.dtype)
            if direct:
                with self.device.lock:
                    target.set(array, stream=self.device.stream)
            else:
                self.device.upload(target, array)
        if direct:
            self._keep(array)
        return target

    def _keep(self, array: Array) -> None:
        """Keep page-locked memory until copies from it have ended."""
        event = self.device.new_event()
        with self.device.lock:
            event.record(self.device.stream)
        with self._copying:
            while self._sending and self._sending[0][0].done:
                self._sending.popleft()
            self._sending.append((event, array))

    def pinned(self, array: Array) -> Array:
        """Return a copy of a NumPy array in page-locked memory."""
        self.activate()  # a thread without a current device would occupy memory of GPU 0
        host: Array = self.device.host_array(array.size, array.dtype).reshape(array.shape)
        host[...] = array
        return host

    def write(self, target: Array, source: Array) -> None:
        """Copy the elements of a NumPy array, or of an array on any GPU, to an array on this GPU, cast to its element type."""
        if isinstance(source, np.ndarray):
            self.activate()
            self.device.upload(target, np.broadcast_to(source, target.shape))
            return
        if source.device.id != self.index:
            source = self.received(source)
        self.activate()
        with self.device.lock:
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

    def enqueue(self, calls: Sequence[Call]) -> None:
        """Run calls that enqueue work on the stream, which must be the current one."""
        with self.device.lock:
            for function, arguments in calls:
                function(*arguments)

    def calls(self, op: Op) -> GpuCalls:
        """Return an object that runs an operation on arrays of this GPU."""
        return GpuCalls(op, self)

    def calls_like(self, op: Op, array: Array) -> GpuCalls:
        """Return the object that runs an operation on arrays with the shape and element type of `array`; it is created once."""
        key = (op, tuple(array.shape), array.dtype)
        calls: GpuCalls | None = self.prepared.get(key)
        if calls is None:
            calls = self.prepared[key] = self.calls(op)
        return calls

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
        target = gpu.target
        self._bind = partial(_bind, op, target)
        self._synchronous = target.checks.synchronous
        #: by strides and alignment of the operands; None if they are bound at each run
        self._prepared: dict[Any, PreparedLaunches | None] = {}

    def run(self, _: Any, inputs: Sequence[Array], outputs: Sequence[Array]) -> None:
        """Launch the operation on these arrays; the GPU must be active.

        Raises: OutOfMemory.  With `flow.config.debug("sync")`, KernelFailure if a kernel of the operation fails.
        """
        try:
            self._launch(inputs, outputs)
            if self._synchronous:
                self._gpu.device.synchronize()
        except KernelFailure as error:
            raise KernelFailure(f"{self._op.word()} at {user_line()}: {error.__cause__}; the process cannot use the GPU any more") from error
        except MemoryError as error:
            if isinstance(error, OutOfMemory):
                raise
            raise OutOfMemory(f"{self._op.word()} at {user_line()}: temporary memory: {error}; use smaller sizes, or delete tensors") from error

    def run_bound(self, inputs: Sequence[Array], outputs: Sequence[Array]) -> None:
        """Launch the operation, bound to these arrays, which may share memory as in a plan."""
        self._gpu.enqueue(self._bind(self._gpu, inputs, outputs))

    def _launch(self, inputs: Sequence[Array], outputs: Sequence[Array]) -> None:
        if isinstance(self._op, RuntimeAssertion):
            self._gpu.assertions.check(self._op, inputs[0], outputs[0])
            return
        operands = (*inputs, *outputs)
        key = tuple([(a.strides, a.data.ptr % ALIGNMENT) for a in operands])
        launches = self._prepared.get(key)
        if launches is None and key not in self._prepared and len(self._prepared) < MOST_LAYOUTS:
            launches = self._prepared[key] = prepare(self._bind, self._gpu.xp, self._gpu.index, inputs, outputs)
        if launches is None or (self._op.alias and self._shares_memory(inputs)):
            self.run_bound(inputs, outputs)
        else:
            launches.run(operands, self._gpu.scratch, self._gpu.device.lock)

    def _shares_memory(self, inputs: Sequence[Array]) -> bool:
        """Return True if an input that is updated in place may share memory with another input."""
        return any(may_share_memory(inputs[i], other) for i in set(self._op.alias.values()) for k, other in enumerate(inputs) if k != i)


def _bind(op: Op, target: Target, device: Binder, inputs: Sequence[Array], outputs: Sequence[Array]) -> list[Call]:
    """Return the calls of an operation, or of the operations of a chain."""
    if not isinstance(op, Chain):
        return registry.bind(op, target, device, inputs, outputs)
    return bind_chain(op, lambda step, _, read, results: registry.bind(step, target, device, read, results), device, inputs, outputs)
