"""The order of samples: a function of (seed, epoch, logical index) and of nothing else.

    number(seed, epoch, i) = π(i)        π: a permutation of 0 .. n-1, of its own for every seed and epoch

π(i) is computed alone, so any rank makes any stretch of an order without the rest of it, whatever came before, and however many
ranks there are.  It is a Feistel network over the pairs (l, r) with l < a, r < b and a·b the smallest such product ≥ n:

    l ← (l + F₀(r)) mod a        r ← (r + F₁(l)) mod b        l ← (l + F₂(r)) mod a        ...

Each line can be undone whatever F is, so the whole is a bijection of 0 .. a·b-1; where it leaves 0 .. n-1 it is applied again
until it is back (J. Black and P. Rogaway, "Ciphers with arbitrary finite domains", 2002: their generalised Feistel and cycle
walking).  Since a·b - n < a, that is rare.  The keys of the F are Philox words of (seed, epoch); F itself is the finaliser of
splitmix64, because a batch's numbers should cost microseconds.
"""

from __future__ import annotations

import math
from functools import lru_cache

import numpy as np

from jobflow.core.dataclass import dataclass
from jobflow.core.errors import ArgumentError
from jobflow.core.types import Array
from jobflow.expressions import philox

#: lines of the network; six make small domains even, the rest is for safety
LINES = 10
NAME = "order of samples"


@dataclass(frozen=True)
class Order:
    """In which order `samples` samples are taken in each epoch; 0, 1, 2 ... unless `shuffle`."""

    seed: int
    samples: int
    shuffle: bool = True

    def __post_init__(self) -> None:
        if self.samples < 0:
            raise ArgumentError(f"Order: samples is {self.samples}; it is a number of samples")

    def indices(self, epoch: int, start: int, stop: int) -> Array:
        """The numbers of the samples that come start-th to stop-th (not included) in an epoch, as int64[stop - start]."""
        if not 0 <= start <= stop <= self.samples:
            raise ArgumentError(f"Order: {start} to {stop} is not a range of the {self.samples} samples of an epoch")
        return self.at(epoch, np.arange(start, stop))

    def at(self, epoch: int, places: Array) -> Array:
        """The numbers of the samples that come at these places of an epoch (int64[n], each below `samples`)."""
        if not self.shuffle or self.samples < 2:
            return np.asarray(places, np.int64)
        keys = _keys(self.seed, epoch)
        found = _network(np.asarray(places, np.uint64), self.samples, keys)
        while (outside := np.flatnonzero(found >= self.samples)).size:
            found[outside] = _network(found[outside], self.samples, keys)
        return found.astype(np.int64)


@lru_cache(maxsize=64)
def _keys(seed: int, epoch: int) -> Array:
    """One 64-bit key for each line."""
    drawn = philox.words(np, philox.key_of(seed, NAME), np.arange(LINES, dtype=np.uint64), epoch).astype(np.uint64)
    return drawn[0] << np.uint64(32) | drawn[1]


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
    """32 bits that look drawn for each x."""
    x = x + key
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return x >> np.uint64(32)
