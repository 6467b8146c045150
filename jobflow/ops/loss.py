"""Losses per sample, without a reduction over samples.  Losses per element are in elementwise_loss.

p = softmax(logits) along the last axis.  Logarithms use max(p, 1e-20).  The sparse losses take integer labels, one per sample.  Their
functions check labels at run time (`ops.runtime_assertions`); the ops assume valid labels.

Losses of logits save two numbers per row for the gradient, the maximum and the sum of exponentials, and no probabilities.  The gradient computes
p = exp(logits - top) / total from the logits, whose memory it may overwrite.  Logits in half precision are converted while they are read: losses
and row statistics are float32, and the gradient has the type of the logits.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any, TypeVar

import numpy as np

import jobflow.core.scope as scope
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
from jobflow.ops.scalar import cast, clip, negate
from jobflow.ops.shape import expand_dims
from jobflow.ops.softmax import Softmax, SoftmaxGrad
from jobflow.ops.transcendental import exp, log

#: the lower bound of probabilities in logarithms
TINY = 1e-20
WHAT = "sparse_softmax_cross_entropy"


def check_labels(what: str, values: str, x: TensorType, labels: TensorType) -> None:
    check_dtypes(what, FLOATS, x)
    if not labels.dtype.is_integer:
        raise DtypeError(f"{what}: labels {labels} are not integers; cast them with cast(labels, int32)")
    if x.ndim < 1 or labels.shape != x.shape[:-1]:
        raise ShapeError(f"{what}: labels {labels} must have the shape {list(x.shape[:-1])}, one label per row of {values} {x}")


def _row_type(logits: TensorType) -> TensorType:
    """Return the type of losses and row statistics: one element per row, in float32 for logits in half precision."""
    return logits.with_shape(logits.shape[:-1]).with_dtype(logits.dtype.arithmetic)


def _prob(f: Any, logits: Any, top: Any, total: Any) -> Any:
    return f.exp(logits - top) * f.reciprocal(total)


def _statistics(f: Any, logits: Any) -> tuple[Any, Any]:
    """Return the maximum of each row and the sum of its exponentials relative to the maximum."""
    top = f.row_max(logits)
    return top, f.row_sum(f.exp(logits - top))


def own_labels(f: Any, labels: Any, offset: int) -> Any:
    """Return the labels minus `offset`, the first class of a rank's shard."""
    return f.cast(labels, int64) - offset if offset else labels


def label_hit(f: Any, at: Any) -> Any:
    return f.equal(f.index(-1), f.cast(at, int64))


def row_letters(x: TensorType) -> tuple[str, str]:
    """Return the rule letters of the samples' axes, and of x, whose last axis (the classes) is not split."""
    return LETTERS[: x.ndim - 1], LETTERS[: x.ndim - 1] + "Z"


def column(x: Tensor) -> Tensor:
    return expand_dims(x, x.tensor_type.ndim)


def one_hots(labels: Tensor, x: Tensor) -> Tensor:
    """Return the one-hot encoding of the labels, with the shape and type of x."""
    return one_hot(labels, x.tensor_type.shape[-1], dtype=x.tensor_type.dtype)


def _through_statistics(logits: Tensor, dtop: Tensor | None, dtotal: Tensor | None, rest: Tensor | None) -> Tensor | None:
    """Return `rest` plus the gradient of logits for the gradients of their row statistics; None if all are None."""
    if dtop is None and dtotal is None:
        return rest
    (result,) = through(row_statistics, (logits,), (dtop, dtotal))
    assert result is not None, "the statistics depend on the logits"
    return result if rest is None else add(rest, result)


def row_statistics(logits: Tensor) -> tuple[Tensor, Tensor]:
    """Return the maximum of each row and the sum of its exponentials, computed by ops that accept split classes."""
    top = reduce_max(cast(logits, logits.tensor_type.dtype.arithmetic), (logits.tensor_type.ndim - 1,))
    return top, call(SumExp(), logits, top)


def _second_order(logits: Tensor, dloss: Tensor, ddx: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return p and ddx in the type of dloss, and the gradient of the logits for the gradient ddx of p * dloss."""
    dtype = logits.tensor_type.dtype
    last = logits.tensor_type.ndim - 1
    p, ddx = call(Softmax(last), cast(logits, dtype.arithmetic)), cast(ddx, dtype.arithmetic)
    return p, ddx, cast(call(SoftmaxGrad(last), p, multiply(ddx, column(dloss))), dtype)


class SparseSoftmaxCrossEntropy(Indexed):
    """Cross entropy of logits and integer labels: loss[n] = -log max(p[n, label[n]], 1e-20), with p = softmax(logits).

    Outputs: loss, top, total.  top[n] = max_c logits[n, c], and total[n] = sum_c exp(logits[n, c] - top[n]).
    """

    results = 3
    decompose_first = True
    reads_half = frozenset({0})

    def infer(self, logits: TensorType, labels: TensorType) -> tuple[TensorType, TensorType, TensorType]:
        check_labels(WHAT, "logits", logits, labels)
        return (_row_type(logits),) * 3

    def rule(self, logits: TensorType, labels: TensorType) -> Rule:
        rows, whole = row_letters(logits)
        return Rule(f"{whole},{rows}->{rows},{rows},{rows}")

    def formula(self, f: Any, logits: Any, labels: Any) -> Any:
        top, total = _statistics(f, logits)
        return -f.log(f.maximum(_prob(f, f.row_element(logits, labels), top, total), TINY)), top, total

    def grad(self, logits: Tensor, labels: Tensor, loss: Tensor, top: Tensor, total: Tensor, *grads: Tensor | None) -> Grads:
        dloss, dtop, dtotal = grads
        direct = None if dloss is None else call(SparseSoftmaxCrossEntropyGrad(), logits, labels, top, total, dloss)
        return _through_statistics(logits, dtop, dtotal, direct), None

    def decompose(self, logits: Tensor, labels: Tensor) -> tuple[Tensor, ...]:
        return byrow_letters(logits, labels)

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        yield sample(cls(), sample_data(1, 5, 4), np.array([0, 3, 1, 1, 2], np.int32))
        yield sample(cls(), sample_data(2, 2, 3, 4), np.array([[0, 3, 1], [1, 2, 0]], np.int8))


class SparseSoftmaxCrossEntropyGrad(Indexed):
    """Gradient of logits: dlogits[n, c] = (p[n, c] - [offset + c = label[n]]) dloss[n], with p[n, c] = exp(logits[n, c] - top[n]) / total[n].

    If the classes are split, `offset` is the rank's first class, and `classes` is the number of classes of all ranks. Otherwise, they are 0 and None.
    With `divides`, classes may be split, and p is a quotient as in `SplitCrossEntropy`. Otherwise, it is a product as in `SparseSoftmaxCrossEntropy`.
    """

    offset: int = 0
    classes: int | None = None
    divides: bool = False

    decompose_first = True
    in_place = OVER_FIRST

    def infer(self, logits: TensorType, labels: TensorType, *rows: TensorType) -> TensorType:
        return logits

    def rule(self, logits: TensorType, labels: TensorType, *rows: TensorType) -> Rule:
        row, whole = row_letters(logits)
        whole = whole.lower() if self.divides else whole
        return Rule(f"{whole},{row},{row},{row},{row}->{whole}", linear=((4,),))

    def localize(self, inputs: tuple[Box, ...], outputs: tuple[Box, ...]) -> Op:
        return own_classes(self, outputs[0])

    def row(self, letters: str) -> str:
        return "z"

    def formula(self, f: Any, logits: Any, labels: Any, top: Any, total: Any, dloss: Any) -> Any:
        p = f.exp(logits - top) / total if self.divides else _prob(f, logits, top, total)
        return (p - f.cast(label_hit(f, own_labels(f, labels, self.offset)), logits.dtype)) * dloss

    def decompose(self, *inputs: Tensor) -> tuple[Tensor, ...]:
        return (call(replace(self, divides=True), *inputs),)

    def grad(self, logits: Tensor, labels: Tensor, top: Tensor, total: Tensor, dloss: Tensor, dx: Tensor, ddx: Tensor) -> Grads:
        # includes the effect of the logits on top and total, which get no gradient
        p, ddx, through = _second_order(logits, dloss, ddx)
        return through, None, None, None, reduce_sum(multiply(ddx, subtract(p, one_hots(labels, p))), -1)

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        labels, logits = np.array([[0, 3, 1], [1, 2, 0]]), sample_data(1, 2, 3, 4)
        for divides in (False, True):
            yield sample(cls(divides=divides), logits, labels, *_row_samples(logits), sample_data(2, 2, 3), differentiable=(4,))


def _row_samples(logits: Any) -> tuple[Any, Any]:
    """Return the maximum and the sum of exponentials of each row of a NumPy array."""
    top = logits.max(-1)
    return top, np.exp(logits - top[..., None]).sum(-1)


Split = TypeVar("Split", bound=Op)


def own_classes(op: Split, box: Box) -> Split:
    """Return the op for a rank whose shard has the classes of the last axis of `box`."""
    (start, stop), classes = box.spans[-1], box.whole[-1]
    return op if stop - start == classes else replace(op, offset=start, classes=classes)  # type: ignore[call-arg]


class SumExp(Indexed):
    """Sum of exponentials per row: s[n] = sum_c exp(x[n, c] - top[n]); partial if the classes are split."""

    reads_half = frozenset({0})

    def infer(self, x: TensorType, top: TensorType) -> TensorType:
        check_dtypes("sum_exp", FLOATS, x.with_dtype(top.dtype) if top.dtype is x.dtype.arithmetic else x, top)
        return top

    def rule(self, x: TensorType, top: TensorType) -> Rule:
        rows, whole = row_letters(x)
        return Rule(f"{whole.lower()},{rows}->{rows}")

    def row(self, letters: str) -> str:
        return "z"

    def formula(self, f: Any, x: Any, top: Any) -> Any:
        return f.row_sum(f.exp(x - top))

    def grad(self, x: Tensor, top: Tensor, s: Tensor, ds: Tensor) -> Grads:
        dtype = x.tensor_type.dtype
        dx = multiply(exp(subtract(cast(x, dtype.arithmetic), column(top))), column(ds))
        return cast(dx, dtype), negate(multiply(s, ds))

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        yield sample(cls(), sample_data(1, 2, 3, 5), sample_data(2, 2, 3))


class SplitCrossEntropy(Indexed):
    """Cross entropy for split classes: loss[n] = -log max(p[n, label[n] - offset], 1e-20), with p[n, c] = exp(logits[n, c] - top[n]) / total[n].

    The loss is 0 for a label of another rank.  If top[n] = max_c logits[n, c] and total is SumExp, the result equals SparseSoftmaxCrossEntropy.
    The gradient of the logits includes their effect on top and total, which get no gradient.
    """

    offset: int = 0
    classes: int | None = None
    reads_half = frozenset({0})

    def infer(self, logits: TensorType, labels: TensorType, top: TensorType, total: TensorType) -> TensorType:
        check_labels(WHAT, "logits", logits, labels)
        return top

    def rule(self, logits: TensorType, *rows: TensorType) -> Rule:
        row, whole = row_letters(logits)
        return Rule(f"{whole.lower()},{row},{row},{row}->{row}")

    def localize(self, inputs: tuple[Box, ...], outputs: tuple[Box, ...]) -> Op:
        return own_classes(self, inputs[0])

    def row(self, letters: str) -> str:
        return "z"

    def formula(self, f: Any, logits: Any, labels: Any, top: Any, total: Any) -> Any:
        hit = label_hit(f, own_labels(f, labels, self.offset))
        mine = f.row_sum(f.where(hit, f.constant(1.0, top.dtype), 0.0))
        loss = -f.log(f.maximum(f.exp(f.row_sum(f.where(hit, logits, 0.0)) - top) / total, TINY))
        return f.where(f.equal(mine, 0.0), 0.0, loss)

    def grad(self, logits: Tensor, labels: Tensor, top: Tensor, total: Tensor, loss: Tensor, dloss: Tensor) -> Grads:
        return call(SparseSoftmaxCrossEntropyGrad(divides=True), logits, labels, top, total, dloss), None, None, None

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        labels = np.array([[0, 4, 1], [1, 3, 0]], np.int32)
        rows = sample_data(2, 2, 3, low=1.0), sample_data(3, 2, 3, low=1.0)
        yield sample(cls(), sample_data(1, 2, 3, 5), labels, *rows, differentiable=())


class SoftmaxCrossEntropy(Indexed):
    """Cross entropy of logits and label distributions: loss[n] = -sum_c labels[n, c] log max(p[n, c], 1e-20), with p = softmax(logits).

    Outputs: loss, top, total, as for `SparseSoftmaxCrossEntropy`.  With `sums_to_one`, the gradient assumes that the labels of each row sum to 1.
    """

    sums_to_one: bool = False

    results = 3
    reads_half = frozenset({0})

    def infer(self, logits: TensorType, labels: TensorType) -> tuple[TensorType, TensorType, TensorType]:
        single = logits.dtype.is_half and labels.dtype is logits.dtype.arithmetic
        check_dtypes("softmax_cross_entropy", FLOATS, logits, labels.with_dtype(logits.dtype) if single else labels)
        if logits.ndim < 1 or labels.shape != logits.shape:
            raise ShapeError(f"softmax_cross_entropy: labels {labels} and logits {logits} differ in shape; pass one probability per logit")
        return (_row_type(logits),) * 3

    def rule(self, logits: TensorType, labels: TensorType) -> Rule:
        rows, whole = row_letters(logits)
        return Rule(f"{whole},{whole}->{rows},{rows},{rows}")

    def formula(self, f: Any, logits: Any, labels: Any) -> Any:
        top, total = _statistics(f, logits)
        return -f.row_sum(labels * f.log(f.maximum(_prob(f, logits, top, total), TINY))), top, total

    def grad(self, logits: Tensor, labels: Tensor, loss: Tensor, top: Tensor, total: Tensor, *grads: Tensor | None) -> Grads:
        dloss, dtop, dtotal = grads
        if dloss is None:
            return _through_statistics(logits, dtop, dtotal, None), None
        direct = call(SoftmaxCrossEntropyGrad(self.sums_to_one), logits, labels, top, total, dloss)
        p = call(Softmax(logits.tensor_type.ndim - 1), cast(logits, logits.tensor_type.dtype.arithmetic))
        dlabels = negate(multiply(log(clip(p, TINY)), column(dloss)))
        return _through_statistics(logits, dtop, dtotal, direct), cast(dlabels, labels.tensor_type.dtype)

    def decompose(self, *inputs: Any) -> tuple[Tensor, ...]:
        return decomposed(self, inputs)

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        yield sample(cls(), sample_data(1, 3, 4), sample_data(2, 3, 4, low=0.0))


class SoftmaxCrossEntropyGrad(Indexed):
    """Gradient of logits: dlogits[n, c] = (p[n, c] s[n] - labels[n, c]) dloss[n], with s[n] = sum_k labels[n, k], or 1 for `sums_to_one`.

    p[n, c] = exp(logits[n, c] - top[n]) / total[n].
    """

    sums_to_one: bool = False

    in_place = OVER_FIRST

    def infer(self, logits: TensorType, labels: TensorType, *rows: TensorType) -> TensorType:
        return logits

    def rule(self, logits: TensorType, labels: TensorType, *rows: TensorType) -> Rule:
        row, whole = row_letters(logits)
        return Rule(f"{whole},{whole},{row},{row},{row}->{whole}", linear=((4,),) if self.sums_to_one else ((1,), (4,)))

    def formula(self, f: Any, logits: Any, labels: Any, top: Any, total: Any, dloss: Any) -> Any:
        p = _prob(f, logits, top, total)
        return (p - labels) * dloss if self.sums_to_one else (p * f.row_sum(labels) - labels) * dloss

    def decompose(self, *inputs: Any) -> tuple[Tensor, ...]:
        return decomposed(self, inputs)

    def grad(self, logits: Tensor, labels: Tensor, top: Tensor, total: Tensor, dloss: Tensor, dx: Tensor, ddx: Tensor) -> Grads:
        # includes the effect of the logits on top and total, which get no gradient
        def parts(x: Tensor, labels: Tensor, dloss: Tensor) -> tuple[Tensor]:
            p = call(Softmax(x.tensor_type.ndim - 1), cast(x, x.tensor_type.dtype.arithmetic))
            y = cast(labels, p.tensor_type.dtype)
            p = p if self.sums_to_one else multiply(p, reduce_sum(y, -1, keepdims=True))
            return (cast(multiply(subtract(p, y), column(dloss)), x.tensor_type.dtype),)

        dlogits, dlabels, ddloss = through(parts, (logits, labels, dloss), (ddx,))
        return dlogits, dlabels, None, None, ddloss

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        for sums_to_one in (False, True):
            logits = sample_data(1, 3, 4)
            yield sample(cls(sums_to_one), logits, sample_data(2, 3, 4, low=0.0), *_row_samples(logits), sample_data(3, 3), differentiable=(1, 4))


class SparseCrossEntropy(Indexed):
    """Cross entropy of probabilities and labels: loss[n] = -log max(prob[n, label[n] - offset], 1e-20), or 0 for a label of another rank."""

    offset: int = 0
    classes: int | None = None

    def infer(self, prob: TensorType, labels: TensorType) -> TensorType:
        check_labels("sparse_cross_entropy", "prediction", prob, labels)
        return prob.with_shape(labels.shape)

    def rule(self, prob: TensorType, labels: TensorType) -> Rule:
        rows, whole = row_letters(prob)
        return Rule(f"{whole.lower()},{rows}->{rows}")

    def localize(self, inputs: tuple[Box, ...], outputs: tuple[Box, ...]) -> Op:
        return own_classes(self, inputs[0])

    def row(self, letters: str) -> str:
        return "z"

    def formula(self, f: Any, prob: Any, labels: Any) -> Any:
        hit = label_hit(f, own_labels(f, labels, self.offset))
        return f.row_sum(f.where(hit, -f.log(f.maximum(prob, TINY)), 0.0))

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
        rows, whole = row_letters(prob)
        return Rule(f"{whole.lower()},{rows},{rows}->{whole.lower()}", linear=((2,),))

    def localize(self, inputs: tuple[Box, ...], outputs: tuple[Box, ...]) -> Op:
        return replace(self, offset=inputs[0].start[-1])

    def row(self, letters: str) -> str:
        return "z"

    def formula(self, f: Any, prob: Any, labels: Any, dloss: Any) -> Any:
        return f.where(label_hit(f, own_labels(f, labels, self.offset)), -dloss / f.maximum(prob, TINY), 0.0)

    def grad(self, prob: Tensor, labels: Tensor, dloss: Tensor, dprob: Tensor, ddprob: Tensor) -> Grads:
        def parts(prob: Tensor, labels: Tensor, dloss: Tensor) -> tuple[Tensor]:
            return (divide(multiply(one_hots(labels, prob), negate(column(dloss))), clip(prob, TINY)),)

        return through(parts, (prob, labels, dloss), (ddprob,))

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        yield sample(cls(), sample_data(1, 3, 4, low=0.1, high=1.0), np.array([0, 3, 1]), sample_data(2, 3))


def class_labels(what: str, labels: Tensor, scores: Tensor) -> Tensor:
    """Return the labels with a runtime assertion that they are classes, or unchanged if they are not integers or `scores` has no axes."""
    if labels.tensor_type.dtype.is_integer and scores.tensor_type.ndim:
        return check(class_assertion(what, scores.tensor_type.shape[-1]), labels)
    return labels


def sparse_softmax_cross_entropy(logits: Tensor, labels: Tensor, *, name: str | None = None) -> Tensor:
    """Return -log max(softmax(logits)[n, label[n]], 1e-20) for each row n, with one integer label per row; a runtime assertion checks the labels."""
    return _rounded(apply(SparseSoftmaxCrossEntropy(), logits, class_labels(WHAT, labels, logits), name=name)[0], logits)


def split_sparse_softmax_cross_entropy(logits: Tensor, labels: Tensor, *, name: str | None = None) -> Tensor:
    """Return `sparse_softmax_cross_entropy` for split classes; ranks exchange a maximum and a sum per row instead of the logits."""
    return _rounded(byrow_letters(logits, class_labels(WHAT, labels, logits), name=name)[0], logits)


def byrow_letters(logits: Tensor, labels: Tensor, *, name: str | None = None) -> tuple[Tensor, Tensor, Tensor]:
    """Return the outputs of `SparseSoftmaxCrossEntropy`, computed by ops that accept split classes."""
    top, total = row_statistics(logits)
    return call(SplitCrossEntropy(), logits, labels, top, total, name=name), top, total


def _rounded(loss: Tensor, logits: Tensor) -> Tensor:
    """Return the loss in the type of the logits; in float32 under `autocast`."""
    return loss if scope.current().autocast is not None else cast(loss, logits.tensor_type.dtype)


def softmax_cross_entropy(logits: Tensor, labels: Tensor, *, sums_to_one: bool = False, name: str | None = None) -> Tensor:
    """Return -sum_c labels[n, c] log max(softmax(logits)[n, c], 1e-20) for each row n; see `SoftmaxCrossEntropy` for `sums_to_one`."""
    return _rounded(apply(SoftmaxCrossEntropy(sums_to_one), logits, labels, name=name)[0], logits)


def sparse_cross_entropy(prob: Tensor, labels: Tensor, *, name: str | None = None) -> Tensor:
    """Return -log max(prob[n, label[n]], 1e-20) for each row n, with one integer label per row; a runtime assertion checks the labels."""
    return call(SparseCrossEntropy(), prob, class_labels("sparse_cross_entropy", labels, prob), name=name)
