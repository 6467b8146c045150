"""A program under mpiexec whose job all ranks trace; rank 0 checks the file. Arguments: the file, and "multi" if every rank is a client."""

from __future__ import annotations

import sys
import time
from pathlib import Path

import numpy as np

import jobflow as flow
import jobflow.typing as tp
from jobflow.trainer.chrome_trace import Tracing

sys.path.insert(0, str(Path(__file__).parents[1]))
from trace_format import check_trace

SLOW = 0.02
MULTI = sys.argv[2] == "multi"
if MULTI:
    flow.env.client("multi")


@flow.global_function("train")
def train(x: tp.Numpy.Placeholder((8, 6)), labels: tp.Numpy.Placeholder((8,), dtype=flow.int64)) -> tp.Numpy:
    first = flow.layers.dense(x, 16, activation=flow.nn.relu, kernel_initializer=flow.xavier_uniform_initializer(), name="first")
    logits = flow.layers.dense(first, 4, kernel_initializer=flow.xavier_uniform_initializer(), name="second")
    loss = flow.nn.sparse_softmax_cross_entropy_with_logits(labels, logits)
    flow.optimizer.SGD(flow.optimizer.PiecewiseConstantScheduler([], [0.1])).minimize(loss)
    return loss


random = np.random.RandomState(0)
x, labels = random.rand(8, 6).astype(np.float32), random.randint(0, 4, 8)
tracing = Tracing(Path(sys.argv[1]), first=3, steps=4)
losses = []
for step in range(1, 9):
    tracing.before(step)
    if MULTI and flow.env.get_rank() == 1 and tracing.recording:
        time.sleep(SLOW)  # the others wait for this rank in the step
    losses.append(float(train(x, labels).mean()))
    tracing.after(step)
tracing.close()
if tracing.traced is not None:
    slices = check_trace(Path(sys.argv[1]), 2, [3, 4, 5, 6])
    waited = tracing.traced.parts()[0]["waiting"]
    assert any(event["cat"] == "waiting" for event in slices)
    assert not MULTI or waited > SLOW, waited  # less than 4 times as long, because rank 0 may be late too
    assert losses[-1] < losses[0]
    assert {row.timed.category for row in tracing.traced.slowest(None)} == {"compute", "communication"}
    print("checked", flow.env.get_rank())
