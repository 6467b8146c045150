"""Training programs with all kinds of endings: `endings.py CASE FOLDER` under mpiexec; `test_worlds.py` has the expectations.

Every rank writes its process id to FOLDER/pid.<rank>; the time of the failure goes to FOLDER/event.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from pathlib import Path

import numpy as np

import jobflow as flow
import jobflow.typing as tp
from jobflow.runtime.world.launched import launched

case, folder = sys.argv[1], Path(sys.argv[2])
started = launched()
assert started is not None
me = started.rank
(folder / f"pid.{me}").write_text(str(os.getpid()))
while not all((folder / f"pid.{rank}").exists() for rank in range(started.size)):  # an early end of one must not take others before they are known
    time.sleep(0.01)

ROWS = 8
x = np.random.RandomState(0).rand(ROWS, 600).astype(np.float32)
y = np.arange(ROWS, dtype=np.int32) % 3


def event() -> None:
    (folder / "event").write_text(repr(time.time()))


if case.startswith("multi"):
    flow.env.client("multi")


@flow.global_function(type="train")
def train_job(
    images: tp.Numpy.Placeholder((ROWS, 600)),
    labels: tp.Numpy.Placeholder((ROWS,), dtype=flow.int32),
    add: tp.Numpy.Placeholder((ROWS,), dtype=flow.int32),
) -> tp.Callback[tp.Numpy]:
    if case == "error_in_body":
        event()
        raise ValueError("no luck in the body")
    logits = flow.layers.dense(images, 3, kernel_initializer=flow.truncated_normal(0.1), name="fc")
    loss = flow.nn.sparse_softmax_cross_entropy_with_logits(labels + add, logits)
    flow.optimizer.SGD(flow.optimizer.PiecewiseConstantScheduler([], [0.1]), momentum=0.9).minimize(loss)
    return loss


losses: list[float] = []


def keep(loss: np.ndarray) -> None:
    if case == "error_in_callback" and len(losses) == 5:
        event()
        raise ValueError("no luck in the callback")
    losses.append(float(loss.mean()))


def train(steps: int, wrong: int = 0) -> None:
    for _ in range(steps):
        train_job(x, y, np.array([0] * (ROWS - 1) + [wrong], np.int32))(keep)


def kill(rank: int) -> None:
    event()
    os.kill(int((folder / f"pid.{rank}").read_text()), signal.SIGKILL)


print("begin")
if case == "exit_early" and me == 1:
    event()
    sys.exit(3)
if case == "error_early" and me == 1:
    event()
    raise ValueError("no luck at the start")

if case == "multi_other_arguments" and me == 1:
    y[:] = 0
    event()

train(5)
print(f"rank {me} goes on", file=sys.stderr, flush=True)
print("five steps")
match case:
    case "error_in_script":
        event()
        raise ValueError("no luck in the script")
    case "error_in_plan":
        event()
        train(1, wrong=9)  # the last rows are those of the last rank
    case "exit":
        event()
        sys.exit(3)
    case "kill_server":
        kill(1)
    case "kill_client":
        kill(0)
    case "multi_kill":
        if me == 1:
            kill(1)
    case "multi_error":
        if me == 1:
            event()
            raise ValueError("no luck on one rank")
    case "multi_exit":
        if me == 1:
            event()
            sys.exit(3)
train(1_000_000 if case not in ("fine", "multi_fine") else 5)
assert len(losses) == 10 and losses[-1] < losses[0]
print("done")
