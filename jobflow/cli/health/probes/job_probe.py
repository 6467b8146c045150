"""A comparison of a small training job on two threads with the same steps in NumPy.

Prints the JSON object {"seconds": duration without the imports}.  If the losses differ, it exits with an error message.
"""

import json
import time

import numpy as np

import jobflow.legacy.math as math
import jobflow.legacy.optimizer as optimizer
import jobflow.typing as tp
from jobflow.engine.session import config
from jobflow.legacy.declare import global_function
from jobflow.legacy.initializers import ones_initializer
from jobflow.legacy.shared_names import matmul
from jobflow.legacy.variables import get_variable

ROWS, RATE, STEPS = 8, 0.1, 2

begun = time.perf_counter()
config.cpu_device_num(2)


@global_function(type="train")
def train_job(x: tp.Numpy.Placeholder((ROWS, 4)), y: tp.Numpy.Placeholder((ROWS, 3))) -> tp.Numpy:  # type: ignore[valid-type]
    """Compute mean((x w - y)^2), and update w by one step of gradient descent."""
    w = get_variable("w", shape=(4, 3), initializer=ones_initializer())
    error = matmul(x, w) - y
    loss = math.reduce_mean(math.square(error))
    optimizer.SGD(optimizer.PiecewiseConstantScheduler([], [RATE]), momentum=0).minimize(loss)
    return loss  # type: ignore[return-value]


random = np.random.default_rng(0)
x, y, w = random.random((ROWS, 4), np.float32), random.random((ROWS, 3), np.float32), np.ones((4, 3), np.float32)
for _ in range(STEPS):
    loss, error = float(np.ravel(train_job(x, y))[0]), x @ w - y
    right = float(np.mean(error**2))
    if abs(loss - right) > 1e-5 * right:
        raise SystemExit(f"error: the loss is {loss}, but NumPy computes {right}")
    w -= RATE * 2 / error.size * x.T @ error
print(json.dumps({"seconds": time.perf_counter() - begun}))
