"""hybrid_mlp.py with an optimizer object: a schedule, a warm-up, and `minimize` in place of `add_loss`.

python examples/hybrid_mlp_optimizer.py --devices 2
mpiexec -n 2 python examples/hybrid_mlp_optimizer.py
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
    hidden = flow.layers.dense(reshape, 512, activation=flow.nn.relu, kernel_initializer=initializer, name="dense1")
    return flow.layers.dense(hidden, 10, kernel_initializer=initializer, model_distribute=flow.distribute.split(axis=0), name="dense2")


@flow.global_function(type="train")
def train_job(
    images: tp.Numpy.Placeholder((BATCH_SIZE, 1, 28, 28), dtype=flow.float),
    labels: tp.Numpy.Placeholder((BATCH_SIZE,), dtype=flow.int32),
) -> tp.Numpy:
    logits = mlp(images)
    loss = flow.nn.sparse_softmax_cross_entropy_with_logits(labels, logits, name="softmax_loss")
    warmup = flow.optimizer.warmup.linear(10, 0.1)
    schedule = flow.optimizer.PiecewiseConstantScheduler([400, 800], [0.1, 0.05, 0.01], warmup=warmup)
    flow.optimizer.SGD(schedule, momentum=0.9).minimize(loss)
    return loss


def main():
    parser = argparse.ArgumentParser(description="MLP with a data parallel and a model parallel layer, and an optimizer object")
    parser.add_argument("--devices", type=int, default=2)
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--every", type=int, default=20, help="print the loss of every so many steps")
    options = parser.parse_args()

    flow.config.gpu_device_num(options.devices)
    (train_images, train_labels), _ = load_data(BATCH_SIZE)
    for step, (images, labels) in enumerate(islice(cycle(zip(train_images, train_labels, strict=True)), options.steps)):
        loss = train_job(images, labels)
        if step % options.every == 0 or step == options.steps - 1:
            print(f"step {step:4d}  loss {loss.mean():.6f}")


if __name__ == "__main__":
    main()
