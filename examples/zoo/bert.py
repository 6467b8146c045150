"""BERT: pretraining (masked words and next sentences) and answering questions (SQuAD), by two heads on one encoder.

    python examples/zoo/bert.py pretrain --small --devices 2 --steps 20
    mpiexec -n 8 python examples/zoo/bert.py squad --steps 1000

It trains on random text, which shows the speed; `read_records` reads the OFRecord files that BERT's published scripts make.  The network is that of
Devlin et al., BERT: Pre-training of Deep Bidirectional Transformers, 2018.
"""

import argparse
import math
from dataclasses import dataclass

import numpy as np

import jobflow as flow
import jobflow.typing as tp


@dataclass(frozen=True)
class Size:
    """The base model.  Batches are over all devices."""

    batch: int = 64
    length: int = 128
    #: masked words of a sequence
    masked: int = 20
    words: int = 30522
    width: int = 768
    heads: int = 12
    blocks: int = 12
    dropout: float = 0.1
    rate: float = 1e-4
    warmup: int = 10_000
    steps: int = 1_000_000

    #: numbers of a field that has one
    one = 1


SMALL = Size(batch=8, length=16, masked=3, words=99, width=32, heads=4, blocks=2, dropout=0.0, rate=5e-3, warmup=2, steps=100)

#: the arguments of a job: name -> how many numbers a sequence has
SEQUENCE = {"words": "length", "segments": "length", "mask": "length"}
PRETRAINING = SEQUENCE | {"positions": "masked", "masked_words": "masked", "weights": "masked", "follows": "one"}
SQUAD = SEQUENCE | {"starts": "one", "ends": "one"}
#: the names of these in OFRecord files
IN_RECORDS = {
    "words": "input_ids",
    "segments": "segment_ids",
    "mask": "input_mask",
    "positions": "masked_lm_positions",
    "masked_words": "masked_lm_ids",
    "weights": "masked_lm_weights",
    "follows": "next_sentence_labels",
    "starts": "start_positions",
    "ends": "end_positions",
}

initializer = flow.truncated_normal_initializer(stddev=0.02)


def dense(x, units, name, activation=None):
    return flow.layers.dense(x, units, activation=activation, kernel_initializer=initializer, name=name)


def norm(x, name):
    return flow.layers.layer_norm(x, begin_norm_axis=-1, begin_params_axis=-1, epsilon=1e-12, name=name)


def embeddings(words, segments, size):
    """Vectors of words, positions and segments, added: [batch * length, width]; and the table of words."""
    with flow.scope.namespace("embeddings"):
        table = flow.get_variable("word_embeddings", (size.words, size.width), initializer=initializer)
        places = flow.get_variable("position_embeddings", (1, size.length, size.width), initializer=initializer)
        kinds = flow.get_variable("token_type_embeddings", (2, size.width), initializer=initializer)
        x = flow.gather(table, words) + flow.gather(kinds, segments) + places
        x = norm(flow.reshape(x, [-1, size.width]), "LayerNorm")
        return flow.nn.dropout(x, size.dropout), table


def attention(x, bias, size):
    """Every word looks at all words that are not padding; bias is [batch, 1, 1, length]."""
    each = size.width // size.heads

    def heads(name):
        return flow.transpose(flow.reshape(dense(x, size.width, name), [-1, size.length, size.heads, each]), perm=[0, 2, 1, 3])

    scores = flow.matmul(heads("query"), heads("key"), transpose_b=True, alpha=1 / math.sqrt(each))
    weights = flow.nn.dropout(flow.nn.softmax(scores + bias), size.dropout)
    mixed = flow.transpose(flow.matmul(weights, heads("value")), perm=[0, 2, 1, 3])
    return flow.reshape(mixed, [-1, size.width])


def encoder(words, segments, mask, size):
    """The encoded words, [batch * length, width], and the table of words."""
    x, table = embeddings(words, segments, size)
    bias = flow.reshape(flow.math.multiply(flow.cast(mask, flow.float) - 1.0, 10000.0), [-1, 1, 1, size.length])
    for index in range(size.blocks):
        with flow.scope.namespace(f"layer_{index}"):
            mixed = dense(attention(x, bias, size), size.width, "attention_output")
            x = norm(x + flow.nn.dropout(mixed, size.dropout), "attention_LayerNorm")
            y = dense(dense(x, 4 * size.width, "intermediate", flow.math.gelu), size.width, "output")
            x = norm(x + flow.nn.dropout(y, size.dropout), "output_LayerNorm")
    return x, table


def masked_word_loss(x, table, positions, masked_words, weights, size):
    """The mean over the masked words that are there: those whose weight is 1."""
    with flow.scope.namespace("cls-predictions"):
        x = flow.gather(flow.reshape(x, [-1, size.length, size.width]), positions, axis=1, batch_dims=1)
        x = norm(dense(flow.reshape(x, [-1, size.width]), size.width, "transform", flow.math.gelu), "transform_LayerNorm")
        bias = flow.get_variable("output_bias", (size.words,), initializer=flow.zeros_initializer())
        logits = flow.nn.bias_add(flow.matmul(x, table, transpose_b=True), bias)
        loss = flow.nn.sparse_softmax_cross_entropy_with_logits(flow.reshape(masked_words, [-1]), logits)
        weights = flow.reshape(weights, [-1])
        return flow.math.reduce_sum(loss * weights) / (flow.math.reduce_sum(weights) + 1e-5)


def next_sentence_loss(x, follows, size):
    first = flow.reshape(flow.slice(flow.reshape(x, [-1, size.length, size.width]), [None, 0, 0], [None, 1, -1]), [-1, size.width])
    pooled = dense(first, size.width, "pooler", flow.math.tanh)
    logits = dense(pooled, 2, "cls-seq_relationship")
    return flow.math.reduce_mean(flow.nn.sparse_softmax_cross_entropy_with_logits(flow.reshape(follows, [-1]), logits))


def question_losses(x, starts, ends, size):
    """Of each sequence: the mean of the losses of where its answer starts and where it ends."""
    logits = flow.transpose(flow.reshape(dense(x, 2, "cls-squad"), [-1, size.length, 2]), perm=[2, 0, 1])

    def loss(index, place):
        part = flow.reshape(flow.slice(logits, [index, None, None], [1, None, None]), [-1, size.length])
        return flow.nn.sparse_softmax_cross_entropy_with_logits(flow.reshape(place, [-1]), part)

    return (loss(0, starts) + loss(1, ends)) * 0.5


def minimize(loss, size):
    warmup = flow.optimizer.warmup.linear(size.warmup, 0.0)
    flow.optimizer.AdamW(
        flow.optimizer.PolynomialScheduler(size.rate, size.steps, end_learning_rate=0.0, warmup=warmup),
        epsilon=1e-6,
        weight_decay=0.01,
        weight_decay_excludes=["bias", "LayerNorm"],
        grad_clipping=flow.optimizer.grad_clipping.by_global_norm(1.0),
    ).minimize(loss)


def read_records(size, folder, parts, fields):
    """The arguments of a job, by name, from OFRecord files."""
    records = flow.data.ofrecord_reader(folder, size.batch, parts, part_name_suffix_length=5, random_shuffle=True, shuffle_after_epoch=True)

    def decoded(field):
        return flow.data.OFRecordRawDecoder(records, IN_RECORDS[field], shape=(getattr(size, fields[field]),), dtype=kind(field))

    return {field: decoded(field) for field in fields}


def kind(field):
    return flow.float if field == "weights" else flow.int32


def make_job(task, size, folder=None, parts=1):
    """The job that trains for a task, `pretrain` or `squad`; it returns its loss.

    With a folder it reads its own batches; without one it takes the arguments of PRETRAINING or SQUAD, in this order.
    """
    fields = PRETRAINING if task == "pretrain" else SQUAD

    def train(words, segments, mask, **targets):
        x, table = encoder(words, segments, mask, size)
        if task == "pretrain":
            follows = targets.pop("follows")
            loss = masked_word_loss(x, table, size=size, **targets) + next_sentence_loss(x, follows, size)
        else:
            loss = question_losses(x, size=size, **targets)
        minimize(loss, size)
        return loss

    def integers(count):
        return tp.Numpy.Placeholder((size.batch, count), dtype=flow.int32)

    words, chosen, one = integers(size.length), integers(size.masked), integers(1)

    if folder:

        def job() -> tp.Numpy:
            return train(**read_records(size, folder, parts, fields))

    elif task == "pretrain":

        def job(
            words: words,
            segments: words,
            mask: words,
            positions: chosen,
            masked_words: chosen,
            weights: tp.Numpy.Placeholder((size.batch, size.masked)),
            follows: one,
        ) -> tp.Numpy:
            return train(words, segments, mask, positions=positions, masked_words=masked_words, weights=weights, follows=follows)

    else:

        def job(words: words, segments: words, mask: words, starts: one, ends: one) -> tp.Numpy:
            return train(words, segments, mask, starts=starts, ends=ends)

    return flow.global_function("train", flow.function_config())(job)


def random_batch(task, size, random):
    """Random text of which the last words are padding; what a sequence is about can be told from its first word."""
    words = random.integers(0, size.words, (size.batch, size.length))
    lengths = random.integers(size.length // 2, size.length + 1, (size.batch, 1))
    mask = np.arange(size.length) < lengths
    batch = [words, np.arange(size.length) >= lengths // 2, mask]
    if task == "pretrain":
        positions = np.stack([random.choice(size.length // 2, size.masked, replace=False) for _ in range(size.batch)])
        weights = np.arange(size.masked) < random.integers(1, size.masked + 1, (size.batch, 1))
        batch += [positions, np.take_along_axis(words, positions, 1), weights, words[:, :1] % 2]
    else:
        batch += [words[:, :1] % (size.length // 2), words[:, :1] % (size.length // 2) + 1]
    fields = PRETRAINING if task == "pretrain" else SQUAD
    return [array.astype(np.float32 if field == "weights" else np.int32) for field, array in zip(fields, batch, strict=True)]


def main():
    parser = argparse.ArgumentParser(description="BERT")
    parser.add_argument("task", choices=("pretrain", "squad"))
    parser.add_argument("--devices", type=int, default=2)
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--every", type=int, default=10, help="print the loss of every so many steps")
    parser.add_argument("--small", action="store_true", help="two blocks of width 32")
    parser.add_argument("--data", help="a folder of OFRecord files")
    parser.add_argument("--parts", type=int, default=1, help="the number of files in that folder")
    options = parser.parse_args()

    flow.config.gpu_device_num(options.devices)
    size = SMALL if options.small else Size()
    job = make_job(options.task, size, options.data, options.parts)
    batch = random_batch(options.task, size, np.random.default_rng(0))
    for step in range(options.steps):
        loss = job() if options.data else job(*batch)
        if step % options.every == 0 or step == options.steps - 1:
            print(f"step {step:4d}  loss {loss.mean():.6f}")


if __name__ == "__main__":
    main()
