"""Losses of log_softmax(x) for logits x with the classes on any axis: for labels, and for a weight per class.

The losses save two numbers per sample for the gradient.  `top` is the maximum of the logits, and `logsum` the logarithm of the sum of exp(x - top).
The gradient computes log_softmax(x) = (x - top) - logsum from the logits, whose memory it may overwrite.  Logits in half precision are converted
while they are read: losses are float32, and the gradient has the type of the logits.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np

from jobflow.core.errors import ShapeError
from jobflow.core.layout import Box, Rule
from jobflow.core.types import Tensor, TensorType, int64
from jobflow.ops.arithmetic import add, multiply, subtract
from jobflow.ops.axes import expand_dims, squeeze
from jobflow.ops.derivative import through
from jobflow.ops.indexed import Indexed, wide_sum
from jobflow.ops.likelihood import NegativeLogLikelihood, NegativeLogLikelihoodGrad, unless_ignored
from jobflow.ops.op import LETTERS, OVER_FIRST, Grads, Op, Sample, apply, normal_axis, sample
from jobflow.ops.pointwise import FLOATS, call, check_dtypes, sample_data
from jobflow.ops.reduce import reduce_max, reduce_sum
from jobflow.ops.runtime_assertions import check, class_assertion
from jobflow.ops.scalar import cast, negate
from jobflow.ops.softmax import LogSoftmax, LogSoftmaxGrad
from jobflow.ops.transcendental import exp, log


def row_statistics(x: Tensor, axis: int) -> tuple[Tensor, Tensor]:
    """Return `top` and `logsum` of each sample, computed by ops that accept split classes."""
    wide = cast(x, x.tensor_type.dtype.arithmetic)
    top = reduce_max(wide, (axis,), keepdims=True)
    logsum = log(reduce_sum(exp(subtract(wide, top)), (axis,), keepdims=True))
    return squeeze(top, (axis,)), squeeze(logsum, (axis,))


def _through_statistics(x: Tensor, axis: int, dtop: Tensor | None, dlogsum: Tensor | None, rest: Tensor | None) -> Tensor | None:
    """Return `rest` plus the gradient of x for the gradients of its statistics; None if all are None."""
    if dtop is None and dlogsum is None:
        return rest
    (result,) = through(lambda x: row_statistics(x, axis), (x,), (dtop, dlogsum))
    assert result is not None, "the statistics depend on the logits"
    return result if rest is None else add(rest, result)


def _log_softmax(x: Tensor, axis: int) -> Tensor:
    return call(LogSoftmax(axis), cast(x, x.tensor_type.dtype.arithmetic))


class LogitLoss(Indexed):
    """Base class of the losses and of their gradients."""

    abstract = True
    axis: int

    def rows(self, x: TensorType) -> TensorType:
        """Return the type of losses and statistics: one element per sample, in float32 for logits in half precision."""
        normal_axis(self.word(), self.axis, x.ndim)
        return x.with_shape((*x.shape[: self.axis], *x.shape[self.axis + 1 :])).with_dtype(x.dtype.arithmetic)

    def letters(self, x: TensorType) -> tuple[str, str]:
        """Return two strings: the rule letters of the samples, and of x, whose axis of classes is not split."""
        whole = LETTERS[: x.ndim]
        samples = whole[: self.axis] + whole[self.axis + 1 :]
        return samples, whole[: self.axis] + whole[self.axis].upper() + whole[self.axis + 1 :]

    def row(self, letters: str) -> str:
        return letters[self.axis].lower()


class LabelLogitLoss(LogitLoss):
    """Cross entropy of logits and labels: loss[n] = -log_softmax(x)[n, label[n]], and 0 where the label is `ignored`.  Outputs: loss, top, logsum."""

    ignored: int | None = None
    results = 3
    reads_half = frozenset({0})

    def infer(self, x: TensorType, labels: TensorType) -> tuple[TensorType, TensorType, TensorType]:
        rows = self.rows(x)
        NegativeLogLikelihood(self.axis, self.ignored).infer(x, labels)
        return rows, rows, rows

    def rule(self, x: TensorType, labels: TensorType) -> Rule:
        samples, whole = self.letters(x)
        return Rule(f"{whole},{samples}->{samples},{samples},{samples}")

    def formula(self, f: Any, x: Any, labels: Any) -> Any:
        at, top = f.cast(labels, int64), f.row_max(x)
        logsum = f.log(f.row_sum(f.exp(x - top)))
        return unless_ignored(f, at, self.ignored, -((f.row_element(x, at) - top) - logsum)), top, logsum

    def grad(self, x: Tensor, labels: Tensor, loss: Tensor, top: Tensor, logsum: Tensor, *grads: Tensor | None) -> Grads:
        dloss, dtop, dlogsum = grads
        direct = None if dloss is None else call(LabelLogitLossGrad(self.axis, self.ignored), x, labels, top, logsum, dloss)
        return _through_statistics(x, self.axis, dtop, dlogsum, direct), None

    def decompose(self, x: Tensor, labels: Tensor) -> tuple[Tensor, ...]:
        top, logsum = row_statistics(x, self.axis)
        logs = subtract(
            subtract(cast(x, x.tensor_type.dtype.arithmetic), expand_dims(top, self.axis)),
            expand_dims(logsum, self.axis),
        )
        return call(NegativeLogLikelihood(self.axis, self.ignored), logs, labels), top, logsum

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        yield sample(cls(1), sample_data(1, 5, 4), np.array([0, 3, 1, 1, 2], np.int32))
        yield sample(cls(1, -100), sample_data(2, 2, 5, 3), np.array([[0, -100, 4], [2, 3, -100]]))
        yield sample(cls(0), sample_data(4, 4), np.array(2))


class LabelLogitLossGrad(LogitLoss):
    """Gradient of x: dx[n, c] = (softmax(x)[n, c] - [offset + c = label[n]]) dloss[n], and 0 where the label is `ignored`.

    If the classes are split, `offset` is the rank's first class, and `classes` is the number of classes of all ranks.
    """

    ignored: int | None = None
    offset: int = 0
    classes: int | None = None
    in_place = OVER_FIRST

    def infer(self, x: TensorType, labels: TensorType, *rows: TensorType) -> TensorType:
        return x

    def rule(self, x: TensorType, labels: TensorType, *rows: TensorType) -> Rule:
        samples, whole = self.letters(x)
        return Rule(f"{whole.lower()},{samples},{samples},{samples},{samples}->{whole.lower()}", linear=((4,),))

    def localize(self, inputs: tuple[Box, ...], outputs: tuple[Box, ...]) -> Op:
        (start, stop), classes = outputs[0].spans[self.axis], outputs[0].whole[self.axis]
        return self if stop - start == classes else replace(self, offset=start, classes=classes)

    def formula(self, f: Any, x: Any, labels: Any, top: Any, logsum: Any, dloss: Any) -> Any:
        at = f.cast(labels, int64)
        counted = unless_ignored(f, at, self.ignored, dloss)
        hit = f.equal(f.index(-1), at - self.offset if self.offset else at)
        return f.where(hit, -counted, 0.0) + f.exp((x - top) - logsum) * counted

    def grad(self, x: Tensor, labels: Tensor, top: Tensor, logsum: Tensor, dloss: Tensor, dx: Tensor, ddx: Tensor) -> Grads:
        # includes the effect of x on top and logsum, which get no gradient
        def parts(x: Tensor, labels: Tensor, dloss: Tensor) -> tuple[Tensor]:
            dlogs = call(NegativeLogLikelihoodGrad(self.axis, x.tensor_type.shape[self.axis], self.ignored), labels, dloss)
            return (cast(call(LogSoftmaxGrad(self.axis), _log_softmax(x, self.axis), dlogs), x.tensor_type.dtype),)

        dlogits, _, ddloss = through(parts, (x, labels, dloss), (ddx,))
        return dlogits, None, None, None, ddloss

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        for x, axis, ignored, labels in (
            (sample_data(1, 5, 4), 1, None, np.array([0, 3, 1, 1, 2])),
            (sample_data(2, 2, 5, 3), 1, -100, np.array([[0, -100, 4], [2, 3, 1]])),
        ):
            yield sample(cls(axis, ignored), x, labels, *_statistics_of(x, axis), sample_data(3, *labels.shape), differentiable=(4,))


class ClassLogitLoss(LogitLoss):
    """Cross entropy of logits and a weight per class: loss[n] = -sum_c w[n, c] log_softmax(x)[n, c].

    w has the shape of x, or one element per class.  Outputs: loss, top, logsum.
    """

    results = 3
    reads_half = frozenset({0})

    def infer(self, x: TensorType, w: TensorType) -> tuple[TensorType, TensorType, TensorType]:
        rows = self.rows(x)
        check_dtypes("cross_entropy", FLOATS, x.with_dtype(w.dtype) if w.dtype is x.dtype.arithmetic else x, w)
        if w.shape not in (x.shape, x.shape[self.axis : self.axis + 1]):
            raise ShapeError(f"cross_entropy: weights {w} must have the shape of x {x} or one element per class")
        return rows, rows, rows

    def _of_weights(self, x: TensorType, w: TensorType, whole: str) -> str:
        return whole if w.shape == x.shape else whole[self.axis]

    def rule(self, x: TensorType, w: TensorType) -> Rule:
        samples, whole = self.letters(x)
        return Rule(f"{whole},{self._of_weights(x, w, whole)}->{samples},{samples},{samples}")

    def formula(self, f: Any, x: Any, w: Any) -> Any:
        top = f.row_max(x)
        logsum = f.log(f.row_sum(f.exp(x - top)))
        return -wide_sum(f, ((x - top) - logsum) * w), top, logsum

    def grad(self, x: Tensor, w: Tensor, loss: Tensor, top: Tensor, logsum: Tensor, *grads: Tensor | None) -> Grads:
        dloss, dtop, dlogsum = grads
        if dloss is None:
            return _through_statistics(x, self.axis, dtop, dlogsum, None), None
        direct = call(ClassLogitLossGrad(self.axis), x, w, top, logsum, dloss)
        dw = negate(multiply(_log_softmax(x, self.axis), expand_dims(dloss, self.axis)))
        if w.tensor_type.shape != x.tensor_type.shape:
            dw = reduce_sum(dw, tuple(i for i in range(x.tensor_type.ndim) if i != self.axis))
        return _through_statistics(x, self.axis, dtop, dlogsum, direct), cast(dw, w.tensor_type.dtype)

    def decompose(self, x: Tensor, w: Tensor) -> tuple[Tensor, ...]:
        top, logsum = row_statistics(x, self.axis)
        logs = subtract(
            subtract(cast(x, x.tensor_type.dtype.arithmetic), expand_dims(top, self.axis)),
            expand_dims(logsum, self.axis),
        )
        return negate(reduce_sum(multiply(logs, _wide_weights(w, logs, self.axis)), (self.axis,))), top, logsum

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        yield sample(cls(1), sample_data(1, 5, 4), sample_data(2, 5, 4))
        yield sample(cls(1), sample_data(3, 2, 5, 3), sample_data(4, 5))


class ClassLogitLossGrad(LogitLoss):
    """Gradient of x: dx[n, c] = (softmax(x)[n, c] sum_k w[n, k] - w[n, c]) dloss[n]."""

    in_place = OVER_FIRST

    def infer(self, x: TensorType, w: TensorType, *rows: TensorType) -> TensorType:
        return x

    def rule(self, x: TensorType, w: TensorType, *rows: TensorType) -> Rule:
        samples, whole = self.letters(x)
        of_weights = whole if w.shape == x.shape else whole[self.axis]
        return Rule(f"{whole},{of_weights},{samples},{samples},{samples}->{whole}", linear=((1,), (4,)))

    def formula(self, f: Any, x: Any, w: Any, top: Any, logsum: Any, dloss: Any) -> Any:
        dlogs = w * -dloss
        return dlogs - f.exp((x - top) - logsum) * f.row_sum(dlogs)

    def _parts(self, x: Tensor, w: Tensor, dloss: Tensor) -> tuple[Tensor]:
        logs = _log_softmax(x, self.axis)
        dlogs = multiply(_wide_weights(w, logs, self.axis), negate(expand_dims(dloss, self.axis)))
        return (cast(call(LogSoftmaxGrad(self.axis), logs, dlogs), x.tensor_type.dtype),)

    def decompose(self, x: Tensor, w: Tensor, top: Tensor, logsum: Tensor, dloss: Tensor) -> tuple[Tensor, ...]:
        return self._parts(x, w, dloss)

    def grad(self, x: Tensor, w: Tensor, top: Tensor, logsum: Tensor, dloss: Tensor, dx: Tensor, ddx: Tensor) -> Grads:
        # includes the effect of x on top and logsum, which get no gradient
        dlogits, dw, ddloss = through(self._parts, (x, w, dloss), (ddx,))
        return dlogits, dw, None, None, ddloss

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        for x, w in ((sample_data(1, 5, 4), sample_data(2, 5, 4)), (sample_data(3, 2, 5, 3), sample_data(4, 5))):
            top, logsum = _statistics_of(x, 1)
            yield sample(cls(1), x, w, top, logsum, sample_data(5, *top.shape), differentiable=(1, 4))


def _wide_weights(w: Tensor, like: Tensor, axis: int) -> Tensor:
    """Return the weights in the type of `like`, in a shape that broadcasts with it."""
    w, whole = cast(w, like.tensor_type.dtype), like.tensor_type
    for i in range(axis + 1, whole.ndim) if w.tensor_type.shape != whole.shape else ():
        w = expand_dims(w, i - axis)
    return w


def _statistics_of(x: Any, axis: int) -> tuple[Any, Any]:
    """Return top and logsum of a NumPy array."""
    top = x.max(axis)
    return top, np.log(np.exp(x - np.expand_dims(top, axis)).sum(axis))


def label_cross_entropy(x: Tensor, labels: Tensor, axis: int, ignored: int | None = None, *, what: str, name: str | None = None) -> Tensor:
    """Return -log_softmax(x) at the label of each sample; 0 where the label is `ignored`.  Losses of logits in half precision are float32.

    A runtime assertion rejects other labels that are not classes. `what` is the name of the function in the message of this assertion.
    """
    at = normal_axis(what, axis, x.tensor_type.ndim)
    if labels.tensor_type.dtype.is_integer:
        labels = check(class_assertion(what, x.tensor_type.shape[at], ignored), labels)
    loss: Tensor = apply(LabelLogitLoss(at, ignored), x, labels, name=name)[0]
    return loss


def class_cross_entropy(x: Tensor, w: Tensor, axis: int) -> Tensor:
    """Return -sum_c w[n, c] log_softmax(x)[n, c] for each sample n; w has the shape of x, or one element per class."""
    loss: Tensor = apply(ClassLogitLoss(axis), x, w)[0]
    return loss
