"""Conversions between a logical tensor and the shard of one rank, as a tensor on that rank alone, without communication.

`TakePart` returns the shard of x in `sbp` on the rank at `index` of a placement with one mesh dimension.
`PutPart` returns the logical tensor whose shard is x at that rank.  Split tensors are zero outside the shard.  For partial tensors, x is
the only summand.  The gradient of each op is the other op.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import ClassVar

import numpy as np

import jobflow.core.scope as scope
from jobflow.core.errors import ShapeError
from jobflow.core.layout import B, Box, Broadcast, Layout, P, Placement, Sbp, Split, cut
from jobflow.core.types import Tensor, TensorType
from jobflow.ops.layout_ops import FillIdentity, Identity
from jobflow.ops.op import Grads, Op, Sample, apply, normal_axis, sample

_TWO = Placement("cpu", (0, 1))


class Part(Identity):
    """Base class of conversions between a logical tensor in `sbp` over `whole` and the shard of the rank at `index`."""

    abstract: ClassVar[bool] = True
    sbp: Sbp = B
    index: int = 0
    whole: Placement = _TWO

    @property
    def single(self) -> Placement:
        """The placement of the rank at `index`."""
        return Placement(self.whole.tag, (self.whole.ranks[self.index],))

    @property
    def layouts(self) -> tuple[Layout, Layout]:
        """The layouts of the logical tensor and of the shard."""
        return Layout(self.whole, (self.sbp if self.whole.size > 1 else B,)), Layout(self.single, (B,))

    def localize(self, inputs: tuple[Box, ...], outputs: tuple[Box, ...]) -> Op:
        return Identity()


class TakePart(Part):
    """Extraction of the shard of x, in the layout `sbp` (S or B), on the rank at `index`."""

    def infer(self, x: TensorType) -> TensorType:
        if not isinstance(self.sbp, Split):
            return x
        normal_axis(f"takepart: x {x}", self.sbp.axis, x.ndim)
        start, stop = cut(x.shape[self.sbp.axis], self.whole.size)[self.index]
        return x.with_shape((*x.shape[: self.sbp.axis], stop - start, *x.shape[self.sbp.axis + 1 :]))

    def grad(self, x: Tensor, y: Tensor, dy: Tensor) -> Grads:
        back = P if isinstance(self.sbp, Broadcast) else self.sbp
        with scope.using(placement=self.whole):
            return (apply(PutPart(back, self.index, self.whole, x.tensor_type.shape), dy),)

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        yield sample(cls(B, 0, _TWO), np.arange(12.0).reshape(3, 4))


class PutPart(Part):
    """Tensor of `shape` with the shard x on the rank at `index`. The other shards are zero for S, and contribute nothing to the sum for P."""

    shape: tuple[int, ...] = ()

    def infer(self, x: TensorType) -> TensorType:
        held = TakePart(B if self.sbp == P else self.sbp, self.index, self.whole).infer(x.with_shape(self.shape))
        if held != x:
            raise ShapeError(f"putpart: x {x} must be {held}, the shard of {x.with_shape(self.shape)} on rank {self.single.ranks[0]}")
        return x.with_shape(self.shape)

    def grad(self, x: Tensor, y: Tensor, dy: Tensor) -> Grads:
        back = B if self.sbp == P else self.sbp
        with scope.using(placement=self.single):
            return (apply(TakePart(back, self.index, self.whole), dy),)

    def elsewhere(self, box: Box, type: TensorType) -> Op:
        """Return the op that fills `box`, the shard of the result on a rank other than the rank at `index`, with zeros."""
        return FillIdentity(box.shape, type.dtype)

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        yield sample(cls(P, 0, _TWO, (3, 4)), np.arange(12.0).reshape(3, 4))


def take_parts(x: Tensor, sbp: Sbp, whole: Placement, name: str | None = None) -> tuple[Tensor, ...]:
    """Return the shards of x in the layout `sbp` (S: a slice, B: all of x) as separate tensors, one on each rank of `whole`."""
    shards = []
    for index in range(whole.size):
        op = TakePart(sbp, index, whole)
        with scope.using(placement=op.single):
            shards.append(apply(op, x, name=None if name is None else f"{name}.{index}"))
    return tuple(shards)


def put_part(x: Tensor, sbp: Sbp, index: int, whole: Placement, shape: tuple[int, ...]) -> Tensor:
    """Return the logical tensor of `shape` over `whole` in the layout `sbp` (S or P), with the shard x on the rank at `index`.

    The other shards are zero.
    """
    op = replace(PutPart(sbp, index, whole), shape=shape)
    with scope.using(placement=whole):
        result: Tensor = apply(op, x)
    return result
