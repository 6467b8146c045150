"""Hybrid parallelism in one line: the hidden layer is data parallel, the output layer is split over the devices.

    python examples/hybrid_mlp.py --devices 2
    mpiexec -n 2 python examples/hybrid_mlp.py
    jobflow explain examples/hybrid_mlp.py:train_job --devices 2

The optimizer is described in the function's configuration and the loss is handed to `losses.add_loss`;
hybrid_mlp_optimizer.py is the same program with an optimizer object.
"""

import argparse
from itertools import cycle, islice

from mnist_util import load_data

import jobflow as flow
import jobflow.typing as tp

BATCH_SIZE = 100


def mlp(data):
    initializer = flow.truncated_normal(0.1)
    reshape = flow.reshape(data, [data.shape[0], -1])
    hidden = flow.layers.dense(reshape, 512, activation=flow.nn.relu, kernel_initializer=initializer, name="hidden")
    # dense keeps its weight as (units, inputs): splitting axis 0 gives every device some of the ten classes
    return flow.layers.dense(hidden, 10, kernel_initializer=initializer, model_distribute=flow.distribute.split(axis=0), name="output")


def get_train_config():
    config = flow.function_config()
    config.default_data_type(flow.float)
    config.train.primary_lr(0.1)
    config.train.model_update_conf({"naive_conf": {}})
    return config


@flow.global_function(type="train", function_config=get_train_config())
def train_job(
    images: tp.Numpy.Placeholder((BATCH_SIZE, 1, 28, 28), dtype=flow.float),
    labels: tp.Numpy.Placeholder((BATCH_SIZE,), dtype=flow.int32),
) -> tp.Numpy:
    logits = mlp(images)
    loss = flow.nn.sparse_softmax_cross_entropy_with_logits(labels, logits, name="softmax_loss")
    flow.losses.add_loss(loss)
    return loss


def main():
    parser = argparse.ArgumentParser(description="MLP with a data parallel and a model parallel layer")
    parser.add_argument("--devices", type=int, default=2)
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--every", type=int, default=20, help="print the loss of every so many steps")
    options = parser.parse_args()

    flow.config.gpu_device_num(options.devices)
    check_point = flow.train.CheckPoint()
    check_point.init()

    (train_images, train_labels), _ = load_data(BATCH_SIZE)
    for step, (images, labels) in enumerate(islice(cycle(zip(train_images, train_labels, strict=True)), options.steps)):
        loss = train_job(images, labels)
        if step % options.every == 0 or step == options.steps - 1:
            print(f"step {step:4d}  loss {loss.mean():.6f}")


if __name__ == "__main__":
    main()
