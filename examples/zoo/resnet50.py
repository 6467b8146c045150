"""ResNet-50 on ImageNet: OFRecord files of JPEGs, data parallelism, label smoothing, a cosine schedule with warm-up, half precision.

    python examples/zoo/resnet50.py --devices 2 --small --steps 20
    mpiexec -n 8 python examples/zoo/resnet50.py --data imagenet/train --val imagenet/validation --parts 256

Without --data it trains on random images, which shows the speed.  The network is that of He et al., Deep Residual Learning for Image
Recognition, 2015, with the stride on the 3x3 convolution.
"""

import argparse
from dataclasses import dataclass

import numpy as np

import jobflow as flow
import jobflow.typing as tp

#: of ImageNet's training images, by channel
MEAN, DEVIATION = (123.68, 116.779, 103.939), (58.393, 57.12, 57.375)


@dataclass(frozen=True)
class Size:
    #: images of one step, over all devices
    batch: int = 256
    image: int = 224
    classes: int = 1000
    width: int = 64
    blocks: tuple[int, ...] = (3, 4, 6, 3)
    rate: float = 0.256
    warmup: int = 6255
    steps: int = 450_000
    half: bool = False


SMALL = Size(batch=8, image=32, classes=10, width=8, blocks=(1, 2), rate=0.05, warmup=2, steps=100)


def convolution(x, filters, kernel, stride, name):
    padding = kernel // 2
    return flow.layers.conv2d(
        x,
        filters,
        kernel,
        stride,
        padding=[[0, 0], [0, 0], [padding, padding], [padding, padding]],
        use_bias=False,
        kernel_initializer=flow.variance_scaling_initializer(2.0, "fan_out", "random_normal", "NCHW"),
        kernel_regularizer=flow.regularizers.l2(1.0 / 32768),
        name=name,
    )


NORM = {"axis": 1, "momentum": 0.9, "epsilon": 1e-5}


def block(x, width, stride, training, name):
    """1x1, 3x3 and 1x1 convolutions next to a shortcut, which is a convolution where the shape changes."""
    with flow.scope.namespace(name):
        shortcut = x
        if stride > 1 or x.shape[1] != 4 * width:
            shortcut = convolution(x, 4 * width, 1, stride, "shortcut")
            shortcut = flow.layers.batch_normalization(shortcut, **NORM, training=training, name="shortcut_bn")
        y = flow.layers.batch_normalization_relu(convolution(x, width, 1, 1, "conv1"), **NORM, training=training, name="bn1")
        y = flow.layers.batch_normalization_relu(convolution(y, width, 3, stride, "conv2"), **NORM, training=training, name="bn2")
        y = convolution(y, 4 * width, 1, 1, "conv3")
        return flow.layers.batch_normalization_add_relu(y, shortcut, **NORM, training=training, name="bn3")


def resnet(images, size, training):
    """Logits of the classes."""
    x = flow.layers.batch_normalization_relu(convolution(images, size.width, 7, 2, "conv"), **NORM, training=training, name="bn")
    x = flow.nn.max_pool2d(x, ksize=3, strides=2, padding=[[0, 0], [0, 0], [1, 1], [1, 1]])
    for stage, count in enumerate(size.blocks):
        for index in range(count):
            stride = 2 if stage and not index else 1
            x = block(x, size.width << stage, stride, training, f"stage{stage}-block{index}")
    x = flow.math.reduce_mean(x, axis=[2, 3])
    return flow.layers.dense(x, size.classes, kernel_initializer=flow.random_normal_initializer(stddev=0.01), name="classes")


def read_records(size, folder, parts, training):
    """Images [batch, 3, image, image] and labels [batch] from OFRecord files: encoded images, cropped at random for training."""
    records = flow.data.ofrecord_reader(folder, size.batch, parts, part_name_suffix_length=5, random_shuffle=training, shuffle_after_epoch=training)
    labels = flow.data.OFRecordRawDecoder(records, "class/label", shape=(), dtype=flow.int32)
    if training:
        images = flow.data.OFRecordImageDecoderRandomCrop(records, "encoded")
        images, _, _ = flow.image.Resize(images, target_size=[size.image, size.image])
        mirror = flow.random.CoinFlip(batch_size=size.batch)
    else:
        images = flow.data.OFRecordImageDecoder(records, "encoded")
        images, _, _ = flow.image.Resize(images, resize_side="shorter", keep_aspect_ratio=True, target_size=size.image * 8 // 7)
        mirror = None
    images = flow.image.CropMirrorNormalize(
        images, mirror, crop_h=size.image, crop_w=size.image, output_layout="NCHW", mean=list(MEAN), std=list(DEVIATION), output_dtype=flow.float
    )
    return images, flow.reshape(labels, [-1])


def make_jobs(size, train_folder=None, validation_folder=None, parts=1):
    """The job that trains, which returns the losses of the images, and the one that classifies, which returns logits and labels.

    A job with a folder reads its own images; without one it takes images [batch, 3, image, image] and labels [batch].
    """
    images_type = tp.Numpy.Placeholder((size.batch, 3, size.image, size.image))
    labels_type = tp.Numpy.Placeholder((size.batch,), dtype=flow.int32)
    config = flow.function_config()
    config.enable_auto_mixed_precision(size.half)

    def train(images, labels):
        smoothing = 0.1
        truth = flow.one_hot(labels, size.classes, 1 - smoothing + smoothing / size.classes, smoothing / size.classes, dtype=flow.float)
        loss = flow.nn.softmax_cross_entropy_with_logits(truth, resnet(images, size, training=True), name="loss")
        schedule = flow.optimizer.CosineScheduler(size.rate, size.steps, warmup=flow.optimizer.warmup.linear(size.warmup, 0.0))
        scale = flow.optimizer.loss_scale.dynamic_loss_scale(2**15) if size.half else None
        flow.optimizer.SGD(schedule, momentum=0.875, loss_scale_policy=scale).minimize(loss)
        return loss

    if train_folder:

        @flow.global_function("train", config)
        def train_job() -> tp.Numpy:
            return train(*read_records(size, train_folder, parts, training=True))

    else:

        @flow.global_function("train", config)
        def train_job(images: images_type, labels: labels_type) -> tp.Numpy:
            return train(images, labels)

    if validation_folder:

        @flow.global_function("predict", config)
        def classify() -> tuple[tp.Numpy, tp.Numpy]:
            images, labels = read_records(size, validation_folder, parts, training=False)
            return resnet(images, size, training=False), labels

    else:

        @flow.global_function("predict", config)
        def classify(images: images_type, labels: labels_type) -> tuple[tp.Numpy, tp.Numpy]:
            return resnet(images, size, training=False), labels

    return train_job, classify


def random_batch(size, random):
    images = random.standard_normal((size.batch, 3, size.image, size.image)).astype(np.float32)
    return images, random.integers(0, size.classes, size.batch).astype(np.int32)


def main():
    parser = argparse.ArgumentParser(description="ResNet-50")
    parser.add_argument("--devices", type=int, default=2)
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--every", type=int, default=10, help="print the loss of every so many steps")
    parser.add_argument("--small", action="store_true", help="a net of three blocks and small images")
    parser.add_argument("--half", action="store_true", help="half precision where it is safe")
    parser.add_argument("--data", help="a folder of OFRecord files to train on")
    parser.add_argument("--val", help="a folder of OFRecord files to validate with")
    parser.add_argument("--parts", type=int, default=1, help="the number of files in such a folder")
    options = parser.parse_args()

    flow.config.gpu_device_num(options.devices)
    size = SMALL if options.small else Size(half=options.half)
    train_job, classify = make_jobs(size, options.data, options.val, options.parts)
    random = np.random.default_rng(0)
    batch = random_batch(size, random)
    for step in range(options.steps):
        loss = train_job() if options.data else train_job(*batch)
        if step % options.every == 0 or step == options.steps - 1:
            print(f"step {step:4d}  loss {loss.mean():.6f}")
    logits, labels = classify() if options.val else classify(*batch)
    print(f"accuracy of one batch {np.mean(logits.argmax(axis=1) == labels):.3f}")


if __name__ == "__main__":
    main()
