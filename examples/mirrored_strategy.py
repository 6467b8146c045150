"""The mirrored view: every device has a batch and a copy of the model of its own, and the program handles lists.

python examples/mirrored_strategy.py --devices 2
mpiexec -n 2 python examples/mirrored_strategy.py
"""

import argparse
from itertools import cycle, islice

import numpy as np
from mnist_util import load_data

import jobflow as flow
import jobflow.typing as tp

BATCH_SIZE = 100


def mlp(data):
    initializer = flow.truncated_normal(0.1)
    reshape = flow.reshape(data, [data.shape[0], -1])
    hidden = flow.layers.dense(reshape, 512, activation=flow.nn.relu, kernel_initializer=initializer, name="hidden")
    return flow.layers.dense(hidden, 10, kernel_initializer=initializer, name="output")


def make_train_job(batch_size_per_device):
    config = flow.function_config()
    config.default_data_type(flow.float)
    config.default_logical_view(flow.scope.mirrored_view())

    @flow.global_function(type="train", function_config=config)
    def train_job(
        images: tp.ListNumpy.Placeholder((batch_size_per_device, 1, 28, 28), dtype=flow.float),
        labels: tp.ListNumpy.Placeholder((batch_size_per_device,), dtype=flow.int32),
    ) -> tp.ListNumpy:
        logits = mlp(images)
        loss = flow.nn.sparse_softmax_cross_entropy_with_logits(labels, logits, name="softmax_loss")
        schedule = flow.optimizer.PiecewiseConstantScheduler([], [0.1])
        flow.optimizer.SGD(schedule, momentum=0).minimize(loss)
        return loss

    return train_job


def main():
    parser = argparse.ArgumentParser(description="MLP in the mirrored view")
    parser.add_argument("--devices", type=int, default=2)
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--every", type=int, default=20, help="print the loss of every so many steps")
    options = parser.parse_args()

    flow.config.gpu_device_num(options.devices)
    train_job = make_train_job(-(-BATCH_SIZE // options.devices))
    check_point = flow.train.CheckPoint()
    check_point.init()

    (train_images, train_labels), _ = load_data(BATCH_SIZE)
    for step, (images, labels) in enumerate(islice(cycle(zip(train_images, train_labels, strict=True)), options.steps)):
        losses = train_job(np.array_split(images, options.devices), np.array_split(labels, options.devices))
        if step % options.every == 0 or step == options.steps - 1:
            print(f"step {step:4d}  loss {np.concatenate(losses).mean():.6f}")


if __name__ == "__main__":
    main()
