"""GPT-2, parallel in three ways at once: over data, inside matrices (tensor parallelism) and over blocks (a pipeline).

    python examples/zoo/gpt2.py --small --devices 4 --tensor-parallel 2 --pipeline 2 --steps 20
    mpiexec -n 16 python examples/zoo/gpt2.py --tensor-parallel 4 --pipeline 2 --micro-batches 8 --checkpointing

The devices of a stage of the pipeline are a mesh, data x tensor.  Every weight and every cast says how it lies on both axes:

    x [S(0), B]  ──W [B, S(0)]──▶  hidden [S(0), S(1)]  ──W [B, S(1)]──▶  y [S(0), P]  ──cast──▶  [S(0), B]

The losses do not depend on any of this.  `examples/gpt.py` has the same by one line, a strategy.  The network is that of Radford et al., Language
Models are Unsupervised Multitask Learners, 2019, the split of the matrices that of Shoeybi et al., Megatron-LM, 2019.
"""

import argparse
import math
from dataclasses import dataclass

import numpy as np

import jobflow as flow
import jobflow.typing as tp


@dataclass(frozen=True)
class Size:
    """The small published model; the batch is over all devices and all micro-batches."""

    batch: int = 32
    length: int = 1024
    words: int = 50304
    width: int = 768
    heads: int = 12
    blocks: int = 12
    dropout: float = 0.1
    rate: float = 1.5e-4
    warmup: int = 3200
    steps: int = 320_000


SMALL = Size(batch=8, length=16, words=96, width=32, heads=4, blocks=2, dropout=0.0, rate=5e-3, warmup=2, steps=100)


@dataclass(frozen=True)
class Parallel:
    """How many devices each axis has.  Stage i of the pipeline is on the devices from i * data * tensor."""

    data: int = 1
    tensor: int = 1
    pipeline: int = 1
    micro_batches: int = 1
    checkpointing: bool = False

    def stage(self, block, blocks, checkpointing=False):
        """The placement of a block, and its place in the pipeline; whether its inside is computed again for the backward pass."""
        stage = block * self.pipeline // blocks
        first = stage * self.data * self.tensor
        ids = f"0:{first}-{first + self.data * self.tensor - 1}"
        return flow.scope.placement("gpu", ids, (self.data, self.tensor)), flow.experimental.scope.config(
            pipeline_stage_id_hint=stage, checkpointing=checkpointing
        )


WHOLE, COLUMNS, ROWS = ["B", "B"], ["B", "S(0)"], ["B", "S(1)"]


def variable(name, shape, layout, initializer):
    return flow.get_variable(name, shape, initializer=initializer, parallel_distribution=layout)


def whole(x):
    """The rows of x split over the mesh's data axis, and whole on its other axis: x itself, and its gradient."""
    layout = ["S(0)", "B"]
    return flow.hierarchical_parallel_cast(x, parallel_distribution=layout, grad_mode="manual", grad_parallel_distribution=layout)


def linear(x, units, layout, name, deviation=0.02):
    """x W^T + b.  W is [units, inputs]: split along its units (COLUMNS) it gives a split result, along its inputs (ROWS) a partial one."""
    with flow.scope.namespace(name):
        weight = variable("weight", (units, x.shape[-1]), layout, flow.random_normal_initializer(stddev=deviation))
        bias = variable("bias", (units,), COLUMNS if layout is COLUMNS else WHOLE, flow.zeros_initializer())
        if layout is COLUMNS:
            x = whole(x)
        y = flow.matmul(x, weight, transpose_b=True)
        if layout is ROWS:
            y = whole(y)
        return flow.nn.bias_add(y, bias)


def norm(x, name):
    return flow.layers.layer_norm(x, begin_norm_axis=-1, begin_params_axis=-1, name=name)


def attention(x, size, deviation):
    """Every word looks at itself and those before it: x is [batch * length, width].  The heads are split, like the columns of qkv."""
    each = size.width // size.heads
    qkv = flow.reshape(linear(x, 3 * size.width, COLUMNS, "qkv"), [-1, size.length, size.heads, 3 * each])

    def heads(index):
        part = flow.slice(qkv, [None, None, None, index * each], [None, None, None, each])
        return flow.transpose(part, perm=[0, 2, 1, 3])

    scores = flow.matmul(heads(0), heads(1), transpose_b=True)
    weights = flow.math.fused_scale_tril_softmax_dropout(scores, diagonal=0, fill_value=-1e4, scale=1 / math.sqrt(each), rate=size.dropout)
    mixed = flow.transpose(flow.matmul(weights, heads(2)), perm=[0, 2, 1, 3])
    return linear(flow.reshape(mixed, [-1, size.width]), size.width, ROWS, "out", deviation)


def block(x, size):
    deviation = 0.02 / math.sqrt(2 * size.blocks)
    x = x + flow.nn.dropout(attention(norm(x, "norm1"), size, deviation), size.dropout)
    wide = flow.math.gelu(linear(norm(x, "norm2"), 4 * size.width, COLUMNS, "up"))
    return x + flow.nn.dropout(linear(wide, size.width, ROWS, "down", deviation), size.dropout)


def losses(tokens, size, parallel):
    """The loss of every word but the first; tokens are [batch, length + 1].  The words' table is split by words, at both ends."""
    initializer = flow.random_normal_initializer(stddev=0.02)
    words = flow.slice(tokens, [None, 0], [None, size.length])
    following = flow.slice(tokens, [None, 1], [None, size.length])
    placement, hints = parallel.stage(0, size.blocks)
    with placement, hints:
        words = flow.hierarchical_parallel_cast(words, parallel_distribution=["S(0)", "B"])
        table = variable("words", (size.words, size.width), COLUMNS, initializer)
        places = variable("positions", (size.length, size.width), WHOLE, initializer)
        x = whole(flow.gather(table, words))
        x = flow.nn.dropout(flow.reshape(x + flow.reshape(places, [1, size.length, size.width]), [-1, size.width]), size.dropout)
    for index in range(size.blocks):
        placement, hints = parallel.stage(index, size.blocks, parallel.checkpointing)
        with placement, hints, flow.scope.namespace(f"h{index}"):
            x = block(x, size)
    placement, hints = parallel.stage(size.blocks - 1, size.blocks)
    with placement, hints:
        logits = flow.hierarchical_parallel_cast(flow.matmul(whole(norm(x, "norm")), table, transpose_b=True), parallel_distribution=["S(0)", "S(1)"])
        following = flow.hierarchical_parallel_cast(flow.reshape(following, [-1]), parallel_distribution=["S(0)", "B"])
        return flow.nn.distributed_sparse_softmax_cross_entropy_with_logits(following, logits)


def make_job(size, parallel, folder=None):
    """The job that trains; it takes tokens [batch, length + 1], or reads them from `folder`, and returns the loss of every word."""
    config = flow.function_config()
    config.prune_parallel_cast_ops(True)
    if parallel.micro_batches > 1:
        config.train.num_gradient_accumulation_steps(parallel.micro_batches)

    def train(tokens):
        loss = losses(tokens, size, parallel)
        schedule = flow.optimizer.CosineScheduler(size.rate, size.steps, alpha=0.1, warmup=flow.optimizer.warmup.linear(size.warmup, 0.0))
        flow.optimizer.AdamW(
            schedule,
            beta2=0.95,
            do_bias_correction=True,
            weight_decay=0.01,
            weight_decay_excludes=["bias", "norm"],
            grad_clipping=flow.optimizer.grad_clipping.by_global_norm(1.0),
        ).minimize(loss)
        return loss

    @flow.global_function("train", config)
    def job(tokens: tp.Numpy.Placeholder((size.batch, size.length + 1), dtype=flow.int32)) -> tp.Numpy:
        return train(tokens)

    return job


def random_batch(size, random):
    """Counting upwards from a random word, by steps of one or two."""
    starts, strides = random.integers(0, size.words, (size.batch, 1)), random.integers(1, 3, (size.batch, 1))
    return ((starts + strides * np.arange(size.length + 1)) % size.words).astype(np.int32)


def main():
    parser = argparse.ArgumentParser(description="GPT-2")
    parser.add_argument("--devices", type=int, default=2)
    parser.add_argument("--tensor-parallel", type=int, default=1)
    parser.add_argument("--pipeline", type=int, default=1)
    parser.add_argument("--micro-batches", type=int, default=1)
    parser.add_argument("--checkpointing", action="store_true", help="compute the inside of blocks again for the backward pass")
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--every", type=int, default=10, help="print the loss of every so many steps")
    parser.add_argument("--small", action="store_true", help="two blocks of width 32")
    options = parser.parse_args()

    data, rest = divmod(options.devices, options.tensor_parallel * options.pipeline)
    if rest or not data:
        parser.error(f"{options.devices} devices are not a multiple of {options.tensor_parallel} x {options.pipeline}")
    flow.config.gpu_device_num(options.devices)
    size = SMALL if options.small else Size()
    parallel = Parallel(data, options.tensor_parallel, options.pipeline, options.micro_batches, options.checkpointing)
    job = make_job(size, parallel)
    random = np.random.default_rng(0)
    for step in range(options.steps):
        loss = job(random_batch(size, random))
        if step % options.every == 0 or step == options.steps - 1:
            print(f"step {step:4d}  loss {loss.mean():.6f}")


if __name__ == "__main__":
    main()
