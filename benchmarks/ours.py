"""The benchmark models in jobflow, as its users write them.

[mpiexec -n N] python ours.py MODEL [--check] [--devices N]
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

START = time.perf_counter()

import jobflow as flow  # noqa: E402 - its import is timed
import jobflow.typing as tp  # noqa: E402

IMPORTED = time.perf_counter() - START
sys.path.insert(0, str(Path(__file__).parents[1] / "examples"))

import gpt  # noqa: E402
import lenet_digits  # noqa: E402
import models  # noqa: E402
import worker  # noqa: E402
from anatomy import anatomy  # noqa: E402

#: steps over which the instructions are timed
STEPS = 10


def mlp(images: Any) -> Any:
    flat = flow.reshape(images, [images.shape[0], -1])
    hidden = flow.layers.dense(flat, models.HIDDEN, activation=flow.nn.relu, name="hidden")
    return flow.layers.dense(hidden, models.CLASSES, name="output")


def image_job(logits_of: Callable[[Any], Any]) -> Callable[..., Any]:
    @flow.global_function(type="train")
    def train_job(
        images: tp.Numpy.Placeholder((models.BATCH, 1, 28, 28), dtype=flow.float),
        labels: tp.Numpy.Placeholder((models.BATCH,), dtype=flow.int32),
    ) -> tp.Numpy:
        loss = flow.nn.sparse_softmax_cross_entropy_with_logits(labels, logits_of(images), name="softmax_loss")
        flow.optimizer.SGD(flow.optimizer.PiecewiseConstantScheduler([], [models.SGD_RATE]), momentum=0).minimize(loss)
        return loss

    return train_job


def job(model: str, check: bool) -> Callable[..., Any]:
    if model == "mlp":
        return image_job(mlp)
    if model == "lenet":
        return image_job(lambda images: lenet_digits.lenet(images, train=True, rate=0.0 if check else models.LENET_RATE))
    size = gpt.Size(models.GPT_BATCH, models.GPT_LENGTH, models.GPT_WIDTH, models.GPT_HEADS, models.GPT_BLOCKS, models.GPT_WORDS)
    return gpt.make_train_job(size, models.ADAMW_RATE, 0.0 if check else models.ADAMW_DECAY)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("model", choices=models.MODELS)
    parser.add_argument("--check", action="store_true", help="without dropout and weight decay, so that losses can be compared")
    parser.add_argument("--devices", type=int, default=1)
    parser.add_argument("--part", type=int, default=1, metavar="N", help="train on the first N-th of the batch only")
    parser.add_argument("--convolutions", default="auto", help="a setting of flow.config.conv_algorithm")
    options = parser.parse_args()
    models.divide(options.part)
    flow.config.gpu_device_num(options.devices)
    flow.config.conv_algorithm(options.convolutions)
    train_job, arguments = job(options.model, options.check), models.batch(options.model)

    start = time.perf_counter()
    flow.load_variables(models.weights(options.model))
    ready = time.perf_counter() - start
    first_loss = float(train_job(*arguments).mean())
    first_step = time.perf_counter() - start

    def facts() -> dict[str, Any]:
        return {
            "version": flow.__version__,
            "import_s": IMPORTED,
            "compile_s": ready,
            "first_step_s": first_step,
            "first_loss": first_loss,
        }

    def inside() -> dict[str, Any]:
        return anatomy(train_job, arguments, STEPS)

    worker.serve(lambda: train_job(*arguments), lambda loss: float(loss.mean()), facts, inside)


if __name__ == "__main__":
    main()
