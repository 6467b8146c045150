"""Training steps of recurrent networks, timed on order, with either library: `python sequence_steps.py jobflow|torch compiled|eager`.

An order of the protocol in worker.py is a module and a size, such as "LSTM 64x128".
"""

from __future__ import annotations

import argparse
import importlib
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[1]))
import worker

BATCH = 32


def step_of(library: Any, compiled: bool, order: str) -> Callable[[], Any]:
    """Return a training step without an update of the weights."""
    name, size = order.split()
    steps, features = map(int, size.split("x"))
    library.manual_seed(0)
    module = getattr(library.nn, name)(features, features)
    x = library.tensor(np.random.default_rng(0).standard_normal((steps, BATCH, features)).astype(np.float32))

    def step(x: Any) -> Any:
        for parameter in module.parameters():
            parameter.grad = None
        y, _ = module(x)
        loss = (y * y).mean()
        loss.backward()
        return loss

    function = library.compile(step) if compiled else step
    return lambda: function(x)


class Orders(dict[str, Callable[[int], dict[str, Any]]]):
    """The orders of all modules and sizes, whose steps are created on their first use."""

    def __init__(self, library: Any, compiled: bool) -> None:
        super().__init__()
        self.library, self.compiled = library, compiled

    def __missing__(self, order: str) -> Callable[[int], dict[str, Any]]:
        step = step_of(self.library, self.compiled, order)
        self[order] = lambda count: {"seconds": worker.timed(step, count)}
        return self[order]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("library", choices=("jobflow", "torch"))
    parser.add_argument("mode", choices=("compiled", "eager"))
    parser.add_argument("--first", metavar="ORDER", help="print the seconds of the first call, and end")
    options = parser.parse_args()
    library = importlib.import_module(options.library)
    if options.library == "torch":
        library.set_num_threads(1)
    if options.first:
        step = step_of(library, options.mode == "compiled", options.first)
        start = time.perf_counter()
        float(step())
        print(time.perf_counter() - start)
        return
    worker.obey(Orders(library, options.mode == "compiled"))


if __name__ == "__main__":
    main()
