"""Connectionist temporal classification: the loss of label sequences that are not longer than the sequence of frames.

A. Graves, S. Fernandez, F. Gomez, J. Schmidhuber: Connectionist temporal classification, ICML 2006.  With l' = blank, l1, blank, l2 ... blank:

    alpha[t, s] = logsumexp(alpha[t-1, s], alpha[t-1, s-1], alpha[t-1, s-2] if l'[s] != l'[s-2]) + x[t, l'[s]]
    loss = -logsumexp of the last two of alpha[frames - 1]

The kernels accumulate in float64 and process all samples of a frame together. The greedy decoder chooses the most likely label of each frame.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from jobflow.core.errors import DtypeError, ShapeError
from jobflow.core.layout import Rule
from jobflow.core.types import Array, Tensor, TensorType, Xp, int64
from jobflow.ops import elementwise as ew
from jobflow.ops import index as ix
from jobflow.ops.op import Grads, Op, Sample, apply, sample
from jobflow.ops.pointwise import FLOATS, call, check_dtypes, sample_data
from jobflow.ops.reduce import argmax
from jobflow.ops.shape import expand_dims
from jobflow.ops.source import arange


class CtcLoss(Op):
    """CTC loss of each sample: loss[n] from log-probabilities x[frames, n, classes] and label sequences targets[n, longest].

    The inputs frames[n] and labels[n] are the lengths of each sample in frames and in labels. With `zero_infinity`, a sample without a valid path
    has loss 0 instead of inf.

    The gradient of x is softmax minus the fraction of the path probability in each class. This formula assumes log-probabilities from
    log-softmax. The gradient differs from the derivative by a multiple of softmax. The gradient of log-softmax cancels this difference.
    """

    blank: int = 0
    zero_infinity: bool = False

    def infer(self, x: TensorType, targets: TensorType, frames: TensorType, labels: TensorType) -> TensorType:
        check_dtypes("ctc_loss", FLOATS, x)
        for word, ids in (("targets", targets), ("input_lengths", frames), ("target_lengths", labels)):
            if not ids.dtype.is_integer:
                raise DtypeError(f"ctc_loss: {word} {ids} are not integers; cast them with cast({word}, int64)")
        n = x.shape[1:2]
        if x.ndim != 3 or targets.ndim != 2 or targets.shape[:1] != n or frames.shape != n or labels.shape != n:
            raise ShapeError(
                f"ctc_loss: log_probs {x} must be [frames, n, classes], targets {targets} [n, longest], input_lengths {frames} [n] and "
                f"target_lengths {labels} [n]"
            )
        if not 0 <= self.blank < x.shape[2]:
            raise ShapeError(f"ctc_loss: blank {self.blank} is outside [0, {x.shape[2]}), the classes of {x}")
        return x.with_shape(n)

    def rule(self, x: TensorType, targets: TensorType, frames: TensorType, labels: TensorType) -> Rule:
        return Rule("TnC,nL,n,n->n")

    def kernel(self, xp: Xp, x: Array, targets: Array, frames: Array, labels: Array, loss: Array) -> None:
        losses = _losses(_Paths(xp, self.blank, x, targets, frames, labels))
        loss[...] = xp.where(xp.isinf(losses), 0.0, losses) if self.zero_infinity else losses

    def grad(self, x: Tensor, targets: Tensor, frames: Tensor, labels: Tensor, loss: Tensor, dloss: Tensor) -> Grads:
        return call(CtcLossGrad(self.blank, self.zero_infinity), x, targets, frames, labels, dloss), None, None, None

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        yield from _cases(cls)


class CtcPaths(CtcLoss):
    """Forward variables alpha[n, t, s] of the CTC recursion: logarithms of path probabilities. The inputs are the same as in CtcLoss.

    alpha is -inf if no path reaches state s at frame t, and after the last frame of a sample.
    """

    def infer(self, x: TensorType, targets: TensorType, frames: TensorType, labels: TensorType) -> TensorType:
        super().infer(x, targets, frames, labels)
        return x.with_shape((x.shape[1], x.shape[0], 2 * targets.shape[1] + 1))

    def rule(self, x: TensorType, targets: TensorType, frames: TensorType, labels: TensorType) -> Rule:
        return Rule("TnC,nL,n,n->nTS")

    def kernel(self, xp: Xp, x: Array, targets: Array, frames: Array, labels: Array, alpha: Array) -> None:
        paths = _Paths(xp, self.blank, x, targets, frames, labels)
        alpha[...] = xp.where(paths.inside[:, :, None], _forward(paths), -xp.inf).swapaxes(0, 1)

    def grad(self, *tensors: Any) -> Grads:
        return Op.grad(self, *tensors)


class CtcLossGrad(CtcLoss):
    """Gradient of CtcLoss: dx[t, n, c] = dloss[n] (e^x[t, n, c] - fraction of the path probability in class c at frame t).

    Frames after the last one of a sample have gradient 0.
    """

    def infer(self, x: TensorType, *others: TensorType) -> TensorType:
        *inputs, dloss = others
        if super().infer(x, *inputs) != dloss:
            raise ShapeError(f"ctc_loss: the gradient {dloss} of the loss is not {x.with_shape(x.shape[1:2])}")
        return x

    def rule(self, x: TensorType, *others: TensorType) -> Rule:
        return Rule("TnC,nL,n,n,n->TnC", linear=((4,),))

    def kernel(self, xp: Xp, x: Array, *others: Array) -> None:
        targets, frames, labels, dloss, dx = others
        loss, slope = _losses_and_slopes(_Paths(xp, self.blank, x, targets, frames, labels), dloss)
        dx[...] = xp.where(xp.isinf(loss)[:, None], 0.0, slope) if self.zero_infinity else slope

    def grad(self, *tensors: Any) -> Grads:
        return Op.grad(self, *tensors)

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        for each in _cases(cls):
            yield Sample(each.op, (*each.arrays, sample_data(5, each.arrays[0].shape[1])), differentiable=())


class CtcGreedyDecoder(Op):
    """Greedy decoder: the most likely class of each frame of x[frames, n, classes], without blanks (the last class).

    decoded[n, frames] contains these classes, padded with zeros. total[n, 1] is the negated sum of their log-probabilities.
    Frames from lengths[n] on are ignored. With `merge_repeated`, a class in consecutive frames counts once.
    """

    merge_repeated: bool = True

    def infer(self, x: TensorType, lengths: TensorType) -> tuple[TensorType, TensorType]:
        check_dtypes("ctc_greedy_decoder", FLOATS, x)
        if not lengths.dtype.is_integer:
            raise DtypeError(f"ctc_greedy_decoder: input_lengths {lengths} are not integers; cast them with cast(input_lengths, int64)")
        if x.ndim != 3 or lengths.shape != x.shape[1:2]:
            raise ShapeError(f"ctc_greedy_decoder: log_probs {x} must be [frames, n, classes], and input_lengths {lengths} [n]")
        frames, n, classes = x.shape
        if not classes:
            raise ShapeError(f"ctc_greedy_decoder: log_probs {x} [frames, n, classes] must have at least one class, the blank")
        return lengths.with_shape((n, frames)), x.with_shape((n, 1))

    def rule(self, x: TensorType, lengths: TensorType) -> Rule:
        return Rule("TnC,n->nT,nZ")

    def kernel(self, xp: Xp, x: Array, lengths: Array, decoded: Array, total: Array) -> None:
        best = x.argmax(2)
        inside = xp.arange(len(x))[:, None] < lengths
        largest = xp.take_along_axis(x, best[:, :, None], axis=2)[:, :, 0]
        total[:, 0] = -xp.where(inside, largest, 0).sum(0, dtype=xp.float64)
        emitted = inside & (best != x.shape[2] - 1)
        if self.merge_repeated:
            emitted[1:] &= best[1:] != best[:-1]
        frame, row = xp.nonzero(emitted)
        decoded[...] = 0
        decoded[row, emitted.cumsum(0)[frame, row] - 1] = best[frame, row]

    def grad(self, x: Tensor, lengths: Tensor, decoded: Tensor, total: Tensor, ddecoded: Tensor | None, dtotal: Tensor | None) -> Grads:
        if dtotal is None:
            return None, None
        frames, _, classes = x.tensor_type.shape
        inside = ew.less(expand_dims(arange(0, frames), 1), ew.cast(lengths, int64))
        chosen = ew.multiply(ix.one_hot(argmax(x, 2), classes, dtype=x.tensor_type.dtype), expand_dims(ew.cast(inside, x.tensor_type.dtype), 2))
        return ew.negate(ew.multiply(chosen, dtotal)), None

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        x = np.stack([np.linspace(0.1, 1.0, 4)[np.random.default_rng(i).permutation(4)] for i in range(35)]).reshape(7, 5, 4)
        x[1:3], x[4] = x[0], x[3]  # repeated classes
        yield sample(cls(), x, np.array([7, 6, 4, 0, 5]))
        yield sample(cls(False), -x, np.array([7, 1, 3, 2, 5], np.int32))
        yield sample(cls(), np.float32(x), np.full(5, 7), differentiable=())
        yield sample(cls(), np.zeros((2, 3, 2)), np.array([2, 1, 0]), differentiable=(), note=" ties")
        yield sample(cls(), np.zeros((0, 3, 2)), np.zeros(3, np.int64), note=" no frames")


class _Paths:
    """The CTC recursions over the frames of a batch; the constructor computes the float64 scores and the masks that the recursions read."""

    def __init__(self, xp: Xp, blank: int, x: Array, targets: Array, frames: Array, labels: Array) -> None:
        self.xp, self.x = xp, x.astype(xp.float64)
        self.frames, self.labels = frames.astype(xp.int64), labels.astype(xp.int64)
        count, longest = targets.shape
        self.inside = xp.arange(x.shape[0])[:, None] < self.frames
        known = xp.where(xp.arange(longest) < self.labels[:, None], targets.astype(xp.int64), blank)
        self.marks = xp.full((count, 2 * longest + 1), blank, xp.int64)
        self.marks[:, 1::2] = known
        #: the marks up to the last blank of each sample
        self.used = xp.arange(2 * longest + 1) <= 2 * self.labels[:, None]
        self.jumps = xp.zeros(self.marks.shape, bool)
        self.jumps[:, 2:] = self.marks[:, 2:] != self.marks[:, :-2]  # also for labels equal to the blank, as in PyTorch
        at = xp.broadcast_to(self.marks, (x.shape[0], *self.marks.shape))
        self.scores = xp.where(self.used, xp.take_along_axis(self.x, at, axis=2), -xp.inf)

    def _together(self, stays: Array, next: Array, jump: Array) -> Array:
        return self.xp.logaddexp(self.xp.logaddexp(stays, next), jump)

    def _shifted(self, a: Array, by: int) -> Array:
        """Shift a by `by` along its last axis: result[:, s] = a[:, s - by], or -inf out of range."""
        moved = self.xp.full(a.shape, -self.xp.inf)
        if by > 0:
            moved[:, by:] = a[:, :-by]
        else:
            moved[:, :by] = a[:, -by:]
        return moved

    def forward(self) -> Array:
        """Return alpha[t, n, s]. Frames after the last frame of a sample repeat the values of this frame."""
        xp = self.xp
        alpha = xp.full(self.scores.shape, -xp.inf)
        if len(alpha):
            alpha[0, :, :2] = self.scores[0, :, :2]
        for t in range(1, len(alpha)):
            before = alpha[t - 1]
            jump = xp.where(self.jumps, self._shifted(before, 2) if before.shape[1] > 2 else -xp.inf, -xp.inf)
            extended = self._together(before, self._shifted(before, 1), jump) + self.scores[t]
            alpha[t] = xp.where(self.inside[t][:, None], extended, before)
        return alpha

    def loss(self, alpha: Array) -> Array:
        """Return the negated logarithm of the total probability of all paths of each sample."""
        xp = self.xp
        if not len(alpha):
            return xp.where(self.labels == 0, 0.0, xp.inf)
        last = alpha[-1]
        end = xp.take_along_axis(last, 2 * self.labels[:, None], axis=1)[:, 0]
        before = xp.take_along_axis(last, xp.maximum(2 * self.labels - 1, 0)[:, None], axis=1)[:, 0]
        total = xp.logaddexp(end, xp.where(self.labels > 0, before, -xp.inf))
        return xp.where(self.frames > 0, -total, xp.where(self.labels == 0, 0.0, xp.inf))

    def shares(self, alpha: Array, loss: Array) -> Array:
        """Return the fraction of the path probability in each class at each frame: [frames, n, classes]."""
        xp = self.xp
        result, states = xp.zeros(self.x.shape), xp.arange(self.marks.shape[1])
        ends = (states == 2 * self.labels[:, None]) | (states == 2 * self.labels[:, None] - 1)
        beta, rows = xp.full(self.marks.shape, -xp.inf), xp.arange(len(self.marks))
        for t in range(len(alpha) - 1, -1, -1):
            after = beta + (self.scores[t + 1] if t + 1 < len(alpha) else 0.0)
            jump = self._shifted(xp.where(self.jumps, after, -xp.inf), -2) if after.shape[1] > 2 else xp.full(after.shape, -xp.inf)
            going = self._together(after, self._shifted(after, -1), jump)
            starts = (t == self.frames - 1)[:, None]
            beta = xp.where(starts, xp.where(ends, 0.0, -xp.inf), xp.where(self.inside[t][:, None], going, -xp.inf))
            share = xp.exp(xp.where(self.used, alpha[t] + beta + loss[:, None], -xp.inf))
            for s in range(share.shape[1]):
                result[t, rows, self.marks[:, s]] += share[:, s]
        return result


def _cases(kind: type[CtcLoss]) -> Iterator[Sample]:
    x = sample_data(1, 7, 5, 4)
    x = x - np.log(np.exp(x).sum(2, keepdims=True))
    targets = np.array([[1, 2, 3], [2, 2, 0], [3, 9, 9], [1, 1, 1], [7, 7, 7]])
    frames, labels = np.array([7, 6, 4, 4, 5]), np.array([3, 2, 1, 3, 0])
    yield sample(kind(0, True), x, targets, frames, labels, differentiable=(), note=" one has no path")
    yield sample(kind(3), x, np.array([[1, 2], [0, 0], [0, 1], [1, 1], [2, 0]]), np.full(5, 7, np.int32), labels[[1] * 5], differentiable=())


def ctc_loss(
    x: Tensor, targets: Tensor, frames: Tensor, labels: Tensor, blank: int = 0, zero_infinity: bool = False, *, name: str | None = None
) -> Tensor:
    """Return the CTC loss of each sample, loss[n], for log-probabilities x[frames, n, classes] and labels targets[n, longest].

    frames[n] and labels[n] are the lengths of each sample; `blank` is the class of the blank. A sample without a valid path has loss inf, or 0 with
    `zero_infinity`. Raises ShapeError for other shapes or an invalid blank. Raises DtypeError unless x is floating point and the other tensors
    are integers.
    """
    return call(CtcLoss(blank, zero_infinity), x, targets, frames, labels, name=name)


def ctc_greedy_decoder(x: Tensor, lengths: Tensor, merge_repeated: bool = True, *, name: str | None = None) -> tuple[Tensor, Tensor]:
    """Return the most likely classes of the frames of each sample, without blanks, and the negated sum of their log-probabilities.

    x[frames, n, classes] contains log-probabilities, with the blank as the last class, and lengths[n] the number of frames of each sample.
    The results are classes[n, frames], padded with zeros, and sums[n, 1]. With `merge_repeated`, a class in consecutive frames counts once.
    """
    decoded, total = apply(CtcGreedyDecoder(merge_repeated), x, lengths, name=name)
    return decoded, total


@np.errstate(all="ignore")
def _forward(paths: _Paths) -> Array:
    return paths.forward()


@np.errstate(all="ignore")
def _losses(paths: _Paths) -> Array:
    return paths.loss(paths.forward())


@np.errstate(all="ignore")
def _losses_and_slopes(paths: _Paths, dloss: Array) -> tuple[Array, Array]:
    """Return the losses of all samples, and the gradients of the log-probabilities if `dloss` is the gradient of the losses.

    As in PyTorch, a sample without a valid path has loss inf and gradient NaN.
    """
    alpha = paths.forward()
    loss = paths.loss(alpha)
    slope = (paths.xp.exp(paths.x) - paths.shares(alpha, loss)) * dloss[:, None]
    slope = paths.xp.where(paths.xp.isinf(loss)[:, None], paths.xp.nan, slope)
    return loss, paths.xp.where(paths.inside[:, :, None], slope, 0.0)
