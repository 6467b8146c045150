"""Batch normalization with the statistics of the whole batch, for every layout of the batch.

Training is a chain of ops whose sums are partial if the samples are split. The only communication is the redistribution of vectors with
one element per channel:

    m = channel sum of x / count,   CenteredSums of x - m and (x - m)^2,   Moments: mean and (biased) variance,   then BatchNormalize.

The inputs mean and variance of BatchNormalize are statistics of x. They get no gradient, because the gradient of x includes their effect.
The statistics of Normalize are independent inputs and get gradients.

The gradient of BatchNormalize corrects the rounding of the mean. Where elements are nearly equal, inv_std^2 would magnify this error.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import lru_cache
from typing import Any

from jobflow.core.errors import ShapeError
from jobflow.core.layout import B, P, Rule, S, Signature
from jobflow.core.types import Array, Tensor, TensorType, Xp
from jobflow.ops.arithmetic import add, multiply, subtract
from jobflow.ops.axes import reshape
from jobflow.ops.chain import Chain, apply_chain, chain
from jobflow.ops.derivative import through
from jobflow.ops.indexed import Indexed
from jobflow.ops.matmul import axis_sum
from jobflow.ops.op import LETTERS, Grads, Op, Sample, apply, normal_axis, sample
from jobflow.ops.pointwise import FLOATS, Pointwise, call, check_dtypes, sample_data
from jobflow.ops.scalar import clip, fill_like, scale, shift
from jobflow.ops.transcendental import rsqrt, square
from jobflow.ops.update import MovingAverage


class ChannelOp(Indexed):
    """Base class of the batch normalization ops. Operands are tensors of one shape and vectors along their channel axis `axis`."""

    abstract = True
    axis: int

    def _rule(self, inputs: str, outputs: str, ndim: int, linear: tuple[tuple[int, ...], ...] = ()) -> Rule:
        """Return the rule for tensors of `ndim` axes.

        `inputs` and `outputs` have one mark per operand: "t" for a tensor, "c" for a vector of channels.
        """
        full = LETTERS[:ndim]
        words = {"t": full, "c": full[self.axis]}
        left, right = (",".join(words[mark] for mark in marks) for marks in (inputs, outputs))
        return Rule(f"{left}->{right}", linear=linear)

    def _check(self, what: str, x: TensorType, **vectors: TensorType) -> None:
        check_dtypes(what, FLOATS, x, *vectors.values())
        for name, vector in vectors.items():
            if vector.shape != (x.shape[self.axis],):
                raise ShapeError(f"{what}: {name} {vector} must have the size {x.shape[self.axis]} of x {x} along axis {self.axis}")


def _wide(vector: Tensor, axis: int, like: Tensor) -> Tensor:
    """Reshape a vector of channels to broadcast along the other axes of `like`."""
    return reshape(vector, [vector.tensor_type.size if i == axis else 1 for i in range(like.tensor_type.ndim)])


class CenteredSums(ChannelOp):
    """Sums of centered elements per channel: s[c] = sum of x - mean[c], q[c] = sum of (x - mean[c])^2."""

    results = 2

    def infer(self, x: TensorType, mean: TensorType) -> tuple[TensorType, TensorType]:
        self._check("batch_norm", x, mean=mean)
        return mean, mean

    def rule(self, x: TensorType, mean: TensorType) -> Rule:
        return self._rule("tc", "cc", x.ndim)

    def last(self, letters: str) -> str:
        return letters[self.axis]

    def formula(self, f: Any, x: Any, mean: Any) -> Any:
        centred = x - mean
        return f.column_sum(centred), f.column_sum(centred * centred)

    def grad(self, x: Tensor, mean: Tensor, s: Tensor, q: Tensor, *grads: Tensor | None) -> Grads:
        dx = call(CenteredSumsGrad(self.axis), x, mean, *(fill_like(mean, 0.0) if each is None else each for each in grads))
        return dx, scale(axis_sum(dx, self.axis), -1.0)

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        yield sample(cls(1), sample_data(1, 3, 4, 2), sample_data(2, 4))
        yield sample(cls(1), sample_data(1, 5, 3), sample_data(2, 3))


class CenteredSumsGrad(ChannelOp):
    """Gradient of CenteredSums: dx = ds + 2 (x - mean) dq."""

    def infer(self, x: TensorType, mean: TensorType, ds: TensorType, dq: TensorType) -> TensorType:
        return x

    def rule(self, x: TensorType, mean: TensorType, ds: TensorType, dq: TensorType) -> Rule:
        return self._rule("tccc", "t", x.ndim, linear=((2, 3),))

    def formula(self, f: Any, x: Any, mean: Any, ds: Any, dq: Any) -> Any:
        return (x - mean) * 2.0 * dq + ds

    def grad(self, x: Tensor, mean: Tensor, ds: Tensor, dq: Tensor, dx: Tensor, ddx: Tensor) -> Grads:
        def parts(x: Tensor, mean: Tensor, ds: Tensor, dq: Tensor) -> tuple[Tensor]:
            m, s, q = (_wide(v, self.axis, x) for v in (mean, ds, scale(dq, 2.0)))
            return (add(multiply(subtract(x, m), q), s),)

        return through(parts, (x, mean, ds, dq), (ddx,))

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        yield sample(cls(1), sample_data(1, 3, 4, 2), sample_data(2, 4), sample_data(3, 4), sample_data(4, 4))


class Moments(Pointwise):
    """Mean and biased variance of `count` elements per channel, from an approximate mean and its CenteredSums s and q.

    The approximate mean has the rounding errors of a long sum. The mean residual s / count corrects both results.
    """

    count: int
    results = 2

    def infer(self, mean: TensorType, s: TensorType, q: TensorType) -> tuple[TensorType, TensorType]:
        return mean, mean

    def rule(self, mean: TensorType, s: TensorType, q: TensorType) -> Rule:
        whole, split = (Signature((sbp,) * 3, (sbp,) * 2) for sbp in (B, S(0)))
        return Rule("C,C,C->C,C", also=(whole, split))  # whole first: partial sums become whole in one all_reduce

    def formula(self, f: Any, mean: Any, s: Any, q: Any) -> Any:
        share = 1.0 / self.count
        rest = s * share
        return mean + rest, f.maximum(q * share - rest * rest, 0.0)

    def grad(self, mean: Tensor, s: Tensor, q: Tensor, *rest: Tensor | None) -> Grads:
        return through(self._parts, (mean, s, q), rest[self.results :])

    def _parts(self, mean: Tensor, s: Tensor, q: Tensor) -> tuple[Tensor, Tensor]:
        rest = scale(s, 1.0 / self.count)
        return add(mean, rest), clip(subtract(scale(q, 1.0 / self.count), square(rest)), 0.0)

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        yield sample(cls(3), sample_data(1, 4), sample_data(2, 4), sample_data(3, 4, low=1.5))


class BatchMoments(Op):
    """Mean, biased variance, and variance multiplied by `correction`, of each channel: the chain of sums and Moments as one operation.

    The results of half precision are float32.  The compiler creates it where a rank has all samples of its channels.
    """

    axis: int
    correction: float = 1.0
    results = 3

    def infer(self, x: TensorType) -> tuple[TensorType, ...]:
        check_dtypes("batch_norm", FLOATS, x)
        vector = TensorType((x.shape[self.axis],), x.dtype.arithmetic)
        return vector, vector, vector

    def rule(self, x: TensorType) -> Rule:
        letters = LETTERS[: x.ndim].upper()
        channel = letters[self.axis].lower()
        return Rule(f"{letters[: self.axis]}{channel}{letters[self.axis + 1 :]}->{channel},{channel},{channel}")

    def kernel(self, xp: Xp, x: Array, mean: Array, variance: Array, corrected: Array) -> None:
        others = tuple(axis for axis in range(x.ndim) if axis != self.axis)
        wide = [n if axis == self.axis else 1 for axis, n in enumerate(x.shape)]
        share = 1.0 / max(x.size // max(mean.size, 1), 1)
        first = x.sum(others) * share
        centred = x - first.reshape(wide)
        rest = centred.sum(others) * share
        mean[...] = first + rest
        variance[...] = xp.maximum((centred * centred).sum(others) * share - rest * rest, 0)
        corrected[...] = variance * self.correction

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        yield sample(cls(1, 1.5), sample_data(1, 3, 4, 2), differentiable=())
        yield sample(cls(1), sample_data(1, 5, 3), differentiable=())
        yield sample(cls(0, 2.0), sample_data(1, 4, 3), differentiable=())


class Normalize(ChannelOp):
    """Normalization with independent statistics per channel: y = (x - mean) gamma / sqrt(variance + epsilon) + beta."""

    epsilon: float = 1e-5

    def infer(self, x: TensorType, mean: TensorType, variance: TensorType, gamma: TensorType, beta: TensorType) -> TensorType:
        self._check("batch_norm", x, mean=mean, variance=variance, gamma=gamma, beta=beta)
        return x

    def rule(self, x: TensorType, *vectors: TensorType) -> Rule:
        return self._rule("tcccc", "t", x.ndim)

    def formula(self, f: Any, x: Any, mean: Any, variance: Any, gamma: Any, beta: Any) -> Any:
        return (x - mean) * (gamma / f.sqrt(variance + self.epsilon)) + beta

    def grad(self, x: Tensor, mean: Tensor, variance: Tensor, gamma: Tensor, beta: Tensor, y: Tensor, dy: Tensor) -> Grads:
        dgamma, dbeta = apply(NormalizeSums(self.axis, self.epsilon), dy, x, mean, variance)
        inv_std = rsqrt(shift(variance, self.epsilon))
        dx = call(NormalizeGrad(self.axis, self.epsilon), dy, variance, gamma)
        dmean = scale(multiply(multiply(dbeta, gamma), inv_std), -1.0)
        dvariance = scale(multiply(multiply(dgamma, gamma), multiply(inv_std, inv_std)), -0.5)
        return dx, dmean, dvariance, dgamma, dbeta

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        vectors = sample_data(2, 4), sample_data(3, 4, low=0.5), sample_data(4, 4), sample_data(5, 4)
        different = () if cls is BatchNormalize else None
        yield sample(cls(1, 1e-3), sample_data(1, 3, 4, 2), *vectors, differentiable=different)
        yield sample(cls(1, 1e-3), sample_data(1, 5, 4), *vectors, differentiable=different)


class NormalizeGrad(ChannelOp):
    """Gradient of x of Normalize: dx = dy gamma / sqrt(variance + epsilon)."""

    epsilon: float

    def infer(self, dy: TensorType, variance: TensorType, gamma: TensorType) -> TensorType:
        return dy

    def rule(self, dy: TensorType, variance: TensorType, gamma: TensorType) -> Rule:
        return self._rule("tcc", "t", dy.ndim, linear=((0,), (2,)))

    def formula(self, f: Any, dy: Any, variance: Any, gamma: Any) -> Any:
        return dy * (gamma / f.sqrt(variance + self.epsilon))

    def grad(self, dy: Tensor, variance: Tensor, gamma: Tensor, dx: Tensor, ddx: Tensor) -> Grads:
        def parts(dy: Tensor, variance: Tensor, gamma: Tensor) -> tuple[Tensor]:
            return (multiply(dy, _wide(multiply(gamma, rsqrt(shift(variance, self.epsilon))), self.axis, dy)),)

        return through(parts, (dy, variance, gamma), (ddx,))

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        yield sample(cls(1, 1e-3), sample_data(1, 3, 4, 2), sample_data(2, 4, low=0.5), sample_data(3, 4))


class NormalizeSums(ChannelOp):
    """Gradients of gamma and beta of Normalize: dgamma[c] = sum of dy (x - mean) / sqrt(variance + epsilon), dbeta[c] = sum of dy."""

    epsilon: float
    results = 2

    def infer(self, dy: TensorType, x: TensorType, mean: TensorType, variance: TensorType) -> tuple[TensorType, ...]:
        return mean, mean

    def rule(self, dy: TensorType, x: TensorType, mean: TensorType, variance: TensorType) -> Rule:
        return self._rule("ttcc", "cc", x.ndim, linear=((0,),))

    def last(self, letters: str) -> str:
        return letters[self.axis]

    def formula(self, f: Any, dy: Any, x: Any, mean: Any, variance: Any) -> Any:
        return f.column_sum(dy * ((x - mean) * f.rsqrt(variance + self.epsilon))), f.column_sum(dy)

    def grad(self, dy: Tensor, x: Tensor, mean: Tensor, variance: Tensor, *rest: Tensor | None) -> Grads:
        return through(self._parts, (dy, x, mean, variance), rest[self.results :])

    def _parts(self, dy: Tensor, x: Tensor, mean: Tensor, variance: Tensor) -> tuple[Tensor, ...]:
        weighed = multiply(dy, subtract(x, _wide(mean, self.axis, x)))
        return multiply(axis_sum(weighed, self.axis), rsqrt(shift(variance, self.epsilon))), axis_sum(dy, self.axis)

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        yield sample(cls(1, 1e-3), sample_data(1, 3, 4, 2), sample_data(2, 3, 4, 2), sample_data(3, 4), sample_data(4, 4, low=0.5))


class BatchNormalizeSums(NormalizeSums):
    """NormalizeSums with a third output: excess[c] = sum of (x - mean) / sqrt(variance + epsilon).

    With an exact mean, excess would be 0.
    """

    results = 3
    #: on AVX-512, array functions are 1.2 to 3 times as fast as a compiled loop
    faster_compiled = "never"

    def infer(self, dy: TensorType, x: TensorType, mean: TensorType, variance: TensorType) -> tuple[TensorType, ...]:
        return mean, mean, mean

    def rule(self, dy: TensorType, x: TensorType, mean: TensorType, variance: TensorType) -> Rule:
        rule = self._rule("ttcc", "ccc", x.ndim)
        return replace(rule, also=(Signature((P, B, B, B), (P, P, B)),))  # excess does not depend on dy

    def formula(self, f: Any, dy: Any, x: Any, mean: Any, variance: Any) -> Any:
        n = (x - mean) * f.rsqrt(variance + self.epsilon)
        return f.column_sum(dy * n), f.column_sum(dy), f.column_sum(n)

    def _parts(self, dy: Tensor, x: Tensor, mean: Tensor, variance: Tensor) -> tuple[Tensor, ...]:
        centred, inv_std = subtract(x, _wide(mean, self.axis, x)), rsqrt(shift(variance, self.epsilon))
        return (*super()._parts(dy, x, mean, variance), multiply(axis_sum(centred, self.axis), inv_std))


class BatchNormalize(Normalize):
    """Normalization by the mean and biased variance of x. The gradient of x includes the gradients through the mean and the variance."""

    def grad(self, x: Tensor, mean: Tensor, variance: Tensor, gamma: Tensor, beta: Tensor, y: Tensor, dy: Tensor) -> Grads:
        dgamma, dbeta, excess = apply(BatchNormalizeSums(self.axis, self.epsilon), dy, x, mean, variance)
        count = x.tensor_type.size // max(1, x.tensor_type.shape[self.axis])
        dx = call(BatchNormalizeGrad(self.axis, self.epsilon, count), dy, x, mean, variance, gamma, dgamma, dbeta, excess)
        return dx, None, None, dgamma, dbeta


class BatchNormalizeGrad(ChannelOp):
    """Gradient of x of BatchNormalize: dx = gamma inv_std (dy - share - (n - rest) slope).

    inv_std = 1 / sqrt(variance + epsilon) and n = (x - mean) inv_std.
    share = dbeta / count, rest = excess / count and slope = dgamma / count - share rest are means of dy, of n, and of dy (n - rest).
    """

    epsilon: float
    count: int

    def infer(self, dy: TensorType, x: TensorType, *vectors: TensorType) -> TensorType:
        return x

    def rule(self, dy: TensorType, x: TensorType, *vectors: TensorType) -> Rule:
        return self._rule("ttcccccc", "t", x.ndim)

    def formula(self, f: Any, dy: Any, x: Any, mean: Any, variance: Any, gamma: Any, *sums: Any) -> Any:
        inv_std = f.rsqrt(variance + self.epsilon)
        slope, share, rest = (each * (1 / max(self.count, 1)) for each in sums)
        slope = slope - share * rest
        return gamma * inv_std * (dy - ((share - rest * slope) + (x - mean) * (slope * inv_std)))

    def grad(self, *tensors: Tensor) -> Grads:
        return through(self._parts, tensors[:8], tensors[9:])

    def _parts(self, dy: Tensor, x: Tensor, mean: Tensor, variance: Tensor, gamma: Tensor, *sums: Tensor) -> tuple[Tensor]:
        inv_std = rsqrt(shift(variance, self.epsilon))
        slope, share, rest = (scale(each, 1 / max(self.count, 1)) for each in sums)
        slope = subtract(slope, multiply(share, rest))
        vectors = mean, multiply(gamma, inv_std), subtract(share, multiply(rest, slope)), multiply(slope, inv_std)
        m, a, p, q = (_wide(v, self.axis, x) for v in vectors)
        return (multiply(a, subtract(dy, add(p, multiply(subtract(x, m), q)))),)

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        vectors = sample_data(3, 4), sample_data(4, 4, low=0.5), *(sample_data(i, 4) for i in (5, 6, 7, 8))
        yield sample(cls(1, 1e-3, 6), sample_data(1, 3, 4, 2), sample_data(2, 3, 4, 2), *vectors)


def batch_norm_train(
    x: Tensor, gamma: Tensor, beta: Tensor, axis: int = 1, epsilon: float = 1e-5, *, name: str | None = None
) -> tuple[Tensor, Tensor, Tensor]:
    """Normalize x per channel, with the channels on `axis`, by the mean and the biased variance of the whole batch.

    Returns y = (x - mean) gamma / sqrt(variance + epsilon) + beta, and the vectors mean and variance.
    """
    axis = normal_axis("batch_norm", axis, x.tensor_type.ndim)
    mean, variance = apply_chain(_moments(axis, x.tensor_type), x)
    return call(BatchNormalize(axis, epsilon), x, mean, variance, gamma, beta, name=name), mean, variance


@lru_cache(maxsize=1024)
def _moments(axis: int, type: TensorType) -> Chain:
    """Return the chain that computes the mean and the biased variance of each channel of a tensor of `type`, with the channels on `axis`."""
    count = max(1, type.size // max(1, type.shape[axis]))

    def moments(x: Tensor) -> tuple[Tensor, ...]:
        mean = scale(axis_sum(x, axis), 1.0 / count)
        return apply(Moments(count), mean, *apply(CenteredSums(axis), x, mean))

    return chain("batch_norm", moments, type)


@lru_cache(maxsize=1024)
def average_updates(type: TensorType, momentum: float, correction: float) -> Chain:
    """Return the chain that updates the moving averages of mean and variance by the statistics of a batch.

    Inputs, vectors of `type`: both averages, then mean and biased variance of the batch. `momentum` is the weight of the batch.
    The variance of the batch is multiplied by `correction`, which removes its bias.
    """

    def updates(*vectors: Tensor) -> tuple[Tensor, Tensor]:
        average, average_variance, mean, variance = vectors
        move = MovingAverage(1.0 - momentum)
        return apply(move, average, mean), apply(move, average_variance, scale(variance, correction))

    return chain("batch_norm", updates, type, type, type, type)


def batch_norm_infer(
    x: Tensor, gamma: Tensor, beta: Tensor, mean: Tensor, variance: Tensor, axis: int = 1, epsilon: float = 1e-5, *, name: str | None = None
) -> Tensor:
    """Return (x - mean) gamma / sqrt(variance + epsilon) + beta, with one element of each parameter per channel on `axis`.

    The inputs mean and variance are independent of x, for example moving averages.
    """
    axis = normal_axis("batch_norm", axis, x.tensor_type.ndim)
    return call(Normalize(axis, epsilon), x, mean, variance, gamma, beta, name=name)
