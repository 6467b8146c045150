"""Angular margins between classes, for losses of cosines."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from types import MappingProxyType
from typing import Any

import numpy as np

from jobflow.core.layout import Box, Rule
from jobflow.core.types import Tensor, TensorType
from jobflow.ops.arithmetic import add, divide, multiply
from jobflow.ops.derivative import through
from jobflow.ops.indexed import Indexed
from jobflow.ops.loss import check_labels, class_labels, column, label_hit, one_hots, own_classes, own_labels, row_letters
from jobflow.ops.op import OVER_FIRST, Grads, Op, Sample, apply, sample
from jobflow.ops.pointwise import call, sample_data
from jobflow.ops.scalar import negate, scale, shift
from jobflow.ops.transcendental import sin


class CombinedMargin(Indexed):
    """Angular margin at the label: y[n, label[n]] = cos(m1 theta[n] + m2) - m3, where theta[n] = acos x[n, label[n]]; else y = x.

    x contains a cosine per class.  If the classes are split, a label of another rank has theta 0 and leaves the row unchanged.  A cosine
    outside [-1, 1] due to rounding is clipped.  With m1 = 1 and m2 = 0, the cosine is used directly, without an angle.
    """

    m1: float = 1.0
    m2: float = 0.0
    m3: float = 0.0
    offset: int = 0
    classes: int | None = None
    results = 2
    in_place = OVER_FIRST

    def infer(self, x: TensorType, labels: TensorType) -> tuple[TensorType, TensorType]:
        check_labels("combined_margin_loss", "x", x, labels)
        return x, x.with_shape(labels.shape)

    def rule(self, x: TensorType, labels: TensorType) -> Rule:
        rows, whole = row_letters(x)
        return Rule(f"{whole.lower()},{rows}->{whole.lower()},{rows}")

    def localize(self, inputs: tuple[Box, ...], outputs: tuple[Box, ...]) -> Op:
        return own_classes(self, outputs[0])

    def row(self, letters: str) -> str:
        return "z"

    def formula(self, f: Any, x: Any, labels: Any) -> Any:
        hit = label_hit(f, own_labels(f, labels, self.offset))
        mine = f.row_sum(f.where(hit, 1.0, f.constant(0.0, x.dtype)))
        cosine = f.row_sum(f.where(hit, x, f.constant(0.0, x.dtype)))
        theta = mine * f.arccos(f.minimum(f.maximum(cosine, -1.0), 1.0))
        turned = x if (self.m1, self.m2) == (1, 0) else f.cos(theta * self.m1 + self.m2)
        return f.where(hit, turned - self.m3, x), theta

    def grad(self, x: Tensor, labels: Tensor, y: Tensor, theta: Tensor, dy: Tensor | None, dtheta: Tensor | None) -> Grads:
        direct = None if dy is None else combined_margin_grad(theta, labels, dy, self.m1, self.m2)
        if dtheta is None:
            return direct, None
        through_theta = multiply(one_hots(labels, x), negate(column(divide(dtheta, sin(theta)))))
        return through_theta if direct is None else add(direct, through_theta), None

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        yield sample(cls(0.9, 0.4, 0.15), sample_data(1, 5, 4, low=-0.9, high=0.9), np.array([0, 3, 1, 1, 2], np.int32))
        yield sample(cls(1.0, 0.0, 0.35), sample_data(1, 5, 4, low=-0.9, high=0.9), np.array([0, 3, 1, 1, 2], np.int32))


class CombinedMarginGrad(Indexed):
    """Gradient of x of CombinedMargin: dx = dy, times m1 sin(m1 theta[n] + m2) / sin theta[n] at the label."""

    m1: float
    m2: float
    offset: int = 0
    in_place = MappingProxyType({0: (2,)})

    def infer(self, theta: TensorType, labels: TensorType, dy: TensorType) -> TensorType:
        return dy

    def rule(self, theta: TensorType, labels: TensorType, dy: TensorType) -> Rule:
        rows, whole = row_letters(dy)
        return Rule(f"{rows},{rows},{whole.lower()}->{whole.lower()}", linear=((2,),))

    def localize(self, inputs: tuple[Box, ...], outputs: tuple[Box, ...]) -> Op:
        return replace(self, offset=outputs[0].start[-1])

    def row(self, letters: str) -> str:
        return "z"

    def formula(self, f: Any, theta: Any, labels: Any, dy: Any) -> Any:
        slope = f.sin(theta * self.m1 + self.m2) * self.m1 / f.sin(theta)
        return dy * f.where(label_hit(f, own_labels(f, labels, self.offset)), slope, f.constant(1.0, dy.dtype))

    def grad(self, theta: Tensor, labels: Tensor, dy: Tensor, dx: Tensor, ddx: Tensor) -> Grads:
        def parts(theta: Tensor, labels: Tensor, dy: Tensor) -> tuple[Tensor]:
            slope = divide(scale(sin(shift(scale(theta, self.m1), self.m2)), self.m1), sin(theta))
            hits = one_hots(labels, dy)
            return (multiply(dy, add(multiply(hits, column(slope)), shift(negate(hits), 1.0))),)

        return through(parts, (theta, labels, dy), (ddx,))

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        yield sample(cls(0.9, 0.4), sample_data(1, 3, low=0.5, high=2.5), np.array([0, 3, 1]), sample_data(2, 3, 4))


def combined_margin_grad(theta: Tensor, labels: Tensor, dy: Tensor, m1: float, m2: float) -> Tensor:
    """Return the gradient of the input x of `CombinedMargin` from the gradient of y."""
    return dy if (m1, m2) == (1, 0) else call(CombinedMarginGrad(m1, m2), theta, labels, dy)


def combined_margin(
    x: Tensor, labels: Tensor, m1: float = 1.0, m2: float = 0.0, m3: float = 0.0, *, name: str | None = None
) -> tuple[Tensor, Tensor]:
    """Add an angular margin to x[n, c], the cosines per class, at the label of each row n; return (y, theta) as in `CombinedMargin`."""
    y, theta = apply(CombinedMargin(m1, m2, m3), x, class_labels("combined_margin_loss", labels, x), name=name)
    return y, theta
