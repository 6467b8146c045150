"""The consistent view: the program sees whole batches, jobflow cuts and gathers them.

python examples/consistent_strategy.py --devices 2
mpiexec -n 2 python examples/consistent_strategy.py
"""

import argparse
from itertools import cycle, islice

from mnist_util import load_data

import jobflow as flow
import jobflow.typing as tp

BATCH_SIZE = 100


def lenet(data, train=False):
    initializer = flow.truncated_normal(0.1)
    conv1 = flow.layers.conv2d(data, 32, 5, padding="SAME", activation=flow.nn.relu, kernel_initializer=initializer, name="conv1")
    pool1 = flow.nn.max_pool2d(conv1, ksize=2, strides=2, padding="SAME", name="pool1")
    conv2 = flow.layers.conv2d(pool1, 64, 5, padding="SAME", activation=flow.nn.relu, kernel_initializer=initializer, name="conv2")
    pool2 = flow.nn.max_pool2d(conv2, ksize=2, strides=2, padding="SAME", name="pool2")
    reshape = flow.reshape(pool2, [pool2.shape[0], -1])
    hidden = flow.layers.dense(reshape, 512, activation=flow.nn.relu, kernel_initializer=initializer, name="hidden")
    if train:
        hidden = flow.nn.dropout(hidden, rate=0.5)
    return flow.layers.dense(hidden, 10, kernel_initializer=initializer, name="outlayer")


def get_train_config():
    config = flow.function_config()
    config.default_data_type(flow.float)
    config.default_logical_view(flow.scope.consistent_view())
    return config


@flow.global_function(type="train", function_config=get_train_config())
def train_job(
    images: tp.Numpy.Placeholder((BATCH_SIZE, 1, 28, 28), dtype=flow.float),
    labels: tp.Numpy.Placeholder((BATCH_SIZE,), dtype=flow.int32),
) -> tp.Numpy:
    logits = lenet(images, train=True)
    loss = flow.nn.sparse_softmax_cross_entropy_with_logits(labels, logits, name="softmax_loss")
    schedule = flow.optimizer.PiecewiseConstantScheduler([], [0.0002])
    flow.optimizer.SGD(schedule, momentum=0.9).minimize(loss)
    return loss


def main():
    parser = argparse.ArgumentParser(description="LeNet in the consistent view")
    parser.add_argument("--devices", type=int, default=2)
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--every", type=int, default=20, help="print the loss of every so many steps")
    parser.add_argument("--convolution", choices=("auto", "direct", "winograd"), default="auto")
    options = parser.parse_args()

    flow.config.gpu_device_num(options.devices)
    flow.config.conv_algorithm(options.convolution)
    check_point = flow.train.CheckPoint()
    check_point.init()

    (train_images, train_labels), _ = load_data(BATCH_SIZE)
    for step, (images, labels) in enumerate(islice(cycle(zip(train_images, train_labels, strict=True)), options.steps)):
        loss = train_job(images, labels)
        if step % options.every == 0 or step == options.steps - 1:
            print(f"step {step:4d}  loss {loss.mean():.6f}")


if __name__ == "__main__":
    main()
