"""Face recognition with very many people: the last layer's classes are split over the devices, and a step samples some of them (partial FC).

    python examples/zoo/insightface.py --small --devices 2 --steps 20
    mpiexec -n 8 python examples/zoo/insightface.py --people 1000000 --sample 100000

    images ──▶ convolutions ──▶ embeddings [batch, 512]   split over the images
                                       │ all_gather
                                       ▼
    people [classes, 512] split ──▶ cosines [batch, sampled]   split over the classes ──▶ margin, softmax

The nets are those of Deng et al., ArcFace, 2019 (a small one of its kind), the sampling is that of An et al., Partial FC, 2020: a class that is
the label of an image is in the sample, and as many others by chance as there is room for.
"""

import argparse
from dataclasses import dataclass

import numpy as np

import jobflow as flow
import jobflow.typing as tp


@dataclass(frozen=True)
class Size:
    #: images of one step, over all devices
    batch: int = 512
    image: int = 112
    width: int = 64
    blocks: tuple[int, ...] = (3, 13, 30, 3)
    embedding: int = 512
    people: int = 85_742
    #: the classes of one step, over all devices
    sample: int = 8_576
    #: the margin that is added to the angle between an embedding and its person
    margin: float = 0.5
    scale: float = 64.0
    rate: float = 0.1
    boundaries: tuple[int, ...] = (100_000, 160_000)


SMALL = Size(batch=8, image=16, width=4, blocks=(1, 1), embedding=16, people=24, sample=24, margin=0.3, scale=8.0, rate=0.05)

initializer = flow.random_normal_initializer(stddev=0.1)
decay = flow.regularizers.l2(5e-4)


def convolution(x, filters, kernel, stride, name):
    padding = kernel // 2
    sides = [[0, 0], [0, 0], [padding, padding], [padding, padding]]
    return flow.layers.conv2d(x, filters, kernel, stride, sides, use_bias=False, kernel_initializer=initializer, kernel_regularizer=decay, name=name)


def norm(x, name, scale=True):
    return flow.layers.batch_normalization(x, axis=1, momentum=0.9, epsilon=2e-5, scale=scale, name=name)


def block(x, width, stride, name):
    with flow.scope.namespace(name):
        y = convolution(norm(x, "bn1"), width, 3, 1, "conv1")
        y = flow.layers.prelu(norm(y, "bn2"), alpha_initializer=flow.constant_initializer(0.25), shared_axes=[2, 3], name="relu1")
        y = norm(convolution(y, width, 3, stride, "conv2"), "bn3")
        if stride > 1 or x.shape[1] != width:
            x = norm(convolution(x, width, 1, stride, "shortcut"), "shortcut_bn")
        return x + y


def embeddings(images, size):
    """A vector for each image, [batch, embedding]."""
    x = norm(convolution(images, size.width, 3, 1, "conv0"), "bn0")
    x = flow.layers.prelu(x, alpha_initializer=flow.constant_initializer(0.25), shared_axes=[2, 3], name="relu0")
    for stage, count in enumerate(size.blocks):
        for index in range(count):
            x = block(x, size.width << stage, 1 if index else 2, f"stage{stage}-block{index}")
    x = flow.reshape(norm(x, "bn1"), [x.shape[0], -1])
    x = flow.layers.dense(x, size.embedding, kernel_initializer=initializer, kernel_regularizer=decay, name="fc1")
    return norm(x, "fc1_bn", scale=False)


def margin_losses(x, labels, size):
    """The losses of the images, [batch]: softmax over the cosines between embeddings and people, made harder by a margin."""
    everywhere, by_people = flow.distribute.broadcast(), flow.distribute.split(0)
    labels = flow.parallel_cast(labels, distribute=everywhere)
    people = flow.get_variable("people", (size.people, size.embedding), initializer=initializer, regularizer=decay, distribute=by_people)
    if size.sample < size.people:
        labels, _, people = flow.distributed_partial_fc_sample(weight=people, label=labels, num_sample=size.sample)
    x = flow.math.l2_normalize(x, axis=1, epsilon=1e-10).with_distribute(everywhere)
    cosines = flow.matmul(x, flow.math.l2_normalize(people, axis=1, epsilon=1e-10), transpose_b=True)
    harder = flow.combined_margin_loss(cosines, labels, m1=1.0, m2=size.margin, m3=0.0) * size.scale
    return flow.nn.distributed_sparse_softmax_cross_entropy_with_logits(labels, harder)


def make_job(size):
    """The job that trains; it returns the losses of the images."""

    @flow.global_function("train", flow.function_config())
    def job(
        images: tp.Numpy.Placeholder((size.batch, 3, size.image, size.image)), labels: tp.Numpy.Placeholder((size.batch,), dtype=flow.int32)
    ) -> tp.Numpy:
        loss = margin_losses(embeddings(images, size), labels, size)
        schedule = flow.optimizer.PiecewiseScalingScheduler(size.rate, list(size.boundaries), 0.1)
        flow.optimizer.SGD(schedule, momentum=0.9).minimize(loss)
        return loss

    return job


def random_batch(size, random):
    images = random.standard_normal((size.batch, 3, size.image, size.image)).astype(np.float32)
    return images, random.integers(0, size.people, size.batch).astype(np.int32)


def main():
    parser = argparse.ArgumentParser(description="face recognition with partial FC")
    parser.add_argument("--devices", type=int, default=2)
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--every", type=int, default=10, help="print the loss of every so many steps")
    parser.add_argument("--small", action="store_true", help="two blocks and 24 people")
    parser.add_argument("--people", type=int, help="how many people there are")
    parser.add_argument("--sample", type=int, help="how many of them a step looks at")
    options = parser.parse_args()

    flow.config.gpu_device_num(options.devices)
    size = SMALL if options.small else Size()
    people = options.people or size.people
    size = Size(**{**vars(size), "people": people, "sample": min(options.sample or size.sample, people)})
    job = make_job(size)
    batch = random_batch(size, np.random.default_rng(0))
    for step in range(options.steps):
        loss = job(*batch)
        if step % options.every == 0 or step == options.steps - 1:
            print(f"step {step:4d}  loss {loss.mean():.6f}")


if __name__ == "__main__":
    main()
