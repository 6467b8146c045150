"""A small GPT that learns to write Python: a transformer over bytes, trained on the standard library's own source.

python examples/gpt.py --devices 2 --steps 20
mpiexec -n 4 python examples/gpt.py --steps 20 --strategy 2x2

How it is parallel is one line, `config.strategy(...)`: dp, tp, pp, 2x2 (data x tensor), 2x2x2 (pipeline x data x tensor), zero1, zero2,
zero3, or data=2,tensor=2,zero=1.  The model says nothing about it, and the losses are the same.
"""

import argparse
import math
import sysconfig
from dataclasses import dataclass
from pathlib import Path

import numpy as np

import jobflow as flow
import jobflow.typing as tp


@dataclass(frozen=True)
class Size:
    batch: int = 8
    length: int = 128
    width: int = 256
    heads: int = 4
    blocks: int = 4
    words: int = 256
    #: keep only what goes into a block, and compute the rest again for the backward pass
    checkpointing: bool = False


def dense(x, units, name, activation=None):
    return flow.layers.dense(x, units, activation=activation, kernel_initializer=flow.random_normal_initializer(stddev=0.02), name=name)


def attention(x, size, name):
    """Every position looks at itself and those before it.  x is [batch * length, width].

    The columns of qkv are those of the first head's query, key and value, then those of the second head's ...: heads can be split.
    """
    each = size.width // size.heads
    qkv = flow.reshape(dense(x, 3 * size.width, f"{name}-qkv"), [-1, size.length, size.heads, 3 * each])

    def heads(index):
        part = flow.slice(qkv, [None, None, None, index * each], [None, None, None, each])
        return flow.transpose(part, perm=[0, 2, 1, 3])

    scores = flow.matmul(heads(0), heads(1), transpose_b=True)
    weights = flow.math.fused_scale_tril_softmax_dropout(scores, diagonal=0, fill_value=-1e30, scale=1 / math.sqrt(each), rate=0.0)
    mixed = flow.transpose(flow.matmul(weights, heads(2)), perm=[0, 2, 1, 3])
    return dense(flow.reshape(mixed, [-1, size.width]), size.width, f"{name}-out")


def block(x, size, name):
    x = x + attention(flow.layers.layer_norm(x, name=f"{name}-norm1"), size, name)
    wide = dense(flow.layers.layer_norm(x, name=f"{name}-norm2"), 4 * size.width, f"{name}-up", flow.math.gelu)
    return x + dense(wide, size.width, f"{name}-down")


def gpt(words, size):
    """Logits of the next word at every position: [batch * length, words]."""
    initializer = flow.random_normal_initializer(stddev=0.02)
    table = flow.get_variable("words", (size.words, size.width), initializer=initializer)
    positions = flow.get_variable("positions", (size.length, size.width), initializer=initializer)
    x = flow.gather(table, words) + flow.reshape(positions, [1, size.length, size.width])
    x = flow.reshape(x, [-1, size.width])
    layer = flow.checkpointed(block) if size.checkpointing else block
    for index in range(size.blocks):
        x = layer(x, size, f"block{index}")
    return dense(flow.layers.layer_norm(x, name="norm"), size.words, "head")


def make_train_job(size, rate=3e-4, decay=0.1, strategy=None, microbatches=1):
    config = flow.function_config()
    if microbatches > 1:
        config.train.num_gradient_accumulation_steps(microbatches)
    config.strategy(strategy or flow.strategies.data_parallel())

    @flow.global_function("train", config)
    def train_job(
        words: tp.Numpy.Placeholder((size.batch, size.length), dtype=flow.int32),
        following: tp.Numpy.Placeholder((size.batch, size.length), dtype=flow.int32),
    ) -> tp.Numpy:
        labels = flow.reshape(following, [-1])
        loss = flow.nn.sparse_softmax_cross_entropy_with_logits(labels, gpt(words, size), name="softmax_loss")
        schedule = flow.optimizer.PiecewiseConstantScheduler([], [rate])
        flow.optimizer.AdamW(schedule, do_bias_correction=True, weight_decay=decay).minimize(loss)
        return loss

    return train_job


def source_bytes(limit=1_000_000):
    """The first `limit` bytes of the standard library, file by file in order of their names."""
    files = sorted(Path(sysconfig.get_paths()["stdlib"]).glob("*.py"))
    return np.frombuffer(b"".join(path.read_bytes() for path in files)[:limit], np.uint8).astype(np.int32)


def main():
    parser = argparse.ArgumentParser(description="a GPT over bytes")
    parser.add_argument("--devices", type=int, default=2)
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--strategy", default="dp", help="how the job is parallel")
    parser.add_argument("--checkpointing", action="store_true", help="compute the inside of blocks again for the backward pass")
    parser.add_argument("--every", type=int, default=10, help="print the loss of every so many steps")
    options = parser.parse_args()

    flow.config.gpu_device_num(options.devices)
    size = Size(checkpointing=options.checkpointing)
    train_job = make_train_job(size, rate=1e-3, strategy=flow.strategies.named(options.strategy))
    text, random = source_bytes(), np.random.RandomState(0)
    for step in range(options.steps):
        starts = random.randint(0, len(text) - size.length - 1, size.batch)
        windows = text[starts[:, np.newaxis] + np.arange(size.length + 1)]
        loss = train_job(windows[:, :-1], windows[:, 1:])
        if step % options.every == 0 or step == options.steps - 1:
            print(f"step {step:4d}  loss {loss.mean():.6f}")


if __name__ == "__main__":
    main()
