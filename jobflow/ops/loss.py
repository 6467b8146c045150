"""Losses per sample, without a reduction over samples.  Losses per element are in elementwise_loss.

p = softmax(logits) along the last axis.  Logarithms use max(p, 1e-20).  The sparse losses take integer labels, one per sample.  Their
functions check labels at run time (`ops.runtime_assertions`); the ops assume valid labels.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from types import MappingProxyType
from typing import Any, TypeVar

import numpy as np

from jobflow.core.errors import DtypeError, ShapeError
from jobflow.core.layout import Box, Rule
from jobflow.core.types import Tensor, TensorType, int64
from jobflow.ops.arithmetic import add, divide, multiply, subtract
from jobflow.ops.decomposition import decomposed
from jobflow.ops.derivative import through
from jobflow.ops.elementwise_loss import binary_cross_entropy as binary_cross_entropy
from jobflow.ops.elementwise_loss import sigmoid_cross_entropy as sigmoid_cross_entropy
from jobflow.ops.elementwise_loss import smooth_l1 as smooth_l1
from jobflow.ops.index import one_hot
from jobflow.ops.indexed import Indexed
from jobflow.ops.op import LETTERS, OVER_FIRST, Grads, Op, Sample, apply, sample
from jobflow.ops.pointwise import FLOATS, call, check_dtypes, sample_data
from jobflow.ops.reduce import reduce_max, reduce_sum
from jobflow.ops.runtime_assertions import check, class_assertion
from jobflow.ops.scalar import clip, negate, scale, shift
from jobflow.ops.shape import expand_dims
from jobflow.ops.softmax import SoftmaxGrad
from jobflow.ops.transcendental import exp, log, sin

#: the lower bound of probabilities in logarithms
TINY = 1e-20
WHAT = "sparse_softmax_cross_entropy"


def _check_labels(what: str, values: str, x: TensorType, labels: TensorType) -> None:
    check_dtypes(what, FLOATS, x)
    if not labels.dtype.is_integer:
        raise DtypeError(f"{what}: labels {labels} are not integers; cast them with cast(labels, int32)")
    if x.ndim < 1 or labels.shape != x.shape[:-1]:
        raise ShapeError(f"{what}: labels {labels} must have the shape {list(x.shape[:-1])}, one label per row of {values} {x}")


def _softmax(f: Any, logits: Any) -> Any:
    e = f.exp(logits - f.row_max(logits))
    return e * f.reciprocal(f.row_sum(e))


def _loss(f: Any, prob: Any, at: Any) -> Any:
    """Return -log max(prob, 1e-20) at index `at` of each row of `prob`, or 0 if `at` is outside the row."""
    return f.row_sum(f.where(_hit(f, at), -f.log(f.maximum(prob, TINY)), 0.0))


def _from(f: Any, labels: Any, offset: int) -> Any:
    """Return the labels minus `offset`, the first class of a rank's shard."""
    return f.cast(labels, int64) - offset if offset else labels


def _hit(f: Any, at: Any) -> Any:
    return f.equal(f.index(-1), f.cast(at, int64))


def _classes(x: TensorType) -> tuple[str, str]:
    """Return the rule letters of the samples' axes, and of x, whose last axis (the classes) is not split."""
    return LETTERS[: x.ndim - 1], LETTERS[: x.ndim - 1] + "Z"


def _column(x: Tensor) -> Tensor:
    return expand_dims(x, x.tensor_type.ndim)


def _hits(labels: Tensor, x: Tensor) -> Tensor:
    """Return the one-hot encoding of the labels, with the shape and type of x."""
    return one_hot(labels, x.tensor_type.shape[-1], dtype=x.tensor_type.dtype)


def _from_prob(logits: Tensor, prob: Tensor, dprob: Tensor | None, rest: Tensor | None) -> Tensor | None:
    """Return `rest` plus the gradient of logits for the gradient `dprob` of prob; None if both are None."""
    if dprob is None:
        return rest
    through = call(SoftmaxGrad(logits.tensor_type.ndim - 1), prob, dprob)
    return through if rest is None else add(rest, through)


class SparseSoftmaxCrossEntropy(Indexed):
    """Cross entropy of logits and integer labels: prob = softmax(logits), loss[n] = -log max(prob[n, label[n]], 1e-20)."""

    results = 2
    in_place = MappingProxyType({1: (0,)})
    decompose_first = True

    def infer(self, logits: TensorType, labels: TensorType) -> tuple[TensorType, TensorType]:
        _check_labels(WHAT, "logits", logits, labels)
        return logits.with_shape(labels.shape), logits

    def rule(self, logits: TensorType, labels: TensorType) -> Rule:
        rows, whole = _classes(logits)
        return Rule(f"{whole},{rows}->{rows},{whole}")

    def formula(self, f: Any, logits: Any, labels: Any) -> Any:
        prob = _softmax(f, logits)
        return -f.log(f.maximum(f.row_element(prob, labels), TINY)), prob

    def grad(self, logits: Tensor, labels: Tensor, loss: Tensor, prob: Tensor, dloss: Tensor | None, dprob: Tensor | None) -> Grads:
        direct = None if dloss is None else call(SparseSoftmaxCrossEntropyGrad(), prob, labels, dloss)
        return _from_prob(logits, prob, dprob, direct), None

    def decompose(self, logits: Tensor, labels: Tensor) -> tuple[Tensor, ...]:
        return by_classes(logits, labels)

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        yield sample(cls(), sample_data(1, 5, 4), np.array([0, 3, 1, 1, 2], np.int32))
        yield sample(cls(), sample_data(2, 2, 3, 4), np.array([[0, 3, 1], [1, 2, 0]], np.int8))


class SparseSoftmaxCrossEntropyGrad(Indexed):
    """Gradient of logits: dlogits[n, c] = (prob[n, c] - [offset + c = label[n]]) dloss[n].

    If the classes are split, `offset` is the rank's first class, and `classes` is the number of classes of all ranks. Otherwise, they are 0 and None.
    """

    offset: int = 0
    classes: int | None = None

    in_place = OVER_FIRST

    def infer(self, prob: TensorType, labels: TensorType, dloss: TensorType) -> TensorType:
        return prob

    def rule(self, prob: TensorType, labels: TensorType, dloss: TensorType) -> Rule:
        rows, whole = _classes(prob)
        return Rule(f"{whole.lower()},{rows},{rows}->{whole.lower()}", linear=((2,),))

    def localize(self, inputs: tuple[Box, ...], outputs: tuple[Box, ...]) -> Op:
        return _own_classes(self, outputs[0])

    def row(self, letters: str) -> str:
        return "z"

    def formula(self, f: Any, prob: Any, labels: Any, dloss: Any) -> Any:
        return (prob - f.cast(_hit(f, _from(f, labels, self.offset)), prob.dtype)) * dloss

    def grad(self, prob: Tensor, labels: Tensor, dloss: Tensor, dx: Tensor, ddx: Tensor) -> Grads:
        along = reduce_sum(multiply(ddx, subtract(prob, _hits(labels, prob))), -1)
        return multiply(ddx, _column(dloss)), None, along

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        labels = np.array([[0, 3, 1], [1, 2, 0]])
        yield sample(cls(), sample_data(1, 2, 3, 4, low=0.0), labels, sample_data(2, 2, 3))


Split = TypeVar("Split", "SparseSoftmaxCrossEntropyGrad", "SplitCrossEntropy", "SparseCrossEntropy", "CombinedMargin")


def _own_classes(op: Split, box: Box) -> Split:
    """Return the op for a rank whose shard has the classes of the last axis of `box`."""
    (start, stop), classes = box.spans[-1], box.whole[-1]
    return op if stop - start == classes else replace(op, offset=start, classes=classes)


class SumExp(Indexed):
    """Sum of exponentials per row: s[n] = sum_c exp(x[n, c] - top[n]); partial if the classes are split."""

    def infer(self, x: TensorType, top: TensorType) -> TensorType:
        check_dtypes("sum_exp", FLOATS, x, top)
        return top

    def rule(self, x: TensorType, top: TensorType) -> Rule:
        rows, whole = _classes(x)
        return Rule(f"{whole.lower()},{rows}->{rows}")

    def row(self, letters: str) -> str:
        return "z"

    def formula(self, f: Any, x: Any, top: Any) -> Any:
        return f.row_sum(f.exp(x - top))

    def grad(self, x: Tensor, top: Tensor, s: Tensor, ds: Tensor) -> Grads:
        return multiply(exp(subtract(x, _column(top))), _column(ds)), negate(multiply(s, ds))

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        yield sample(cls(), sample_data(1, 2, 3, 5), sample_data(2, 2, 3))


class SplitCrossEntropy(Indexed):
    """Cross entropy for split classes: prob[n, c] = exp(logits[n, c] - top[n]) / total[n].

    loss[n] = -log max(prob[n, label[n] - offset], 1e-20), or 0 for a label of another rank.  If top[n] = max_c logits[n, c] and total is SumExp, the
    result equals SparseSoftmaxCrossEntropy.  The gradient of the logits includes their effect on top and total, which get no gradient.
    """

    offset: int = 0
    classes: int | None = None
    results = 2

    def infer(self, logits: TensorType, labels: TensorType, top: TensorType, total: TensorType) -> tuple[TensorType, TensorType]:
        _check_labels(WHAT, "logits", logits, labels)
        return top, logits

    def rule(self, logits: TensorType, *rows: TensorType) -> Rule:
        row, whole = _classes(logits)
        return Rule(f"{whole.lower()},{row},{row},{row}->{row},{whole.lower()}")

    def localize(self, inputs: tuple[Box, ...], outputs: tuple[Box, ...]) -> Op:
        return _own_classes(self, outputs[1])

    def row(self, letters: str) -> str:
        return "z"

    def formula(self, f: Any, logits: Any, labels: Any, top: Any, total: Any) -> Any:
        prob = f.exp(logits - top) / total
        return _loss(f, prob, _from(f, labels, self.offset)), prob

    def grad(
        self, logits: Tensor, labels: Tensor, top: Tensor, total: Tensor, loss: Tensor, prob: Tensor, dloss: Tensor | None, dprob: Tensor | None
    ) -> Grads:
        direct = None if dloss is None else call(SparseSoftmaxCrossEntropyGrad(), prob, labels, dloss)
        return _from_prob(logits, prob, dprob, direct), None, None, None

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        labels = np.array([[0, 4, 1], [1, 3, 0]], np.int32)
        rows = sample_data(2, 2, 3, low=1.0), sample_data(3, 2, 3, low=1.0)
        yield sample(cls(), sample_data(1, 2, 3, 5), labels, *rows, differentiable=())


class SoftmaxCrossEntropy(Indexed):
    """Cross entropy of logits and label distributions: prob = softmax(logits), loss[n] = -sum_c labels[n, c] log max(prob[n, c], 1e-20).

    With `sums_to_one`, the gradient assumes that the labels of each row sum to 1.
    """

    sums_to_one: bool = False

    results = 2

    def infer(self, logits: TensorType, labels: TensorType) -> tuple[TensorType, TensorType]:
        check_dtypes("softmax_cross_entropy", FLOATS, logits, labels)
        if logits.ndim < 1 or labels.shape != logits.shape:
            raise ShapeError(f"softmax_cross_entropy: labels {labels} and logits {logits} differ in shape; pass one probability per logit")
        return logits.with_shape(logits.shape[:-1]), logits

    def rule(self, logits: TensorType, labels: TensorType) -> Rule:
        rows, whole = _classes(logits)
        return Rule(f"{whole},{whole}->{rows},{whole}")

    def formula(self, f: Any, logits: Any, labels: Any) -> Any:
        prob = _softmax(f, logits)
        return -f.row_sum(labels * f.log(f.maximum(prob, TINY))), prob

    def grad(self, logits: Tensor, labels: Tensor, loss: Tensor, prob: Tensor, dloss: Tensor | None, dprob: Tensor | None) -> Grads:
        if dloss is None:
            return _from_prob(logits, prob, dprob, None), None
        direct = call(SoftmaxCrossEntropyGrad(self.sums_to_one), prob, labels, dloss)
        return _from_prob(logits, prob, dprob, direct), negate(multiply(log(clip(prob, TINY)), _column(dloss)))

    def decompose(self, *inputs: Any) -> tuple[Tensor, ...]:
        return decomposed(self, inputs)

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        yield sample(cls(), sample_data(1, 3, 4), sample_data(2, 3, 4, low=0.0))


class SoftmaxCrossEntropyGrad(Indexed):
    """Gradient of logits: dlogits[n, c] = (prob[n, c] s[n] - labels[n, c]) dloss[n], with s[n] = sum_k labels[n, k], or 1 for `sums_to_one`."""

    sums_to_one: bool = False

    def infer(self, prob: TensorType, labels: TensorType, dloss: TensorType) -> TensorType:
        return prob

    def rule(self, prob: TensorType, labels: TensorType, dloss: TensorType) -> Rule:
        rows, whole = _classes(prob)
        return Rule(f"{whole},{whole},{rows}->{whole}", linear=((2,),) if self.sums_to_one else ((1,), (2,)))

    def formula(self, f: Any, prob: Any, labels: Any, dloss: Any) -> Any:
        return (prob - labels) * dloss if self.sums_to_one else (prob * f.row_sum(labels) - labels) * dloss

    def decompose(self, *inputs: Any) -> tuple[Tensor, ...]:
        return decomposed(self, inputs)

    def grad(self, prob: Tensor, labels: Tensor, dloss: Tensor, dx: Tensor, ddx: Tensor) -> Grads:
        return through(self.decompose, (prob, labels, dloss), (ddx,))

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        for sums_to_one in (False, True):
            yield sample(cls(sums_to_one), sample_data(1, 3, 4, low=0.0), sample_data(2, 3, 4, low=0.0), sample_data(3, 3))


class SparseCrossEntropy(Indexed):
    """Cross entropy of probabilities and labels: loss[n] = -log max(prob[n, label[n] - offset], 1e-20), or 0 for a label of another rank."""

    offset: int = 0
    classes: int | None = None

    def infer(self, prob: TensorType, labels: TensorType) -> TensorType:
        _check_labels("sparse_cross_entropy", "prediction", prob, labels)
        return prob.with_shape(labels.shape)

    def rule(self, prob: TensorType, labels: TensorType) -> Rule:
        rows, whole = _classes(prob)
        return Rule(f"{whole.lower()},{rows}->{rows}")

    def localize(self, inputs: tuple[Box, ...], outputs: tuple[Box, ...]) -> Op:
        return _own_classes(self, inputs[0])

    def row(self, letters: str) -> str:
        return "z"

    def formula(self, f: Any, prob: Any, labels: Any) -> Any:
        return _loss(f, prob, _from(f, labels, self.offset))

    def grad(self, prob: Tensor, labels: Tensor, loss: Tensor, dloss: Tensor) -> Grads:
        return call(SparseCrossEntropyGrad(), prob, labels, dloss), None

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        yield sample(cls(), sample_data(1, 5, 4, low=0.1, high=1.0), np.array([0, 3, 1, 1, 2], np.int32))


class SparseCrossEntropyGrad(Indexed):
    """Gradient of prob: dprob[n, c] = -[offset + c = label[n]] dloss[n] / max(prob[n, c], 1e-20)."""

    offset: int = 0

    def infer(self, prob: TensorType, labels: TensorType, dloss: TensorType) -> TensorType:
        return prob

    def rule(self, prob: TensorType, labels: TensorType, dloss: TensorType) -> Rule:
        rows, whole = _classes(prob)
        return Rule(f"{whole.lower()},{rows},{rows}->{whole.lower()}", linear=((2,),))

    def localize(self, inputs: tuple[Box, ...], outputs: tuple[Box, ...]) -> Op:
        return replace(self, offset=inputs[0].start[-1])

    def row(self, letters: str) -> str:
        return "z"

    def formula(self, f: Any, prob: Any, labels: Any, dloss: Any) -> Any:
        return f.where(_hit(f, _from(f, labels, self.offset)), -dloss / f.maximum(prob, TINY), 0.0)

    def grad(self, prob: Tensor, labels: Tensor, dloss: Tensor, dprob: Tensor, ddprob: Tensor) -> Grads:
        def parts(prob: Tensor, labels: Tensor, dloss: Tensor) -> tuple[Tensor]:
            return (divide(multiply(_hits(labels, prob), negate(_column(dloss))), clip(prob, TINY)),)

        return through(parts, (prob, labels, dloss), (ddprob,))

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        yield sample(cls(), sample_data(1, 3, 4, low=0.1, high=1.0), np.array([0, 3, 1]), sample_data(2, 3))


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
        _check_labels("combined_margin_loss", "x", x, labels)
        return x, x.with_shape(labels.shape)

    def rule(self, x: TensorType, labels: TensorType) -> Rule:
        rows, whole = _classes(x)
        return Rule(f"{whole.lower()},{rows}->{whole.lower()},{rows}")

    def localize(self, inputs: tuple[Box, ...], outputs: tuple[Box, ...]) -> Op:
        return _own_classes(self, outputs[0])

    def row(self, letters: str) -> str:
        return "z"

    def formula(self, f: Any, x: Any, labels: Any) -> Any:
        hit = _hit(f, _from(f, labels, self.offset))
        mine = f.row_sum(f.where(hit, 1.0, f.constant(0.0, x.dtype)))
        cosine = f.row_sum(f.where(hit, x, f.constant(0.0, x.dtype)))
        theta = mine * f.arccos(f.minimum(f.maximum(cosine, -1.0), 1.0))
        turned = x if (self.m1, self.m2) == (1, 0) else f.cos(theta * self.m1 + self.m2)
        return f.where(hit, turned - self.m3, x), theta

    def grad(self, x: Tensor, labels: Tensor, y: Tensor, theta: Tensor, dy: Tensor | None, dtheta: Tensor | None) -> Grads:
        direct = None if dy is None else combined_margin_grad(theta, labels, dy, self.m1, self.m2)
        if dtheta is None:
            return direct, None
        through_theta = multiply(_hits(labels, x), negate(_column(divide(dtheta, sin(theta)))))
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
        rows, whole = _classes(dy)
        return Rule(f"{rows},{rows},{whole.lower()}->{whole.lower()}", linear=((2,),))

    def localize(self, inputs: tuple[Box, ...], outputs: tuple[Box, ...]) -> Op:
        return replace(self, offset=outputs[0].start[-1])

    def row(self, letters: str) -> str:
        return "z"

    def formula(self, f: Any, theta: Any, labels: Any, dy: Any) -> Any:
        slope = f.sin(theta * self.m1 + self.m2) * self.m1 / f.sin(theta)
        return dy * f.where(_hit(f, _from(f, labels, self.offset)), slope, f.constant(1.0, dy.dtype))

    def grad(self, theta: Tensor, labels: Tensor, dy: Tensor, dx: Tensor, ddx: Tensor) -> Grads:
        def parts(theta: Tensor, labels: Tensor, dy: Tensor) -> tuple[Tensor]:
            slope = divide(scale(sin(shift(scale(theta, self.m1), self.m2)), self.m1), sin(theta))
            hits = _hits(labels, dy)
            return (multiply(dy, add(multiply(hits, _column(slope)), shift(negate(hits), 1.0))),)

        return through(parts, (theta, labels, dy), (ddx,))

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        yield sample(cls(0.9, 0.4), sample_data(1, 3, low=0.5, high=2.5), np.array([0, 3, 1]), sample_data(2, 3, 4))


def combined_margin_grad(theta: Tensor, labels: Tensor, dy: Tensor, m1: float, m2: float) -> Tensor:
    """Return the gradient of the input x of `CombinedMargin` from the gradient of y."""
    return dy if (m1, m2) == (1, 0) else call(CombinedMarginGrad(m1, m2), theta, labels, dy)


def _class_labels(what: str, labels: Tensor, scores: Tensor) -> Tensor:
    """Return the labels with a runtime assertion that they are classes, or unchanged if they are not integers or `scores` has no axes."""
    if labels.tensor_type.dtype.is_integer and scores.tensor_type.ndim:
        return check(class_assertion(what, scores.tensor_type.shape[-1]), labels)
    return labels


def sparse_softmax_cross_entropy(logits: Tensor, labels: Tensor, *, name: str | None = None) -> Tensor:
    """Return -log max(softmax(logits)[n, label[n]], 1e-20) for each row n, with one integer label per row; a runtime assertion checks the labels."""
    loss: Tensor = apply(SparseSoftmaxCrossEntropy(), logits, _class_labels(WHAT, labels, logits), name=name)[0]
    return loss


def split_sparse_softmax_cross_entropy(logits: Tensor, labels: Tensor, *, name: str | None = None) -> Tensor:
    """Return `sparse_softmax_cross_entropy` for split classes; ranks exchange a maximum and a sum per row instead of the logits."""
    return by_classes(logits, _class_labels(WHAT, labels, logits), name=name)[0]


def by_classes(logits: Tensor, labels: Tensor, *, name: str | None = None) -> tuple[Tensor, Tensor]:
    """Return the loss and the probabilities of `sparse_softmax_cross_entropy`, computed by ops that accept split classes."""
    top = reduce_max(logits, (logits.tensor_type.ndim - 1,))
    loss, prob = apply(SplitCrossEntropy(), logits, labels, top, call(SumExp(), logits, top), name=name)
    return loss, prob


def softmax_cross_entropy(logits: Tensor, labels: Tensor, *, sums_to_one: bool = False, name: str | None = None) -> Tensor:
    """Return -sum_c labels[n, c] log max(softmax(logits)[n, c], 1e-20) for each row n; see `SoftmaxCrossEntropy` for `sums_to_one`."""
    loss: Tensor = apply(SoftmaxCrossEntropy(sums_to_one), logits, labels, name=name)[0]
    return loss


def sparse_cross_entropy(prob: Tensor, labels: Tensor, *, name: str | None = None) -> Tensor:
    """Return -log max(prob[n, label[n]], 1e-20) for each row n, with one integer label per row; a runtime assertion checks the labels."""
    return call(SparseCrossEntropy(), prob, _class_labels("sparse_cross_entropy", labels, prob), name=name)


def combined_margin(
    x: Tensor, labels: Tensor, m1: float = 1.0, m2: float = 0.0, m3: float = 0.0, *, name: str | None = None
) -> tuple[Tensor, Tensor]:
    """Add an angular margin to x[n, c], the cosines per class, at the label of each row n; return (y, theta) as in `CombinedMargin`."""
    y, theta = apply(CombinedMargin(m1, m2, m3), x, _class_labels("combined_margin_loss", labels, x), name=name)
    return y, theta
