"""refused.py single|multi DIRECTORY: ranks catch the error of a rejected step and continue; each writes its observations to a file."""

import sys
from pathlib import Path

import numpy as np

import jobflow as flow
import jobflow.typing as tp

client, directory = sys.argv[1:]
flow.env.client(client)
ROWS = 8
x, y = np.random.default_rng(0).standard_normal((ROWS, 4)).astype(np.float32), (np.arange(ROWS) % 3).astype(np.int32)


def declare(name):
    def train(
        x: tp.Numpy.Placeholder((ROWS, 4)), y: tp.Numpy.Placeholder((ROWS,), dtype=flow.int32), add: tp.Numpy.Placeholder((1,), dtype=flow.int32)
    ) -> tp.Numpy:
        dropped = flow.nn.dropout(x, rate=0.2, name="drop")
        logits = flow.layers.dense(dropped, 3, kernel_initializer=flow.ones_initializer(), name=name)
        last = flow.constant_like(y, 1) * add
        loss = flow.nn.sparse_softmax_cross_entropy_with_logits(y + last, logits)
        flow.optimizer.Adam(flow.optimizer.PiecewiseConstantScheduler([], [0.1])).minimize(loss)
        return loss

    train.__name__ = name
    return flow.global_function(type="train")(train)


one, other = declare("one"), declare("other")
add = np.array([0], np.int32)
y[7] = 2
results = []
for job in (one, other):
    losses = [job(x, y, add)]
    if job is other:
        try:
            job(x, np.where(np.arange(ROWS) == 7, 12, 0).astype(np.int32) + 0 * y, add)
            messages = "nothing was refused"
        except ValueError as error:
            messages = str(error)
        try:
            job(x, y, np.array([10], np.int32))
            messages += "\nnothing was refused"
        except ValueError as error:
            messages += f"\n{error}"
    results.append(np.array([*losses, job(x, y, add)]))
same = np.array_equal(results[0], results[1])
me = "" if client == "single" else flow.env.get_rank()
(Path(directory) / f"{client}{me}").write_text(f"{messages}\n{'same losses' if same else results}\n")
