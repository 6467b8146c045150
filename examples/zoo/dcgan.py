"""DCGAN: two nets against each other, by two jobs that share their variables.

    python examples/zoo/dcgan.py --small --devices 2 --steps 20
    mpiexec -n 2 python examples/zoo/dcgan.py --steps 1000 --pictures runs/dcgan

One job trains the generator and holds the discriminator still, the other the other way round: a variable is trainable in one job and not in the
other.  The nets are those of Radford et al., Unsupervised Representation Learning with Deep Convolutional Generative Adversarial Networks, 2015, for
pictures of 28x28.
"""

import argparse
from dataclasses import dataclass
from pathlib import Path

import numpy as np

import jobflow as flow
import jobflow.typing as tp


@dataclass(frozen=True)
class Size:
    #: pictures of one step, over all devices
    batch: int = 256
    noise: int = 100
    width: int = 64
    rate: float = 1e-4
    dropout: float = 0.3


SMALL = Size(batch=8, noise=12, width=4, rate=5e-4, dropout=0.0)

initializer = flow.truncated_normal(0.02)


def norm(x, trainable, name):
    return flow.layers.batch_normalization(x, axis=1, momentum=0.99, trainable=trainable, training=True, name=name)


def enlarged(x, channels, stride, trainable, name):
    """A transposed convolution of 5x5 that makes a picture `stride` times as large."""
    weight = flow.get_variable(f"{name}-weight", (x.shape[1], channels, 5, 5), initializer=initializer, trainable=trainable)
    shape = (x.shape[0], channels, x.shape[2] * stride, x.shape[3] * stride)
    return flow.nn.conv2d_transpose(x, weight, output_shape=shape, strides=stride, padding="SAME", data_format="NCHW", name=name)


def generator(noise, size, trainable):
    """Pictures [batch, 1, 28, 28] with values from -1 to 1."""
    with flow.scope.namespace("generator"):
        x = flow.layers.dense(noise, 4 * size.width * 7 * 7, use_bias=False, kernel_initializer=initializer, trainable=trainable, name="fc1")
        x = flow.nn.leaky_relu(flow.layers.batch_normalization(x, axis=1, trainable=trainable, name="bn1"), 0.3)
        x = flow.reshape(x, [-1, 4 * size.width, 7, 7])
        x = flow.nn.leaky_relu(norm(enlarged(x, 2 * size.width, 1, trainable, "deconv1"), trainable, "bn2"), 0.3)
        x = flow.nn.leaky_relu(norm(enlarged(x, size.width, 2, trainable, "deconv2"), trainable, "bn3"), 0.3)
        return flow.math.tanh(enlarged(x, 1, 2, trainable, "deconv3"))


def discriminator(pictures, size, trainable):
    """The logit of a picture's being real, [batch, 1]."""
    with flow.scope.namespace("discriminator"):
        x = pictures
        for index, channels in enumerate((size.width, 2 * size.width)):
            x = flow.layers.conv2d(x, channels, 5, 2, padding="SAME", kernel_initializer=initializer, trainable=trainable, name=f"conv{index + 1}")
            x = flow.nn.dropout(flow.nn.leaky_relu(x, 0.3), size.dropout)
        x = flow.reshape(x, [x.shape[0], -1])
        return flow.layers.dense(x, 1, kernel_initializer=initializer, trainable=trainable, name="fc")


def entropy(logits, real):
    truth = flow.ones_like(logits) if real else flow.zeros_like(logits)
    return flow.nn.sigmoid_cross_entropy_with_logits(truth, logits)


def make_jobs(size):
    """The job that trains the generator, with its losses and pictures, and the one that trains the discriminator, with its losses."""
    noise_type = tp.Numpy.Placeholder((size.batch, size.noise))
    pictures_type = tp.Numpy.Placeholder((size.batch, 1, 28, 28))

    def minimize(loss):
        flow.optimizer.Adam(flow.optimizer.PiecewiseConstantScheduler([], [size.rate]), beta1=0.5).minimize(loss)

    @flow.global_function("train", flow.function_config())
    def train_generator(noise: noise_type) -> tuple[tp.Numpy, tp.Numpy]:
        pictures = generator(noise, size, trainable=True)
        loss = entropy(discriminator(pictures, size, trainable=False), real=True)
        minimize(loss)
        return loss, pictures

    @flow.global_function("train", flow.function_config())
    def train_discriminator(noise: noise_type, pictures: pictures_type) -> tp.Numpy:
        made = generator(noise, size, trainable=False)
        logits = discriminator(flow.concat([made, pictures], axis=0), size, trainable=True)
        false = flow.slice(logits, [0, None], [size.batch, None])
        true = flow.slice(logits, [size.batch, None], [size.batch, None])
        loss = entropy(false, real=False) + entropy(true, real=True)
        minimize(loss)
        return loss

    return train_generator, train_discriminator


def real_pictures(size):
    """Handwritten digits, with values from -1 to 1."""
    (images, _), _ = flow.data.load_mnist(size.batch)
    return images * 2 - 1


def save(pictures, path):
    """A sheet of the first 64 pictures."""
    from PIL import Image

    count = min(len(pictures), 64) // 8 * 8
    sheet = pictures[:count, 0].reshape(-1, 8, 28, 28).swapaxes(1, 2).reshape(-1, 8 * 28)
    Image.fromarray(((sheet + 1) * 127.5).astype(np.uint8)).save(path)


def main():
    parser = argparse.ArgumentParser(description="DCGAN")
    parser.add_argument("--devices", type=int, default=2)
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--every", type=int, default=10, help="print the loss of every so many steps")
    parser.add_argument("--small", action="store_true", help="few channels")
    parser.add_argument("--pictures", type=Path, help="a folder for pictures of what the generator makes (needs Pillow)")
    options = parser.parse_args()

    flow.config.gpu_device_num(options.devices)
    size = SMALL if options.small else Size()
    train_generator, train_discriminator = make_jobs(size)
    batches, random = real_pictures(size), np.random.default_rng(0)
    for step in range(options.steps):
        noise = random.standard_normal((size.batch, size.noise)).astype(np.float32)
        against = train_discriminator(noise, batches[step % len(batches)])
        loss, pictures = train_generator(noise)
        if step % options.every == 0 or step == options.steps - 1:
            print(f"step {step:4d}  loss {loss.mean():.6f}  of the discriminator {against.mean():.6f}")
            if options.pictures:
                options.pictures.mkdir(parents=True, exist_ok=True)
                save(pictures, options.pictures / f"step{step:06d}.png")


if __name__ == "__main__":
    main()
