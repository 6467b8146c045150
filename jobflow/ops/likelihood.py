"""Losses from log-probabilities with the classes on any axis.

    loss[n...] = -x[n, label[n...], ...]        0 where the label is `ignored`

`negative_log_likelihood` rejects labels that are neither a class nor `ignored` (`ops.runtime_assertions`).  If the classes are split, each
rank computes the losses of the classes in its shard.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np

from jobflow.core.errors import DtypeError, ShapeError
from jobflow.core.layout import B, Box, Rule, S, Signature
from jobflow.core.types import Tensor, TensorType, int64
from jobflow.ops.indexed import Indexed
from jobflow.ops.op import LETTERS, Grads, Op, Sample, normal_axis, sample
from jobflow.ops.pointwise import FLOATS, call, check_dtypes, sample_data
from jobflow.ops.runtime_assertions import check, class_assertion

WHAT = "negative_log_likelihood"


def _marks(ndim: int, axis: int) -> tuple[str, str]:
    """Return two strings: the rule letters of the labels, and of the log-probabilities with `ndim` axes and the classes on `axis`."""
    whole = LETTERS[:ndim]
    return whole[:axis] + whole[axis + 1 :], whole


def unless_ignored(f: Any, labels: Any, ignored: int | None, value: Any) -> Any:
    return value if ignored is None else f.where(f.not_equal(labels, ignored), value, 0.0)


class NegativeLogLikelihood(Indexed):
    """Negative log-likelihood: loss[n] = -x[n, label[n]], with the classes on `axis` of x.

    The loss is 0 where the label is `ignored`, or a class of another rank.
    """

    axis: int
    ignored: int | None = None
    offset: int = 0
    classes: int | None = None

    def infer(self, x: TensorType, labels: TensorType) -> TensorType:
        check_dtypes(WHAT, FLOATS, x)
        normal_axis(WHAT, self.axis, x.ndim)
        if not labels.dtype.is_integer:
            raise DtypeError(f"{WHAT}: labels {labels} are not integers; cast them with cast(labels, int64)")
        rows = (*x.shape[: self.axis], *x.shape[self.axis + 1 :])
        if labels.shape != rows:
            raise ShapeError(f"{WHAT}: labels {labels} must have the shape {list(rows)} of x {x} without the class axis {self.axis}")
        return x.with_shape(rows)

    def rule(self, x: TensorType, labels: TensorType) -> Rule:
        rows, whole = _marks(x.ndim, self.axis)
        return Rule(f"{whole},{rows}->{rows}", linear=((0,),))

    def localize(self, inputs: tuple[Box, ...], outputs: tuple[Box, ...]) -> Op:
        (start, stop), classes = inputs[0].spans[self.axis], inputs[0].whole[self.axis]
        return self if stop - start == classes else replace(self, offset=start, classes=classes)

    def row(self, letters: str) -> str:
        return letters[self.axis]

    def formula(self, f: Any, x: Any, labels: Any) -> Any:
        at = f.cast(labels, int64)
        return unless_ignored(f, at, self.ignored, -f.row_element(x, at - self.offset if self.offset else at))

    def grad(self, x: Tensor, labels: Tensor, loss: Tensor, dloss: Tensor) -> Grads:
        return call(NegativeLogLikelihoodGrad(self.axis, x.tensor_type.shape[self.axis], self.ignored), labels, dloss), None

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        yield sample(cls(1), sample_data(1, 5, 4), np.array([0, 3, 1, 1, 2], np.int32))
        yield sample(cls(1, -100), sample_data(2, 2, 5, 3), np.array([[0, -100, 4], [2, 3, -100]]))
        yield sample(cls(1, -100), sample_data(5, 3, 4), np.array([2, 0, 3]))
        yield sample(cls(0, 1), sample_data(3, 4), np.array(1))
        yield sample(cls(0), sample_data(4, 4), np.array(2))


class NegativeLogLikelihoodGrad(Indexed):
    """Gradient of NegativeLogLikelihood: dx[n, c] = -dloss[n] where c == label[n], else 0, with `size` classes on `axis`."""

    axis: int
    size: int
    ignored: int | None = None
    offset: int = 0
    #: number of classes of all ranks, if this rank holds some of them
    classes: int | None = None

    def infer(self, labels: TensorType, dloss: TensorType) -> TensorType:
        return dloss.with_shape((*dloss.shape[: self.axis], self.size, *dloss.shape[self.axis :]))

    def rule(self, labels: TensorType, dloss: TensorType) -> Rule:
        rows, whole = _marks(dloss.ndim + 1, self.axis)
        return Rule(f"{rows},{rows}->{whole}", linear=((1,),), also=(Signature((B, B), (S(self.axis),)),))

    def localize(self, inputs: tuple[Box, ...], outputs: tuple[Box, ...]) -> Op:
        start, stop = outputs[0].spans[self.axis]
        return self if stop - start == self.size else replace(self, size=stop - start, offset=start, classes=self.size)

    def row(self, letters: str) -> str:
        return letters.partition("->")[2][self.axis]

    def formula(self, f: Any, labels: Any, dloss: Any) -> Any:
        at = f.cast(labels, int64)
        hit = f.equal(f.index(-1), at - self.offset if self.offset else at)
        return f.where(hit, unless_ignored(f, at, self.ignored, -dloss), 0.0)

    def grad(self, labels: Tensor, dloss: Tensor, dx: Tensor, ddx: Tensor) -> Grads:
        return None, call(NegativeLogLikelihood(self.axis, self.ignored), ddx, labels)

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        yield sample(cls(1, 4), np.array([0, 3, 1, 1, 2]), sample_data(1, 5))
        yield sample(cls(1, 5, 3), np.array([[0, 3, 4], [2, 3, 1]]), sample_data(2, 2, 3))
        yield sample(cls(0, 4), np.array(2), sample_data(3))


def negative_log_likelihood(
    x: Tensor, labels: Tensor, axis: int = 1, ignored: int | None = None, *, what: str = WHAT, name: str | None = None
) -> Tensor:
    """Return -x at the label of each sample, for log-probabilities x with the classes on `axis`; 0 where the label is `ignored`.

    A runtime assertion rejects other labels that are not classes. `what` is the name of the function in the message of this assertion.
    """
    at = normal_axis(WHAT, axis, x.tensor_type.ndim)
    if labels.tensor_type.dtype.is_integer:
        labels = check(class_assertion(what, x.tensor_type.shape[at], ignored), labels)
    return call(NegativeLogLikelihood(at, ignored), x, labels, name=name)
