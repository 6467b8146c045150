"""LeNet on real handwritten digits: the 1,797 images of scikit-learn, scaled to 28x28.

python examples/lenet_digits.py --devices 2
mpiexec -n 2 python examples/lenet_digits.py
"""

import argparse
import time

import numpy as np

import jobflow as flow
import jobflow.typing as tp
from jobflow.data.digits import scaled

BATCH_SIZE = 100
TEST_SIZE = 397
TRAIN_SIZE = 1400


def lenet(data, train=False, rate=0.5):
    initializer = flow.variance_scaling_initializer(2.0, "fan_in", "random_normal", "NCHW")
    conv1 = flow.layers.conv2d(data, 32, 5, padding="SAME", activation=flow.nn.relu, kernel_initializer=initializer, name="conv1")
    pool1 = flow.nn.max_pool2d(conv1, ksize=2, strides=2, padding="SAME", name="pool1")
    conv2 = flow.layers.conv2d(pool1, 64, 5, padding="SAME", activation=flow.nn.relu, kernel_initializer=initializer, name="conv2")
    pool2 = flow.nn.max_pool2d(conv2, ksize=2, strides=2, padding="SAME", name="pool2")
    reshape = flow.reshape(pool2, [pool2.shape[0], -1])
    hidden = flow.layers.dense(reshape, 512, activation=flow.nn.relu, kernel_initializer=initializer, name="hidden")
    if train:
        hidden = flow.nn.dropout(hidden, rate=rate)
    return flow.layers.dense(hidden, 10, kernel_initializer=initializer, name="outlayer")


def make_jobs(steps):
    """A train job and a predict job that share their variables; the learning rate falls to nothing over `steps`."""

    @flow.global_function(type="train")
    def train_job(
        images: tp.Numpy.Placeholder((BATCH_SIZE, 1, 28, 28), dtype=flow.float),
        labels: tp.Numpy.Placeholder((BATCH_SIZE,), dtype=flow.int32),
    ) -> tp.Numpy:
        loss = flow.nn.sparse_softmax_cross_entropy_with_logits(labels, lenet(images, train=True), name="softmax_loss")
        flow.optimizer.Adam(flow.optimizer.CosineScheduler(1e-3, steps), do_bias_correction=True).minimize(loss)
        return loss

    @flow.global_function(type="predict")
    def predict_job(images: tp.Numpy.Placeholder((TEST_SIZE, 1, 28, 28), dtype=flow.float)) -> tp.Numpy:
        return lenet(images)

    return train_job, predict_job


def load_digits():
    """((train images, labels), (test images, labels)): float32 [n,1,28,28] in 0..1 and int32 [n], split at random."""
    from sklearn.datasets import load_digits as load
    from sklearn.model_selection import train_test_split

    digits = load()
    images = scaled(digits.images, 28).astype(np.float32)[:, np.newaxis] / 255
    parts = train_test_split(images, digits.target.astype(np.int32), train_size=TRAIN_SIZE, test_size=TEST_SIZE, random_state=0)
    train_images, test_images, train_labels, test_labels = parts
    return (train_images, train_labels), (test_images, test_labels)


def shuffled_batches(images, labels, steps):
    """`steps` batches; every epoch goes through the images in a new order."""
    random = np.random.RandomState(0)
    for step in range(steps):
        place = step * BATCH_SIZE % len(images)
        if place == 0:
            order = random.permutation(len(images))
        chosen = order[place : place + BATCH_SIZE]
        yield images[chosen], labels[chosen]


def progress(batches, steps):
    """The batches behind a progress bar, if tqdm is installed."""
    try:
        from tqdm import tqdm
    except ImportError:
        return batches
    return tqdm(batches, total=steps, unit="step", mininterval=0.5)


def main():
    parser = argparse.ArgumentParser(description="LeNet on the handwritten digits of scikit-learn")
    parser.add_argument("--devices", type=int, default=2)
    parser.add_argument("--steps", type=int, default=12 * TRAIN_SIZE // BATCH_SIZE)
    parser.add_argument("--every", type=int, default=20, help="print the loss of every so many steps")
    parser.add_argument("--convolution", choices=("auto", "direct", "winograd"), default="auto")
    options = parser.parse_args()

    flow.config.gpu_device_num(options.devices)
    flow.config.conv_algorithm(options.convolution)
    train_job, predict_job = make_jobs(options.steps)
    check_point = flow.train.CheckPoint()
    check_point.init()  # from here on, under mpiexec, only the first rank runs the program

    (train_images, train_labels), (test_images, test_labels) = load_digits()
    start = time.perf_counter()
    shown = []
    for step, (images, labels) in enumerate(progress(shuffled_batches(train_images, train_labels, options.steps), options.steps)):
        loss = train_job(images, labels)
        if step % options.every == 0 or step == options.steps - 1:
            shown.append(f"step {step:4d}  loss {loss.mean():.6f}")
    seconds = time.perf_counter() - start

    print("\n".join(shown))
    right = np.argmax(predict_job(test_images), axis=1) == test_labels
    print(f"test accuracy {right.mean():.2%} of {len(right)} digits")
    print(f"trained {options.steps} steps in {seconds:.1f} s")


if __name__ == "__main__":
    main()
