"""Two Python threads on each rank call in the same order on all ranks, or in different orders.  Print their results, or end by an error.

orders.py same|other CASE ...
"""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable
from typing import Any

import numpy as np

import jobflow as flow
import jobflow.typing as tp

order, *cases = sys.argv[1:]
flow.env.client("multi")


@flow.global_function()
def plus(x: tp.Numpy.Placeholder((4,))) -> tp.Numpy:
    return x + x


@flow.global_function()
def times(x: tp.Numpy.Placeholder((4,))) -> tp.Numpy:
    return x * x


def value(number: int) -> Any:
    return np.full(4, 10.0 * number, np.float32)


def two_jobs(number: int) -> float:
    return (plus, times)[number - 1](value(number)).tolist()[0]


def one_job(number: int) -> float:
    return plus(value(number)).tolist()[0]


def tensors(number: int) -> float:
    x = flow.tensor(value(number)).to_global(flow.placement("cpu", [0, 1]), flow.sbp.partial_sum)
    return float(x.to_global(sbp=flow.sbp.broadcast).numpy()[0])


def reduced(number: int) -> float:
    x = flow.tensor(value(number))
    flow.comm.all_reduce(x)
    return float(x.numpy()[0])


class Doubled(flow.nn.Graph):
    def build(self, x: Any) -> Any:
        return (x * 2).to_global(sbp=flow.sbp.broadcast)


doubled = Doubled()
two_ranks = flow.placement("cpu", [0, 1])
parts = [flow.tensor(value(number), placement=two_ranks, sbp=flow.sbp.split(0)) for number in (1, 2)]


def graph(number: int) -> float:
    return float(doubled(parts[number - 1]).numpy()[0])


CASES: dict[str, Callable[[int], float]] = {"two_jobs": two_jobs, "one_job": one_job, "tensors": tensors, "reduced": reduced, "graph": graph}
results: dict[int, float] = {}


def run(work: Callable[[int], float], number: int) -> None:
    results[number] = work(number)


if __name__ == "__main__":
    for work in map(CASES.__getitem__, cases):
        work(1), work(2)  # both are known, on all ranks, in one order
        turns = [1, 2] if order == "same" or flow.env.get_rank() == 0 else [2, 1]
        threads = [threading.Thread(target=run, args=(work, number), name=f"worker {number}") for number in turns]
        for thread in threads:
            thread.start()
            time.sleep(0.5)
        for thread in threads:
            thread.join()
        print(results[1], results[2], flush=True)
