"""Copies between page-locked memory of the host and a GPU, which the host starts without waiting for the GPU."""

from __future__ import annotations

import threading
import weakref
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from itertools import accumulate, groupby
from typing import Any

import numpy as np

from jobflow.core.types import Array
from jobflow.runtime.device.cuda_facts import is_pinned

#: alignment in bytes of an array in page-locked memory
ALIGNMENT = 256
#: bytes of the first page-locked buffers, and of the largest
FIRST, LARGEST = 1 << 16, 32 << 20
#: buffers that take turns: the host fills one while the GPU reads the other
SIDES = 2
#: bytes of an argument that is copied separately
SEPARATE = 4 << 20


class StreamCopies:
    """Copies on one stream through page-locked memory.

    `host_array(count, dtype)` returns page-locked memory, and `wait(event)` waits for an event.  `enqueuing` is held while work is enqueued.
    """

    def __init__(
        self,
        stream: Any,
        new_event: Callable[[], Any],
        host_array: Callable[[int, Any], Array],
        wait: Callable[[Any], None],
        enqueuing: AbstractContextManager[Any],
    ) -> None:
        self._stream, self._new_event, self._host_array, self._wait, self._enqueuing = stream, new_event, host_array, wait, enqueuing
        self._lock = threading.Lock()


class Uploads(StreamCopies):
    """Copies of host arrays to a GPU, in the order of a stream, through two page-locked buffers that take turns.

    The lock is held until a copy has started, because an event after it protects the page-locked memory.
    """

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self._buffers: list[Array | None] = [None] * SIDES
        self._events = [self._new_event() for _ in range(SIDES)]
        self._recorded = [False] * SIDES
        self._side = self._used = 0

    def copy(self, target: Array, value: Array) -> None:
        """Copy `value` to a contiguous array of the same shape; `value` may be changed after return."""
        if target.nbytes <= LARGEST:
            with self._lock:
                staged = self._take(target.nbytes).view(target.dtype).reshape(target.shape)
                np.copyto(staged, value, casting="unsafe")
                with self._enqueuing:
                    target.set(staged, stream=self._stream)
            return
        source, flat = np.ascontiguousarray(value, target.dtype).reshape(-1), target.reshape(-1)
        step = LARGEST // target.itemsize
        for start in range(0, flat.size, step):
            piece = flat[start : start + step]
            self.copy(piece, source[start : start + step])

    def _take(self, nbytes: int) -> Array:
        """Return page-locked memory that no earlier copy reads."""
        buffer = self._buffers[self._side]
        if buffer is None or self._used + nbytes > buffer.size:
            if self._used:
                self._turn()
            buffer = self._buffers[self._side]
            if buffer is None or nbytes > buffer.size:
                largest = max((b.size for b in self._buffers if b is not None), default=0)
                buffer = self._buffers[self._side] = self._host_array(max(nbytes, min(2 * largest, LARGEST), FIRST), "uint8")
        start = self._used
        self._used = -(-(start + nbytes) // ALIGNMENT) * ALIGNMENT
        return buffer[start : start + nbytes]

    def _turn(self) -> None:
        """Switch to the other buffer, after the copies from it."""
        with self._enqueuing:
            self._events[self._side].record(self._stream)
        self._recorded[self._side] = True
        self._side, self._used = (self._side + 1) % SIDES, 0
        if self._recorded[self._side] and not self._events[self._side].done:
            self._wait(self._events[self._side])
        self._recorded[self._side] = False


class Downloads(StreamCopies):
    """Copies of arrays of a GPU to the host, through page-locked memory."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        #: copies that may be incomplete, with their memory, which nothing else may use before: the caller may drop the result of `start`
        self._unfinished: deque[tuple[Any, list[Array]]] = deque()

    def start(self, arrays: Sequence[Array]) -> Callable[[], list[Array]]:
        """Start the copies; the result waits for them, and returns NumPy arrays."""
        hosts = [self._host_array(array.size, array.dtype).reshape(array.shape) for array in arrays]
        done = self._new_event()
        with self._enqueuing:
            for array, host in zip(arrays, hosts, strict=True):
                array.get(stream=self._stream, out=host, blocking=False)
            done.record(self._stream)
        with self._lock:
            while self._unfinished and self._unfinished[0][0].done:
                self._unfinished.popleft()
            self._unfinished.append((done, hosts))

        def finish() -> list[Array]:
            self._wait(done)
            return [np.array(host) for host in hosts]

        return finish

    def large_array(self, cupy: Any, array: Array) -> Array:
        """Return a NumPy copy of a large array; the host copies one piece while the GPU copies the next."""
        with self._enqueuing:
            flat = cupy.ascontiguousarray(array).reshape(-1)
        result = np.empty(flat.shape, array.dtype)
        step = LARGEST // array.itemsize
        buffers = [self._host_array(step, array.dtype) for _ in range(SIDES)]
        events = [self._new_event() for _ in range(SIDES)]
        starts = range(0, flat.size, step)
        for turn, start in enumerate([*starts, None]):
            if start is not None:
                piece = flat[start : start + step]
                with self._enqueuing:
                    piece.get(stream=self._stream, out=buffers[turn % SIDES][: piece.size], blocking=False)
                    events[turn % SIDES].record(self._stream)
            if turn:
                before = starts[turn - 1]
                try:
                    self._wait(events[(turn - 1) % SIDES])
                except BaseException:
                    with self._lock:
                        self._unfinished.extend((event, [buffer]) for event, buffer in zip(events, buffers, strict=True))
                    raise
                part = result[before : before + step]
                part[...] = buffers[(turn - 1) % SIDES][: part.size]
        return result.reshape(array.shape)


class Feeder:
    """Copies of a step's arguments to fixed arrays of a GPU, concurrent with the step before.

    The arguments are copied into one of two page-locked blocks.  Copies on a stream of their own bring the block to the GPU, and copies
    within the GPU bring each argument to its array.  The host waits if the GPU is two steps behind.

    Adjacent small arguments are brought by one copy.  A large one is brought in pieces, while threads copy its next pieces into the block.  The
    GPU reads a large argument in page-locked memory itself; then the host waits for the copy.
    """

    def __init__(
        self,
        targets: Sequence[Array],
        compute: Any,
        copying: Any,
        new_event: Callable[[], Any],
        blocks: Sequence[tuple[Array, Array]],
        wait: Callable[[Any], None],
    ) -> None:
        """`blocks` are pairs of page-locked memory and memory of the GPU, of the size `block_bytes(targets)`."""
        self._compute, self._copying, self._wait = compute, copying, wait
        *offsets, end = _offsets(targets)
        groups = [list(group) for _, group in groupby(range(len(targets)), lambda k: k if targets[k].nbytes >= SEPARATE else -1)]
        windows = [slice(offsets[group[0]], [*offsets, end][group[-1] + 1]) for group in groups]
        #: the arguments that are copied together, and their bytes in each block
        self._groups = [(group, [(host[part], device[part]) for host, device in blocks]) for group, part in zip(groups, windows, strict=True)]
        self._hosts = [[_part(host, at, target) for at, target in zip(offsets, targets, strict=True)] for host, _ in blocks]
        parts = [[_part(device, at, target) for at, target in zip(offsets, targets, strict=True)] for _, device in blocks]
        self._targets, self._parts, self._blocks = targets, parts, blocks
        self._arrived = [new_event() for _ in blocks]
        self._read = [new_event() for _ in blocks]
        weakref.finalize(self, finish, self._arrived).atexit = False
        self._turn = 0

    def feed(self, values: Sequence[Array]) -> None:
        """Copy one array to each target; arrays of the host may be changed after return, arrays of the GPU are read in stream order."""
        side = self._turn % len(self._blocks)
        from_host = [isinstance(value, np.ndarray) for value in values]
        if any(from_host):
            self._bring(side, [value if is_host else None for value, is_host in zip(values, from_host, strict=True)])
        for target, part, value, is_host in zip(self._targets, self._parts[side], values, from_host, strict=True):
            target[...] = part if is_host else value
        if any(from_host):
            self._read[side].record(self._compute)
            self._turn += 1

    def _bring(self, side: int, values: Sequence[Array | None]) -> None:
        """Copy the arrays of the host to a block of the GPU."""
        if self._turn >= len(self._blocks):
            if not self._arrived[side].done:  # the copy from this page-locked block, two steps ago
                self._wait(self._arrived[side])
            self._copying.wait_event(self._read[side])
        try:
            direct = self._enqueue(side, values)
        except BaseException:
            self._copying.synchronize()  # the next call writes to the same block
            raise
        self._arrived[side].record(self._copying)
        self._compute.wait_event(self._arrived[side])
        if direct:
            self._wait(self._arrived[side])

    def _enqueue(self, side: int, values: Sequence[Any]) -> bool:
        """Start the copies; return True if the GPU reads memory of the caller."""
        direct = False
        for group, windows in self._groups:
            present = [k for k in group if values[k] is not None]
            if len(present) == 1 and self._targets[present[0]].nbytes >= SEPARATE:
                direct |= self._bring_large(self._parts[side][present[0]], self._hosts[side][present[0]], values[present[0]])
                continue
            for k in present:
                np.copyto(self._hosts[side][k], values[k], casting="unsafe")
            if present:
                host, device = windows[side]
                device.set(host, stream=self._copying)
        return direct

    def _bring_large(self, part: Array, staged: Array, value: Any) -> bool:
        """Start the copy of one array; return True if the GPU reads its memory."""
        if value.dtype == staged.dtype and value.flags.c_contiguous and is_pinned(value):
            part.set(value, stream=self._copying)
            return True
        from jobflow.runtime.device.host_copies import copied_pieces  # processes without a GPU do not need it

        for piece, start in copied_pieces(staged, value):
            window = type(part)(piece.shape, piece.dtype, memptr=part.data + start * piece.itemsize)
            window.set(piece, stream=self._copying)
        return False


def block_bytes(targets: Sequence[Array]) -> int:
    """Return the bytes of a block for one value per target."""
    return _offsets(targets)[-1] if targets else 0


def _offsets(targets: Sequence[Array]) -> list[int]:
    return list(accumulate((-(-target.nbytes // ALIGNMENT) * ALIGNMENT for target in targets), initial=0))


def _part(block: Array, start: int, target: Array) -> Array:
    """Return the array with the shape and type of `target` at byte `start` of a block."""
    if isinstance(block, np.ndarray):
        return np.ndarray(target.shape, target.dtype, block, start)
    return type(block)(target.shape, target.dtype, memptr=block.data + start)


def finish(events: Sequence[Any]) -> None:
    """Wait for copies from page-locked memory, which is freed next."""
    for event in events:
        if not event.done:
            event.synchronize()
