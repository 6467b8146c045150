"""Wide & Deep: will the user click?  Tables of millions of rows, split over the devices; the dense layers are copied.

    python examples/zoo/wide_and_deep.py --small --devices 2 --steps 20
    mpiexec -n 4 python examples/zoo/wide_and_deep.py --data criteo/train --parts 256

    wide ids [batch, 2]    ──▶ table [2322444, 1]  split by rows     ──sum────────────────┐
    deep ids [batch, 26]   ──▶ table [2322444, 16] split by columns  ──┐                  ├──▶ one logit
    dense numbers [batch, 13] ─────────────────────────────────────────┴──▶ 7 x 1024, 1 ──┘

A step reads few rows of a table and updates these: LazyAdam.  The network is that of Cheng et al., Wide & Deep Learning for Recommender Systems,
2016, in the size that is measured with Criteo's data.
"""

import argparse
from dataclasses import dataclass

import numpy as np

import jobflow as flow
import jobflow.typing as tp


@dataclass(frozen=True)
class Size:
    #: samples of one step, over all devices
    batch: int = 16384
    rows: int = 2_322_444
    width: int = 16
    wide: int = 2
    deep: int = 26
    numbers: int = 13
    layers: tuple[int, ...] = (1024,) * 7
    dropout: float = 0.5
    rate: float = 1e-3


SMALL = Size(batch=16, rows=101, width=4, layers=(16, 8), dropout=0.0, rate=1e-2)
NAMES = ("labels", "dense_fields", "deep_sparse_fields", "wide_sparse_fields")


def table(name, shape, axis):
    """A table that is split over the devices along an axis: 0 is its rows."""
    initializer = flow.random_uniform_initializer(minval=-0.05, maxval=0.05)
    return flow.get_variable(name, shape, initializer=initializer, distribute=flow.distribute.split(axis))


def wide_and_deep(numbers, deep_ids, wide_ids, size):
    """The logit of a click, [batch, 1].  Each device looks for the ids of all samples in its part of a table."""
    everywhere = flow.distribute.broadcast()
    wide = flow.gather(table("wide_embedding", (size.rows, 1), 0), wide_ids.with_distribute(everywhere))
    wide = flow.math.reduce_sum(flow.reshape(wide, [-1, size.wide]), axis=[1], keepdims=True)
    deep = flow.gather(table("deep_embedding", (size.rows, size.width), 1), deep_ids.with_distribute(everywhere))
    deep = flow.parallel_cast(deep, distribute=flow.distribute.split(0), gradient_distribute=flow.distribute.split(2))
    x = flow.concat([flow.reshape(deep, [-1, size.deep * size.width]), numbers], axis=1)
    initializer = flow.glorot_uniform_initializer()
    for index, units in enumerate(size.layers):
        x = flow.layers.dense(x, units, activation=flow.nn.relu, kernel_initializer=initializer, name=f"fc{index}")
        x = flow.nn.dropout(x, size.dropout)
    return flow.layers.dense(x, 1, kernel_initializer=initializer, name="fc_last") + wide


def read_records(size, folder, parts):
    """Labels, numbers, ids of the deep and of the wide part, from OFRecord files."""
    records = flow.data.ofrecord_reader(folder, size.batch, parts, part_name_suffix_length=5, random_shuffle=True, shuffle_after_epoch=True)
    counts = (1, size.numbers, size.deep, size.wide)
    types = (flow.int32, flow.float, flow.int32, flow.int32)
    return [flow.data.OFRecordRawDecoder(records, name, shape=(n,), dtype=of) for name, n, of in zip(NAMES, counts, types, strict=True)]


def make_job(size, folder=None, parts=1):
    """The job that trains; it returns the losses of the samples, [batch, 1], and the probabilities of a click.

    With a folder it reads its own batches; without one it takes what NAMES lists.
    """
    config = flow.function_config()
    config.indexed_slices_optimizer_conf({"include_op_names": {"op_name": ["wide_embedding", "deep_embedding"]}})

    def train(labels, numbers, deep_ids, wide_ids):
        logits = wide_and_deep(numbers, deep_ids, wide_ids, size)
        loss = flow.nn.sigmoid_cross_entropy_with_logits(labels, logits)
        flow.optimizer.LazyAdam(flow.optimizer.PiecewiseConstantScheduler([], [size.rate])).minimize(loss)
        return loss, flow.math.sigmoid(logits)

    if folder:

        @flow.global_function("train", config)
        def job() -> tuple[tp.Numpy, tp.Numpy]:
            return train(*read_records(size, folder, parts))

    else:

        @flow.global_function("train", config)
        def job(
            labels: tp.Numpy.Placeholder((size.batch, 1), dtype=flow.int32),
            numbers: tp.Numpy.Placeholder((size.batch, size.numbers)),
            deep_ids: tp.Numpy.Placeholder((size.batch, size.deep), dtype=flow.int32),
            wide_ids: tp.Numpy.Placeholder((size.batch, size.wide), dtype=flow.int32),
        ) -> tuple[tp.Numpy, tp.Numpy]:
            return train(labels, numbers, deep_ids, wide_ids)

    return job


def random_batch(size, random):
    """Clicks that depend on the first ids."""
    deep, wide = (random.integers(0, size.rows, (size.batch, count)).astype(np.int32) for count in (size.deep, size.wide))
    labels = ((deep[:, :1] + wide[:, :1]) % 3 == 0).astype(np.int32)
    return labels, random.standard_normal((size.batch, size.numbers)).astype(np.float32), deep, wide


def area_under_curve(labels, scores):
    """The probability that a sample with a click has a higher score than one without."""
    clicked, other = scores[labels == 1], scores[labels == 0]
    return np.mean(clicked[:, np.newaxis] > other) if clicked.size and other.size else float("nan")


def main():
    parser = argparse.ArgumentParser(description="Wide & Deep")
    parser.add_argument("--devices", type=int, default=2)
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--every", type=int, default=10, help="print the loss of every so many steps")
    parser.add_argument("--small", action="store_true", help="tables of 101 rows")
    parser.add_argument("--data", help="a folder of OFRecord files")
    parser.add_argument("--parts", type=int, default=1, help="the number of files in that folder")
    options = parser.parse_args()

    flow.config.gpu_device_num(options.devices)
    size = SMALL if options.small else Size()
    job = make_job(size, options.data, options.parts)
    batch = random_batch(size, np.random.default_rng(0))
    for step in range(options.steps):
        loss, scores = job() if options.data else job(*batch)
        if step % options.every == 0 or step == options.steps - 1:
            print(f"step {step:4d}  loss {loss.mean():.6f}")
    if not options.data:
        print(f"area under the curve of one batch {area_under_curve(batch[0], scores):.3f}")


if __name__ == "__main__":
    main()
