"""Messages between pipeline stages: one tensor per microbatch and direction, and each tensor of a step once."""

import jobflow as flow
import jobflow.typing as tp
from jobflow.engine.job import job_of
from jobflow.tools.explain import boxing_rows, laid_out

MICROBATCHES = 3


def test_stages_send_each_tensor_once() -> None:
    """Send a residual stream through two stages, with a weight shared by both and gradients clipped by the global norm."""
    config = flow.function_config()
    config.train.num_gradient_accumulation_steps(MICROBATCHES)

    @flow.global_function("train", config)
    def job(x: tp.Numpy.Placeholder((6, 8))) -> tp.Numpy:
        initializer = flow.random_normal_initializer()
        with flow.scope.placement("cpu", "0:0"):
            shared = flow.get_variable("shared", (8, 8), initializer=initializer)
            x = flow.matmul(x, shared) + flow.get_variable("bias", (8,), initializer=initializer)
        with flow.scope.placement("cpu", "0:1"):
            x = x + flow.math.tanh(flow.matmul(x, flow.get_variable("own", (8, 8), initializer=initializer)))
            x = x * flow.get_variable("gain", (8,), initializer=initializer)
            loss = flow.matmul(x, shared, transpose_b=True)
        clipping = flow.optimizer.grad_clipping.by_global_norm(1.0)
        flow.optimizer.SGD(flow.optimizer.PiecewiseConstantScheduler([], [0.1]), grad_clipping=clipping).minimize(loss)
        return loss

    sizes = [change.nbytes for change in boxing_rows(laid_out(job_of(job), 2).physical) if change.route == "move" and change.nbytes]
    rows, weight, number = 2 * 8 * 4, 8 * 8 * 4, 4
    assert {size: sizes.count(size) for size in set(sizes)} == {
        rows: 2 * MICROBATCHES,  # forward and backward
        weight: 2,  # the shared weight, and its gradient of all microbatches
        number: 2,  # the sum of squares, and the factor for the other stage
        rows // 2: MICROBATCHES,  # half of the argument, for the second stage
    }
