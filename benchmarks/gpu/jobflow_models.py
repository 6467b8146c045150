"""GPT-2 and ResNet-50 as jobflow job functions."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from workloads import Gpt2, ResNet50

import jobflow as flow
import jobflow.typing as tp

#: compute type of products and convolutions by precision; None: float32
PRECISIONS = {"float32": None, "bfloat16": flow.bfloat16}


def job(size: Gpt2 | ResNet50, batch: int, precision: str) -> Callable[..., Any]:
    """Return a job that trains one step and returns the mean loss."""
    config = flow.function_config()
    if PRECISIONS[precision] is not None:
        config.mixed_precision(PRECISIONS[precision])
    return gpt2_job(size, batch, config) if isinstance(size, Gpt2) else resnet50_job(size, batch, config)


# GPT-2 --------------------------------------------------------------------------------------------------------------


def gpt2_job(size: Gpt2, batch: int, config: Any) -> Callable[..., Any]:
    shape = (batch, size.length)

    @flow.global_function("train", config)
    def train_step(words: tp.Numpy.Placeholder(shape, dtype=flow.int32), following: tp.Numpy.Placeholder(shape, dtype=flow.int32)) -> tp.Numpy:
        labels = flow.reshape(following, [-1])
        losses = flow.nn.sparse_softmax_cross_entropy_with_logits(labels, gpt2(words, size), name="loss")
        loss = flow.math.reduce_mean(losses)
        schedule = flow.optimizer.PiecewiseConstantScheduler([], [size.rate])
        flow.optimizer.AdamW(
            schedule,
            beta1=size.betas[0],
            beta2=size.betas[1],
            epsilon=size.epsilon,
            do_bias_correction=True,
            weight_decay=size.decay,
            weight_decay_excludes=["bias", "gamma", "beta"],
        ).minimize(loss)
        return loss

    return train_step


def gpt2(words: Any, size: Gpt2) -> Any:
    """Return next-token logits [batch * length, words]."""
    zeros = flow.zeros_initializer()
    table = flow.get_variable("words", (size.words, size.width), initializer=zeros)
    encoding = flow.get_variable("positions", (size.length, size.width), initializer=zeros)
    x = flow.gather(table, words) + flow.reshape(encoding, [1, size.length, size.width])
    x = flow.reshape(x, [-1, size.width])
    for index in range(size.blocks):
        x = gpt2_block(x, size, f"blocks-{index}")
    return flow.matmul(layer_norm(x, "norm"), table, transpose_b=True)


def gpt2_block(x: Any, size: Gpt2, name: str) -> Any:
    x = x + attention(layer_norm(x, f"{name}-norm1"), size, name)
    wide = flow.nn.functional.gelu(dense(layer_norm(x, f"{name}-norm2"), 4 * size.width, f"{name}-up"), approximate="tanh")
    return x + dense(wide, size.width, f"{name}-down")


def attention(x: Any, size: Gpt2, name: str) -> Any:
    """Apply causal self-attention to x [batch * length, width]; qkv is packed by Q, K, V."""
    each = size.width // size.heads
    qkv = flow.reshape(dense(x, 3 * size.width, f"{name}-qkv"), [-1, size.length, 3 * size.heads, each])

    def heads(part: int) -> Any:
        first = part * size.heads
        return flow.transpose(flow.slice(qkv, [None, None, first, None], [None, None, size.heads, None]), perm=[0, 2, 1, 3])

    scores = flow.matmul(heads(0), heads(1), transpose_b=True)
    shares = flow.math.fused_scale_tril_softmax_dropout(scores, diagonal=0, fill_value=-1e30, scale=1 / math.sqrt(each), rate=0.0)
    mixed = flow.transpose(flow.matmul(shares, heads(2)), perm=[0, 2, 1, 3])
    return dense(flow.reshape(mixed, [-1, size.width]), size.width, f"{name}-out")


def dense(x: Any, units: int, name: str) -> Any:
    return flow.layers.dense(x, units, kernel_initializer=flow.zeros_initializer(), name=name)


def layer_norm(x: Any, name: str) -> Any:
    return flow.layers.layer_norm(x, begin_norm_axis=-1, begin_params_axis=-1, name=name)


# ResNet-50 ----------------------------------------------------------------------------------------------------------


def resnet50_job(size: ResNet50, batch: int, config: Any) -> Callable[..., Any]:
    shape = (batch, 3, size.image, size.image)

    @flow.global_function("train", config)
    def train_step(images: tp.Numpy.Placeholder(shape), labels: tp.Numpy.Placeholder((batch,), dtype=flow.int32)) -> tp.Numpy:
        losses = flow.nn.sparse_softmax_cross_entropy_with_logits(labels, resnet50(images, size), name="loss")
        loss = flow.math.reduce_mean(losses)
        schedule = flow.optimizer.PiecewiseConstantScheduler([], [size.rate])
        flow.optimizer.SGD(schedule, momentum=size.momentum).minimize(loss)
        return loss

    return train_step


def resnet50(images: Any, size: ResNet50) -> Any:
    """Return class logits [batch, classes]."""
    x = normed(convolution(images, size.width, 7, 2, size, "conv"), "bn")
    x = flow.nn.max_pool2d(x, ksize=3, strides=2, padding=[[0, 0], [0, 0], [1, 1], [1, 1]])
    for name, channels, width, stride in size.stages():
        x = bottleneck(x, channels, width, stride, size, name)
    x = flow.math.reduce_mean(x, axis=[2, 3])
    decayed = flow.regularizers.l2(size.decay)
    return flow.layers.dense(x, size.classes, kernel_initializer=flow.zeros_initializer(), kernel_regularizer=decayed, name="classes")


def bottleneck(x: Any, channels: int, width: int, stride: int, size: ResNet50, name: str) -> Any:
    shortcut = x
    if stride > 1 or channels != 4 * width:
        shortcut = convolution(x, 4 * width, 1, stride, size, f"{name}-shortcut")
        shortcut = flow.layers.batch_normalization(shortcut, **NORM, name=f"{name}-shortcut_bn")
    y = normed(convolution(x, width, 1, 1, size, f"{name}-conv1"), f"{name}-bn1")
    y = normed(convolution(y, width, 3, stride, size, f"{name}-conv2"), f"{name}-bn2")
    y = convolution(y, 4 * width, 1, 1, size, f"{name}-conv3")
    return flow.layers.batch_normalization_add_relu(y, shortcut, **NORM, name=f"{name}-bn3")


NORM = {"axis": 1, "momentum": 0.9, "epsilon": 1e-5, "training": True}


def normed(x: Any, name: str) -> Any:
    return flow.layers.batch_normalization_relu(x, **NORM, name=name)


def convolution(x: Any, filters: int, side: int, stride: int, size: ResNet50, name: str) -> Any:
    around = [[0, 0], [0, 0], [side // 2, side // 2], [side // 2, side // 2]]
    options = {"use_bias": False, "kernel_initializer": flow.zeros_initializer(), "kernel_regularizer": flow.regularizers.l2(size.decay)}
    return flow.layers.conv2d(x, filters, side, stride, padding=around, name=name, **options)
