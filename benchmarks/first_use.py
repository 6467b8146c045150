"""Time, modules and memory of a new process until its first tensor, eager operation or job step.

    python first_use.py tensor|operation|job

Prints one line for the parent, as a worker does, and waits for the end of its input. Uses public names only, so it runs with any checkout.
"""

from __future__ import annotations

import json
import resource
import sys
import time
from collections.abc import Callable
from typing import Any

START = time.perf_counter(), time.process_time()


def tensor() -> None:
    import jobflow as flow

    flow.tensor([1.0, 2.0])


def operation() -> None:
    import jobflow as flow

    flow.tensor([1.0, 2.0]) + 1.0


def job() -> None:
    import numpy as np

    import jobflow as flow
    import jobflow.typing as tp

    def train_job(x: Any) -> tp.Numpy:
        loss = flow.layers.dense(x, 2, name="output")
        flow.optimizer.SGD(flow.optimizer.PiecewiseConstantScheduler([], [0.1]), momentum=0).minimize(loss)
        return loss

    train_job.__annotations__ = {"x": tp.Numpy.Placeholder((4, 3)), "return": tp.Numpy}
    flow.global_function(type="train")(train_job)(np.ones((4, 3), np.float32))


USES: dict[str, Callable[[], None]] = {"tensor": tensor, "operation": operation, "job": job}

if __name__ == "__main__":
    USES[sys.argv[1]]()
    wall, processor = time.perf_counter() - START[0], time.process_time() - START[1]
    facts = {"wall_s": wall, "cpu_s": processor, "modules": len(sys.modules), "mib": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024}
    print("@worker " + json.dumps(facts), flush=True)
    sys.stdin.read()  # until the parent has read the figures
