"""The namespace `flow.random` and other random functions.

Random numbers differ between runs and are a function of (seed, name, run, element index).
"""

from __future__ import annotations

from collections.abc import Sequence
from numbers import Integral, Real

import jobflow.core.scope as scope
from jobflow.core.errors import ArgumentError, JobError, user_line
from jobflow.core.types import DType, Tensor, float32, float64, int8, int32
from jobflow.expressions.philox import random_stream
from jobflow.functional.sampling import fork_rng as fork_rng
from jobflow.functional.sampling import get_rng_state as get_rng_state
from jobflow.functional.sampling import initial_seed as initial_seed
from jobflow.functional.sampling import manual_seed as manual_seed
from jobflow.functional.sampling import seed as seed
from jobflow.functional.sampling import set_rng_state as set_rng_state
from jobflow.legacy.job_dispatch import all_of, of_jobs
from jobflow.legacy.variables import current_job
from jobflow.ops import elementwise as ew
from jobflow.ops import index as ix
from jobflow.ops import random_tensors as rn
from jobflow.ops import softmax as sm
from jobflow.ops import sort as st
from jobflow.ops.op import apply
from jobflow.ops.random_tensors import DropoutMask, RandomUniform
from jobflow.ops.runtime_assertions import assert_bounds


def _uniform(what: str, shape: tuple[int, ...], dtype: DType, seed: int | None, name: str) -> Tensor:
    """Return samples of U[0, 1), new in every run; `name` is the name of the op that uses the samples."""
    job = current_job(what)
    key, own = random_stream(job.seed, seed, scope.current().full_name(name))
    return apply(RandomUniform(shape, dtype, key, seed=own), job.run_counter())


def CoinFlip(batch_size: int = 1, seed: int | None = None, probability: float = 0.5, name: str = "CoinFlip") -> Tensor:
    """Return an int8 tensor of shape (batch_size,) whose elements are 1 with the given `probability`, and 0 otherwise."""
    if not isinstance(batch_size, Integral) or batch_size < 1:
        raise ArgumentError(f"CoinFlip at {user_line()}: batch_size must be a positive int, not {batch_size!r}")
    if not isinstance(probability, Real) or not 0 <= probability <= 1:
        raise ArgumentError(f"CoinFlip at {user_line()}: probability must be in [0, 1], not {probability!r}")
    samples = _uniform("CoinFlip", (batch_size,), float32, seed, name)
    return ew.cast(ew.less(samples, ew.fill_like(samples, probability)), int8, name=name)


coin_flip = CoinFlip


def bernoulli(x: Tensor, seed: int | None = None, dtype: DType | None = None, name: str = "Bernoulli") -> Tensor:
    """Return 1 with probability x, and 0 otherwise, elementwise and new in every run; the default dtype is the type of x."""
    samples = _uniform("bernoulli", x.tensor_type.shape, x.tensor_type.dtype, seed, name)
    return ew.cast(ew.less(samples, assert_bounds(x, "bernoulli", low=0.0, high=1.0, noun="probability")), dtype or x.tensor_type.dtype, name=name)


def generate_random_batch_permutation_indices(value: Tensor, seed: int | None = None, name: str | None = None) -> Tensor:
    """Return a random int32 permutation of 0 .. n - 1 for the n rows of `value`, new in every run."""
    samples = _uniform(
        "random_permutation", value.tensor_type.shape[:1], float64, seed, name or current_job("random_permutation").unique_name("permutation")
    )
    return ew.cast(st.sort(samples)[1], int32, name=name)


def shuffle(value: Tensor, seed: int | None = None, name: str | None = None) -> Tensor:
    """Return the rows of `value` in random order, new in every run."""
    return ix.gather(value, generate_random_batch_permutation_indices(value, seed), 0, name=name)


def gen_seed(seed: int | None = None) -> tuple[int, bool]:
    """Return (seed, True); without a seed, return (the job's seed, False)."""
    return (current_job("gen_seed").seed, False) if seed is None else (seed, True)


def dropout(x: Tensor, rate: float, noise_shape: Sequence[int] | None = None, seed: int | None = None, name: str | None = None) -> Tensor:
    """Set each element to 0 with probability `rate`, and divide other elements by 1 - rate; return x itself in predict jobs and for rate 0.

    Every run samples a new mask, from the job's seed and the name, or from `seed` alone: ops with equal seeds have equal masks.
    """
    if not isinstance(rate, Real) or not 0 <= rate < 1:
        raise ArgumentError(f"dropout at {user_line()}: rate must be in [0, 1), not {rate!r}")
    if noise_shape is not None:
        raise JobError(f"dropout at {user_line()}: noise_shape is not supported; omit it")
    job = current_job("dropout")
    if not job.trainable or rate == 0:
        return x
    key, own = random_stream(job.seed, seed, job.unique_name("dropout") if name is None else scope.current().full_name(name))
    return rn.dropout(x, float(rate), job.run_counter(), key=key, seed=own, name=name)


def fused_scale_tril_softmax_dropout(
    x: Tensor,
    diagonal: int = 0,
    fill_value: float = 0,
    scale: float = 1,
    rate: float = 0.0,
    noise_shape: Sequence[int] | None = None,
    seed: int | None = None,
    name: str | None = None,
) -> Tensor:
    """Return dropout(softmax(y)), where y is scale * x if column - row <= diagonal, and fill_value otherwise."""
    own = name if rate == 0 or not current_job("fused_scale_tril_softmax_dropout").trainable else None
    # if each row has an unmasked column, exp(fill_value - largest) of so low a fill value is 0
    if fill_value == float("-inf") or (diagonal >= 0 and fill_value <= -1e30):
        y = sm.causal_softmax(x, float(scale), diagonal, name=own)
    else:
        y = sm.softmax(ix.tril(ew.scale(x, scale), diagonal, fill_value), name=own)
    return dropout(y, rate, noise_shape, seed, name)


def random_mask_like(like: Tensor, rate: float, seed: int | None = None, noise_shape: Sequence[int] | None = None, name: str | None = None) -> Tensor:
    """Return an int8 mask of the shape of `like`, new in every run: 0 with probability `rate`, and 1 otherwise."""
    if not isinstance(rate, Real) or not 0 <= rate < 1:
        raise ArgumentError(f"random_mask_like at {user_line()}: rate must be in [0, 1), not {rate!r}")
    if noise_shape is not None:
        raise ArgumentError(f"random_mask_like at {user_line()}: noise_shape is not supported; omit it")
    job = current_job("random_mask_like")
    stream = random_stream(job.seed, seed, job.unique_name("mask") if name is None else scope.current().full_name(name))
    mask = apply(DropoutMask(float(rate), *stream), like, job.run_counter())
    return ew.cast(ew.sign(mask), int8, name=name)


#: equivalents for tensors outside of jobs
_OF_TENSORS = {
    "CoinFlip": "flow.bernoulli",
    "coin_flip": "flow.bernoulli",
    "bernoulli": "flow.bernoulli",
    "generate_random_batch_permutation_indices": "flow.randperm",
    "shuffle": "x[flow.randperm(len(x))]",
    "dropout": "flow.nn.functional.dropout",
    "fused_scale_tril_softmax_dropout": "flow.tril, flow.nn.functional.softmax and flow.nn.functional.dropout",
    "random_mask_like": "flow.rand_like(x) >= rate",
}
globals().update(all_of(__name__, globals(), __name__, of_jobs, _OF_TENSORS))
