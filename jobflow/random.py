"""flow.random: random values that are new at every run, a function of (seed, name, run, element index)."""

from __future__ import annotations

from jobflow import scope
from jobflow.errors import ArgumentError, user_line
from jobflow.ops import elementwise as ew
from jobflow.ops.base import apply
from jobflow.ops.random import RandomUniform
from jobflow.types import DType, Tensor, float32, int8
from jobflow.variables import current_job


def _uniform(what: str, shape: tuple[int, ...], dtype: DType, seed: int | None, name: str) -> Tensor:
    """U[0, 1), other numbers at every run; `name` is that of the op the numbers are for."""
    job = current_job(what)
    key = scope.current().full_name(name)
    drawn: Tensor = apply(RandomUniform(shape, dtype, key, seed=job.seed if seed is None else seed), job.run_counter())
    return drawn


def CoinFlip(batch_size: int = 1, seed: int | None = None, probability: float = 0.5, name: str = "CoinFlip") -> Tensor:
    """int8 (batch_size,): 1 with `probability`, else 0."""
    if not 0 <= probability <= 1:
        raise ArgumentError(f"CoinFlip at {user_line()}: probability {probability} is not in [0, 1]")
    drawn = _uniform("CoinFlip", (batch_size,), float32, seed, name)
    return ew.cast(ew.less(drawn, ew.fill_like(drawn, probability)), int8, name=name)


coin_flip = CoinFlip


def bernoulli(x: Tensor, seed: int | None = None, dtype: DType | None = None, name: str = "Bernoulli") -> Tensor:
    """1 with probability x, else 0, elementwise; of the type of x unless dtype is given."""
    drawn = _uniform("bernoulli", x.type.shape, x.type.dtype, seed, name)
    return ew.cast(ew.less(drawn, x), dtype or x.type.dtype, name=name)
