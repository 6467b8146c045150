"""Sampling of classes for one step: the classes of the labels, and random other classes (X. An et al., Partial FC, 2020).

The classes are divided into one range per rank.  Each range contributes the same number of samples, so a rank needs only the weights of one
range.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from jobflow.core.errors import DtypeError, ShapeError
from jobflow.core.layout import B, Box, P, Rule, S, Signature, cut
from jobflow.core.types import Array, Tensor, TensorType, Xp
from jobflow.expressions import philox
from jobflow.ops.index import Gather
from jobflow.ops.op import Grads, Op, Sample, apply, sample
from jobflow.ops.pointwise import call, sample_data

_DRAWS = np.dtype(np.float64)


class SampleClasses(Op):
    """Sample of `count` classes that contains the labels: outputs mapped[n] and sampled[count], with sampled[mapped[i]] = labels[i].

    The inputs are labels[n] and the run counter. For each of the `parts` ranges of classes, `sampled` contains the labels of this range in ascending
    order, followed by random other classes. If a range has more labels than samples, its largest labels are omitted and mapped to -1.
    """

    precision = "any"
    by_position = True
    classes: int
    count: int
    parts: int
    key: str
    seed: int = 0
    #: the box of the sampled classes on this rank
    box: Box | None = None

    def infer(self, labels: TensorType, counter: TensorType) -> tuple[TensorType, TensorType]:
        if labels.ndim != 1 or not labels.dtype.is_integer:
            raise DtypeError(f"distributed_partial_fc_sample: labels {labels} must be a vector of integers")
        least = self.classes // self.parts
        if self.count % self.parts or not 0 < self.count // self.parts <= least:
            raise ShapeError(
                f"distributed_partial_fc_sample: {self.count} samples of {self.classes} classes on {self.parts} devices; the number of samples must "
                f"be a multiple of the number of devices, and at most {least} per device"
            )
        return labels, labels.with_shape((self.count if self.box is None else self.box.shape[0],))

    def rule(self, labels: TensorType, counter: TensorType) -> Rule:
        return Rule("N,1->N,C", also=(Signature((B, B), (P, S(0))),))

    def localize(self, inputs: tuple[Box, ...], outputs: tuple[Box, ...]) -> Op:
        return replace(self, box=outputs[1])

    def kernel(self, xp: Xp, labels: Array, counter: Array, mapped: Array, sampled: Array) -> None:
        each = self.count // self.parts
        start, stop = (0, self.count) if self.box is None else self.box.spans[0]
        mapped[...] = 0
        for part in range(start // each, -(-stop // each)):
            low, high = cut(self.classes, self.parts)[part]
            box = Box(((low, high),), (self.classes,))
            stream = philox.Stream(xp, philox.key_of(self.seed, self.key), int(counter[0]))
            order = philox.Drawn(stream, box).unit(_DRAWS)
            inside = (labels >= low) & (labels < high)
            own = xp.where(inside, labels - low, 0).astype(xp.int64)
            order[own[inside]] = -1.0
            first = part * each
            chosen = xp.argsort(order, kind="stable")[:each]
            begin, end = max(start, first), min(stop, first + each)
            sampled[begin - start : end - start] = chosen[begin - first : end - first] + low
            index = xp.full(high - low, -1 if start <= first < stop else 0, xp.int64)
            index[chosen] = 0
            index[chosen[begin - first : end - first]] = xp.arange(begin, end)
            mapped[...] += xp.where(inside, index[own], 0).astype(mapped.dtype)

    def grad(self, *tensors: Tensor) -> Grads:
        return None, None

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        yield sample(cls(11, 6, 2, "k"), np.array([3, 10, 3, 7]), np.array([4]))
        yield sample(cls(8, 4, 1, "k"), np.array([0, 7, 1], np.int32), np.array([0]))


class GatherLocalRows(Gather):
    """Gather along axis 0 without communication: the indices of each rank select only rows of its shard."""

    axis: int = 0

    def rule(self, params: TensorType, ids: TensorType) -> Rule:
        rest = "abcdefgh"[: params.ndim - 1]
        return Rule(f"N{rest},I->I{rest}", also=(Signature((S(0), S(0)), (S(0),)),))

    def grad(self, params: Tensor, ids: Tensor, y: Tensor, dy: Tensor) -> Grads:
        return call(AddLocalRows(params.tensor_type.shape[0]), dy, ids), None

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        yield sample(cls(), sample_data(1, 8, 3), np.arange(8))


class AddLocalRows(Op):
    """Sum of rows with equal indices: y[k] = sum of rows[i] over all i with ids[i] == k, for k < size; the adjoint of GatherLocalRows.

    Ranks do not communicate: the indices of each rank are in its shard of y.
    """

    adds_at_indices = True

    size: int
    offset: int = 0
    local: int | None = None

    def infer(self, rows: TensorType, ids: TensorType) -> TensorType:
        if ids.ndim != 1 or rows.shape[:1] != ids.shape:
            raise ShapeError(f"addlocalrows: rows {rows} must have one row per index in the vector {ids}")
        return rows.with_shape((self.size if self.local is None else self.local, *rows.shape[1:]))

    def rule(self, rows: TensorType, ids: TensorType) -> Rule:
        rest = "abcdefgh"[: rows.ndim - 1]
        return Rule(f"I{rest},I->N{rest}", linear=((0,),), also=(Signature((S(0), S(0)), (S(0),)),))

    def localize(self, inputs: tuple[Box, ...], outputs: tuple[Box, ...]) -> Op:
        return replace(self, offset=outputs[0].start[0], local=outputs[0].shape[0])

    def kernel(self, xp: Xp, rows: Array, ids: Array, y: Array) -> None:
        y[...] = 0
        xp.add.at(y, ids.astype(xp.int64) - self.offset, rows)

    def grad(self, rows: Tensor, ids: Tensor, y: Tensor, dy: Tensor) -> Grads:
        return call(GatherLocalRows(), dy, ids), None

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        yield sample(cls(8), sample_data(1, 8, 3), np.arange(8))


def sample_classes(
    labels: Tensor, counter: Tensor, classes: int, count: int, parts: int, key: str, seed: int, *, name: str | None = None
) -> tuple[Tensor, Tensor]:
    """Sample `count` of the `classes` classes, equally many from each of `parts` ranges, with preference for the classes in `labels`.

    Returns the index of each label among the sampled classes (-1 for an omitted label), and the sampled classes; see `SampleClasses`.
    """
    mapped, sampled = apply(SampleClasses(classes, count, parts, key, seed), labels, counter, name=name)
    return mapped, sampled
