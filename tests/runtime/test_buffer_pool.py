"""Buffers return to the pool as soon as they are unreachable."""

from __future__ import annotations

import gc
import os
import pickle
import threading
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

import jobflow as flow
from jobflow.core.errors import ShapeError
from jobflow.core.types import TensorType, float32
from jobflow.runtime.buffer_pool import POOL, SMALLEST, BufferPool, Lease, owns_memory

TYPE = TensorType((128, 256), float32)
SIDE = 256

#: by name: an object that keeps the memory of an array reachable
HOLDERS: dict[str, Callable[[Any], Any]] = {
    "array": lambda a: a,
    "view": lambda a: a[3:7, ::2],
    "view of a view": lambda a: a[1:][1:].T[5:],
    "other type": lambda a: a.view(np.int32)[1:2],
    "memoryview": lambda a: memoryview(a)[2:3],
    "capsule": lambda a: np.from_dlpack(a)[4:],
    "lease": lambda a: a.base,
    "part of the lease": lambda a: a.base[8:],
    "generator": lambda a: (row for row in a),
    "iterator": lambda a: iter(a),
    "cycle": lambda a: _cycle(a),
}


def _cycle(a: Any) -> list[Any]:
    holder: list[Any] = [a]
    holder.append(holder)
    return holder


@pytest.fixture
def pool() -> BufferPool:
    return BufferPool(1 << 30)


def free(pool: BufferPool) -> int:
    return sum(len(each.free) for each in pool.classes.values())


@pytest.mark.parametrize("name", HOLDERS)
def test_a_buffer_is_freed_with_its_last_reference(name: str, pool: BufferPool) -> None:
    array = pool.allocator(TYPE)()
    assert owns_memory(array) and isinstance(array.base, Lease)
    holder = HOLDERS[name](array)
    if name == "generator":
        next(holder)
    del array
    assert free(pool) == 0
    other = pool.allocator(TYPE)()
    assert free(pool) == 0
    del holder, other
    if name == "cycle":
        gc.collect()
    assert free(pool) == 2


def test_arrays_are_aligned_and_reuse_memory(pool: BufferPool) -> None:
    take = pool.allocator(TYPE)
    first = take()
    start = first.ctypes.data
    assert start % 64 == 0 and first.flags.c_contiguous and first.flags.writeable and first.shape == TYPE.shape and first.dtype == np.float32
    del first
    assert take().ctypes.data == start


def test_small_arrays_are_not_pooled(pool: BufferPool) -> None:
    array = pool.allocator(TensorType((SMALLEST // 4 - 1,), float32))()
    assert array.base is None and not pool.classes


@pytest.mark.parametrize("nbytes", [SMALLEST, SMALLEST + 1, 100_000, 1 << 20, (1 << 20) + 1, 3_000_000_001])
def test_at_most_an_eighth_of_a_buffer_is_unused(nbytes: int, pool: BufferPool) -> None:
    assert nbytes <= pool.size_class(nbytes).nbytes <= nbytes * 9 / 8 + 1


def test_free_bytes_stay_below_the_limit() -> None:
    pool = BufferPool(3 << 20)
    for size in range(1, 40):
        arrays = [pool.array((size * 20_000,), np.dtype(np.float32)) for _ in range(3)]
        arrays.clear()
        assert pool.held == sum(each.nbytes * len(each.free) for each in pool.classes.values()) <= (3 << 20) + size * 90_000
    pool.clear()
    assert free(pool) == pool.held == 0


def test_threads_never_share_a_buffer(pool: BufferPool) -> None:
    """Threads fill arrays with their numbers and find them unchanged while other threads drop theirs."""
    take, wrong, passed_on = pool.allocator(TYPE), list[int](), list[Any]()

    def work(number: int) -> None:
        for _ in range(200):
            arrays = [take() for _ in range(3)]
            for a in arrays:
                a.fill(number)
            passed_on.append(arrays.pop())  # dies in another thread
            if len(passed_on) > 20:
                passed_on.pop(0)
            wrong.extend(number for a in arrays if not (a == number).all())

    threads = [threading.Thread(target=work, args=(k,)) for k in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_a_child_process_has_separate_buffers(pool: BufferPool) -> None:
    take = pool.allocator(TYPE)
    held, dropped = take(), take()
    held.fill(1)
    del dropped
    child = os.fork()
    if not child:
        take().fill(2)
        os._exit(0 if (held == 1).all() else 1)
    assert os.waitpid(child, 0)[1] == 0 and (held == 1).all()


def test_pickled_arrays_are_copies(pool: BufferPool) -> None:
    array = pool.allocator(TYPE)()
    array.fill(3)
    copy = pickle.loads(pickle.dumps(array))
    assert copy.base is None or not isinstance(copy.base, Lease)
    assert (copy == 3).all()


# -------------------------------------------------------------------- tensors


def square(value: float) -> flow.Tensor:
    """Return a tensor in a pooled buffer."""
    return flow.ones((SIDE, SIDE)) * value


def churn() -> None:
    """Allocate and overwrite the free buffers."""
    for _ in range(4):
        tensors = [square(-7.0) + 0.0 for _ in range(6)]
        del tensors


def _after_an_error() -> Any:
    x = square(5.0)
    with pytest.raises(ShapeError, match="matmul"):
        (x + 0.0) @ flow.ones((3, 3))
    return x


def _through_a_generator() -> Iterator[Any]:
    x = square(5.0)
    yield None
    yield x


#: by name: an object made of a tensor of fives that is dropped, and how to read it as an array
PROGRAMS: dict[str, Callable[[], Any]] = {
    "numpy": lambda: square(5.0).numpy(),
    "view": lambda: square(5.0)[3:, 2:],
    "transposed": lambda: square(5.0).T,
    "detached": lambda: square(5.0).detach(),
    "numpy of a view": lambda: square(5.0)[1:].T.numpy(),
    "written in place": lambda: square(2.0).add_(3.0),
    "view written in place": lambda: square(2.0)[:].add_(3.0),
    "shared by from_numpy": lambda: flow.from_numpy(square(5.0).numpy()),
    "after an error": _after_an_error,
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_reachable_values_survive(name: str) -> None:
    value = PROGRAMS[name]()
    churn()
    array = value.numpy() if isinstance(value, flow.Tensor) else value
    assert (array == 5.0).all()


def test_values_in_a_suspended_generator_survive() -> None:
    generator = _through_a_generator()
    next(generator)
    churn()
    assert (next(generator).numpy() == 5.0).all()


def test_gradients_survive_later_steps() -> None:
    """Gradients held by a program, saved values of a retained graph, and accumulated gradients survive."""
    w = flow.ones((SIDE, SIDE)).requires_grad_()
    held = []
    for step in range(1, 4):
        w.grad = None
        loss = (w * float(step)).sum()
        loss.backward()
        held.append(w.grad)
        churn()
    assert [float(g.numpy().mean()) for g in held] == [1.0, 2.0, 3.0]
    w.grad = None
    y = (w * w).sum()
    y.backward(retain_graph=True)
    churn()
    y.backward()
    assert (w.grad.numpy() == 4.0).all()


def test_a_hook_may_keep_a_gradient() -> None:
    w, gradients = flow.ones((SIDE, SIDE)).requires_grad_(), []
    w.register_hook(lambda gradient: gradients.append(gradient))
    (w * 3.0).sum().backward()
    w.grad.add_(1.0)
    churn()
    assert (gradients[0].numpy() == 3.0).all() and (w.grad.numpy() == 4.0).all()


def test_tensors_return_their_buffers() -> None:
    POOL.clear()
    x = square(1.0)
    before = POOL.held
    del x
    assert POOL.held > before


@pytest.mark.parametrize(("first", "second", "reused"), [(4, 3, True), (4, 1, True), (5, 1, False), (3, 4, False)])
def test_a_free_buffer_of_a_larger_class_is_used_before_a_new_one(pool: BufferPool, first: int, second: int, reused: bool) -> None:
    large = pool.array((first * SMALLEST,), np.dtype(np.uint8))
    start = large.ctypes.data
    del large
    array = pool.array((second * SMALLEST,), np.dtype(np.uint8))
    assert (array.ctypes.data == start) == reused
    assert pool.held == free(pool) * first * SMALLEST
    del array
    assert free(pool) == (1 if reused else 2)
    assert pool.held == sum(each.nbytes * len(each.free) for each in pool.classes.values())
