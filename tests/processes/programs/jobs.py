"""Several Python threads call the jobs of one session concurrently.  Print the names of the cases in which each thread got its own results.

jobs.py DEVICES, or under mpiexec with "single" as DEVICES.
"""

from __future__ import annotations

import sys
import threading

import numpy as np
from together import at_once

import jobflow as flow
import jobflow.typing as tp

THREADS, CALLS = 4, 30
ranks = 1 if sys.argv[1] == "1" else 2
if sys.argv[1] != "single":
    flow.config.cpu_device_num(ranks)


@flow.global_function()
def squared(x: tp.Numpy.Placeholder((1_000,))) -> tp.Numpy:
    return x * x + x


@flow.global_function()
def summed(rows: tp.ListNumpy.Placeholder((64, 8))) -> tp.ListNumpy:
    return flow.math.reduce_sum(rows, axis=[1])


@flow.global_function(type="train")
def train(x: tp.Numpy.Placeholder((4, 3))) -> tp.Numpy:
    """Subtract 0.5 from every weight in every step."""
    w = flow.get_variable("w", shape=(3, 2), initializer=flow.zeros_initializer())
    loss = flow.math.reduce_mean(flow.matmul(x, w))
    flow.optimizer.SGD(flow.optimizer.PiecewiseConstantScheduler([], [1.0]), momentum=0).minimize(loss)
    return loss


ONES = np.ones((4, 3), np.float32)


def own(number: int) -> None:
    """Pass different arguments in each thread."""
    for call in range(CALLS):
        value = float(number * 100 + call)
        assert squared(np.full(1_000, value, np.float32)).tolist() == [value * value + value] * 1_000


def shapes(number: int) -> None:
    """Call a job with more shapes than remain compiled."""
    for call in range(20):
        n = 1 + (5 * number + call) % 20
        result = summed([np.full((n, 8), float(number), np.float32)] * ranks)
        assert [part.tolist() for part in result] == [[8.0 * number] * n] * ranks


losses: list[float] = []


def steps(number: int) -> None:
    """Count every step once; each step reads the results of all earlier steps."""
    for _ in range(CALLS):
        losses.append(train(ONES).item())


def interleaved(number: int) -> None:
    """Read and write weights concurrently with steps; each read is consistent."""
    for _ in range(CALLS // 3):
        if number == 0:
            train(ONES)
        elif number == 1:
            flow.load_variables({"w": np.full((3, 2), 7, np.float32)})
        else:
            assert len(set(flow.get_all_variables()["w"].numpy().ravel().tolist())) == 1
            assert flow.config.cpu_device_num(5) is False  # too late, and nothing changes


@flow.global_function()
def watched(x: tp.Numpy.Placeholder((2,))) -> tp.Numpy:
    flow.watch(x, show)
    return x


def show(x: tp.Numpy) -> None:
    """Call a job, and wait for another thread that calls one."""
    value = float(x[0])
    other = threading.Thread(target=lambda: own(int(value)), name=f"watcher of {threading.current_thread().name}")
    other.start()
    other.join()
    own(int(value))


def watches(number: int) -> None:
    watched(np.float32([number, 0]))


CASES = {"own": own, "shapes": shapes, "steps": steps, "interleaved": interleaved, "watches": watches}

if __name__ == "__main__":
    for name, case in CASES.items():
        at_once(THREADS, case)
        if case is steps:
            assert sorted(losses, reverse=True) == [-1.5 * step for step in range(THREADS * CALLS)]
            assert flow.get_all_variables()["w"].numpy().tolist() == [[-0.5 * THREADS * CALLS] * 2] * 3
        print(name, flush=True)
