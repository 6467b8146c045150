"""The order of samples: a function of only (seed, epoch, logical index).

    number(seed, epoch, i) = π(i)        π: a permutation of 0 .. n-1, a different one for each seed and epoch

π(i) is computed independently for each i, so a rank can compute any range of an order, independent of the number of ranks. π is a Feistel
network over the pairs (l, r) with l < a, r < b and a·b the smallest such product ≥ n:

    l ← (l + F₀(r)) mod a        r ← (r + F₁(l)) mod b        l ← (l + F₂(r)) mod a        ...

A line is invertible for any F, so the network is a bijection of 0 .. a·b-1. The network is applied repeatedly until the result is below n
(J. Black and P. Rogaway, "Ciphers with arbitrary finite domains", 2002: generalised Feistel and cycle walking). Repetitions are rare because
a·b - n < a. The keys of the F are Philox words of (seed, epoch). F is the finaliser of splitmix64, because the sample numbers of a batch should
take only microseconds.
"""

from __future__ import annotations

import math
from functools import lru_cache

import numpy as np

from jobflow.core.dataclass import dataclass
from jobflow.core.errors import ArgumentError
from jobflow.core.types import Array
from jobflow.expressions import philox

#: lines of the network; six suffice for a uniform distribution on small domains, further lines are a margin
LINES = 10
NAME = "order of samples"


@dataclass(frozen=True)
class Order:
    """The order of `samples` samples in an epoch: 0, 1, 2 ..., or with `shuffle` a permutation for each seed and epoch.

    Raises: ArgumentError if `samples` is negative.
    """

    seed: int
    samples: int
    shuffle: bool = True

    def __post_init__(self) -> None:
        if self.samples < 0:
            raise ArgumentError(f"Order: samples must be at least 0, not {self.samples}")

    def indices(self, epoch: int, start: int, stop: int) -> Array:
        """Return the sample numbers at positions start to stop (exclusive) of an epoch as int64[stop - start]."""
        if not 0 <= start <= stop <= self.samples:
            legal = f"pass 0 <= start <= stop <= {self.samples}"
            raise ArgumentError(f"Order: range {start} to {stop} exceeds the {self.samples} samples of an epoch; {legal}")
        return self.at(epoch, np.arange(start, stop))

    def at(self, epoch: int, places: Array) -> Array:
        """Return the sample numbers at positions of an epoch, int64[n], each below `samples`."""
        if not self.shuffle or self.samples < 2:
            return np.asarray(places, np.int64)
        keys = _keys(self.seed, epoch)
        indices = _network(np.asarray(places, np.uint64), self.samples, keys)
        while (outside := np.flatnonzero(indices >= self.samples)).size:
            indices[outside] = _network(indices[outside], self.samples, keys)
        return indices.astype(np.int64)


@lru_cache(maxsize=64)
def _keys(seed: int, epoch: int) -> Array:
    """Return a 64-bit key for each line of the Feistel network."""
    random_words = philox.words(np, philox.key_of(seed, NAME), np.arange(LINES, dtype=np.uint64), epoch).astype(np.uint64)
    return random_words[0] << np.uint64(32) | random_words[1]


def _network(x: Array, n: int, keys: Array) -> Array:
    a = np.uint64(math.isqrt(n - 1) + 1)
    b = np.uint64(-(-n // int(a)))
    left, right = np.divmod(x, b)
    for line, key in enumerate(keys):
        if line % 2:
            right = (right + _mixed(left, key)) % b
        else:
            left = (left + _mixed(right, key)) % a
    return left * b + right


def _mixed(x: Array, key: np.uint64) -> Array:
    """Return 32 pseudorandom bits per element of x."""
    x = x + key
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return x >> np.uint64(32)
