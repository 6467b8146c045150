"""Lookup of allocations by address, while arrays are collected in any thread."""

from __future__ import annotations

import threading

import numpy as np

from jobflow.runtime.comm.record import MemoryRange, Regions


def test_arrays_that_another_thread_collects_are_forgotten_in_order() -> None:
    regions, dropped, stop = Regions(), [], threading.Event()

    def collect() -> None:
        while not stop.is_set():
            if dropped:
                dropped.pop()

    thread = threading.Thread(target=collect)
    thread.start()
    try:
        remaining: list[tuple[MemoryRange, np.ndarray]] = []  # type: ignore[type-arg]
        for number in range(3000):
            array = np.zeros(8 + number % 64, np.uint8)
            location = MemoryRange(number, 0, array.nbytes)
            regions.add(location, array)
            if number % 4:
                dropped.append(array)
            else:
                remaining.append((location, array))
            for known, mine in remaining[-3:]:
                assert regions.locate(mine) == known
                assert regions.locate(mine[3:5]) == known._replace(offset=3, nbytes=2)
    finally:
        stop.set()
        thread.join()


def test_reused_memory_belongs_to_the_new_allocation() -> None:
    regions, memory = Regions(), np.zeros(64, np.uint8)
    gone: list[int] = []
    for number in range(3):
        array = np.frombuffer(memoryview(memory), np.uint8)  # type: ignore[arg-type]
        regions.add(MemoryRange(number, 0, 64), array, lambda number=number: gone.append(number))  # type: ignore[misc]
        assert regions.locate(array[8:16]) == MemoryRange(number, 8, 8) and gone == [*range(number)]
        del array
    assert gone == [0, 1, 2] and regions.locate(memory) is None
