"""Philox4x32-10: random bits as a function of a key and an index, so that each element of a tensor can be computed separately.

J. Salmon et al., "Parallel random numbers: as easy as 1, 2, 3" (SC 2011).  A key of two 32-bit words maps a counter of four words to
four random words, in ten rounds.  Element i of a tensor, counted in C order in the whole logical tensor, is

    word w of counter (lane index, stream, plane)    where  i = 64 group + 16 w + lane  and  lane index = 16 group + lane

The key identifies the tensor (a seed and a name) and the stream identifies the run.  The plane distinguishes several samples for one element.
Groups of 64 allow computing a contiguous range without shuffling words.
"""

from __future__ import annotations

import math
from functools import cache
from typing import TypeAlias

import numpy as np

from jobflow.core.dataclass import dataclass
from jobflow.core.layout import Box
from jobflow.core.types import Array, Xp

Key: TypeAlias = tuple[int, int]

ROUNDS = 10
MULTIPLIERS = (0xD2511F53, 0xCD9E8D57)
WEYL = (0x9E3779B9, 0xBB67AE85)
MASK = 0xFFFFFFFF
#: counters per step, chosen so that three uint64 arrays of twice this size stay in the cache
BLOCK = 8192
GROUP, LANES = 64, 16
#: elements per step of a non-contiguous box
ROWS = 1 << 18


@cache
def key_of(seed: int, name: str) -> Key:
    """Return the Philox key, two 32-bit words, of a seed and of the stable name of a random tensor."""
    from hashlib import blake2b  # imports OpenSSL

    digest = blake2b(f"{seed}/{name}".encode(), digest_size=8).digest()
    return int.from_bytes(digest[:4], "little"), int.from_bytes(digest[4:], "little")


def random_stream(default: int, seed: int | None, name: str) -> tuple[str, int]:
    """Return the name and the seed that identify the random numbers of an op.

    Without a seed of the op (None), they are `name` and the seed `default`.  Otherwise they are "" and `seed`, so that two ops with equal seeds
    sample equal numbers.
    """
    return (name, default) if seed is None else ("", seed)


def round_keys(xp: Xp, key: Key) -> Array:
    """Return the keys of the ten rounds, as uint64[10,2,1]."""
    keys = [[(key[0] + i * WEYL[0]) & MASK, (key[1] + i * WEYL[1]) & MASK] for i in range(ROUNDS)]
    return xp.asarray(keys, dtype=xp.uint64)[:, :, None]


def philox(xp: Xp, keys: Array, even: Array, odd: Array, work: Array) -> None:
    """Apply ten rounds to n counters, in place.

    even[0] and even[1] are words 0 and 2, odd[0] and odd[1] words 1 and 3, as uint64[2,n]; `work` is a buffer of the same shape and type.
    """
    multipliers = xp.asarray(MULTIPLIERS, dtype=xp.uint64)[:, None]
    half, mask = xp.uint64(32), xp.uint64(MASK)
    crossed = work[::-1]
    for i in range(ROUNDS):
        xp.multiply(even, multipliers, work)
        xp.bitwise_xor(odd, keys[i], odd)
        xp.right_shift(crossed, half, even)
        xp.bitwise_xor(even, odd, even)
        xp.bitwise_and(crossed, mask, odd)


def words_of(key: Key, lane: int, stream: int) -> tuple[int, int, int, int]:
    """Return the four random words of the lane index `lane` in plane 0.

    Python integers are faster than the arrays of `words` for a few numbers.
    """
    a, b, c, d = lane & MASK, lane >> 32, stream & MASK, (stream >> 32) << 8 & MASK
    for i in range(ROUNDS):
        x, y = a * MULTIPLIERS[0], c * MULTIPLIERS[1]
        a, b, c, d = y >> 32 ^ b ^ (key[0] + i * WEYL[0]) & MASK, y & MASK, x >> 32 ^ d ^ (key[1] + i * WEYL[1]) & MASK, x & MASK
    return a, b, c, d


def words(xp: Xp, key: Key, lanes: Array, stream: int, plane: int = 0) -> Array:
    """Return the four words of each lane index (uint64[n]) as uint32[4,n]."""
    n = lanes.shape[0]
    keys = round_keys(xp, key)
    out = xp.empty((4, n), xp.uint32)
    block = BLOCK if xp is np else max(n, 1)  # on a GPU each block takes a hundred launches
    even, odd, work = (xp.empty((2, min(n, block)), xp.uint64) for _ in range(3))
    for start in range(0, n, block):
        part = lanes[start : start + block]
        m = part.shape[0]
        e, o = even[:, :m], odd[:, :m]
        e[0], o[0] = part & xp.uint64(MASK), part >> xp.uint64(32)
        e[1], o[1] = stream & MASK, ((stream >> 32) << 8 | plane) & MASK
        philox(xp, keys, e, o, work[:, :m])
        out[0::2, start : start + m] = e
        out[1::2, start : start + m] = o
    return out


def runs(box: Box) -> tuple[Array, int]:
    """Return the flat indices in the logical tensor at which the contiguous runs of `box` start (int64[n]), and the length of each run."""
    shape, whole = box.shape, box.whole
    axis = len(whole) - 1
    while axis > 0 and shape[axis] == whole[axis]:
        axis -= 1
    if axis < 0:
        return np.zeros(1, np.int64), 1
    starts = np.zeros((), np.int64)
    for a, b, n in ((*span, n) for span, n in zip(box.spans[:axis], whole, strict=False)):
        starts = starts[..., None] * n + np.arange(a, b)
    starts = (starts * whole[axis] + box.start[axis]) * math.prod(whole[axis + 1 :])
    return starts.reshape(-1), math.prod(shape[axis:])


def indices(box: Box) -> Array:
    """Return the flat indices of a box's elements in the logical tensor, in C order, as a uint64 array."""
    starts, length = runs(box)
    return (starts[:, None] + np.arange(length)).reshape(-1).astype(np.uint64)


@dataclass(frozen=True)
class Stream:
    """The random words of one tensor in one run, computed with NumPy or CuPy."""

    xp: Xp
    key: Key
    stream: int

    def words(self, lanes: Array, plane: int) -> Array:
        """Return the four words of each lane index (uint64[n]) as uint32[4,n]."""
        return words(self.xp, self.key, lanes, self.stream, plane)

    def bits(self, start: int, count: int, plane: int = 0) -> Array:
        """Return the random words of elements [start, start + count), as uint32[count]."""
        first, last = start // GROUP, -(-(start + count) // GROUP)
        lanes = self.xp.arange(first * LANES, last * LANES, dtype=self.xp.uint64)
        grouped = self.words(lanes, plane).reshape(4, last - first, LANES).transpose(1, 0, 2)
        return grouped.reshape(-1)[start - first * GROUP :][:count]

    def bits_at(self, index: Array, plane: int = 0) -> Array:
        """Return the random words of the elements at the flat indices `index` (uint64[n]), as uint32[n]."""
        xp = self.xp
        group, offset = index // xp.uint64(GROUP), index % xp.uint64(GROUP)
        drawn = self.words(group * xp.uint64(LANES) + offset % xp.uint64(LANES), plane)
        return drawn[(offset // xp.uint64(LANES)).astype(xp.int64), xp.arange(index.shape[0])]

    def box_bits(self, box: Box, plane: int = 0) -> Array:
        """Return the random words of a box's elements in C order, as a flat uint32 array."""
        starts, length = runs(box)
        if starts.size * length == 0:
            return self.xp.empty(0, self.xp.uint32)
        if starts.size == 1:
            return self.bits(int(starts[0]), length, plane)
        step = max(1, ROWS // length)
        return self.xp.concatenate([self._rows(starts[i : i + step], length, plane) for i in range(0, starts.size, step)])

    def _rows(self, starts: Array, length: int, plane: int) -> Array:
        """Return the random words of `length` consecutive elements from each index in `starts`, as a flat uint32 array.

        Long runs compute whole groups of 64 elements and discard the elements outside the run; short runs compute each element separately.
        """
        xp = self.xp
        index = xp.asarray(starts)[:, None] + xp.arange(length)
        if length < GROUP // 2:
            return self.bits_at(index.reshape(-1).astype(xp.uint64), plane)
        first = index[:, :1] // GROUP
        count = (length + GROUP - 2) // GROUP + 1
        groups = first + xp.arange(count)
        lanes = (groups[:, :, None] * LANES + xp.arange(LANES)).reshape(-1).astype(xp.uint64)
        drawn = self.words(lanes, plane).reshape(4, len(starts), count, LANES)
        ordered = drawn.transpose(1, 2, 0, 3).reshape(len(starts), count * GROUP)
        return xp.take_along_axis(ordered, index - first * GROUP, axis=1).reshape(-1)


@dataclass(frozen=True)
class Drawn:
    """The elements of a random tensor to sample: a box of the logical tensor, or flat indices (uint64[n])."""

    stream: Stream
    elements: Box | Array

    def bits(self, plane: int = 0) -> Array:
        """Return the random words of the elements (uint32[n])."""
        if isinstance(self.elements, Box):
            return self.stream.box_bits(self.elements, plane)
        return self.stream.bits_at(self.elements, plane)

    def indices(self) -> Array:
        return self.stream.xp.asarray(indices(self.elements)) if isinstance(self.elements, Box) else self.elements

    def unit(self, dtype: np.dtype[np.generic], plane: int = 0) -> Array:
        """Sample U[0, 1) for the elements, as a flat array.

        The result is float64 from 53 random bits of two planes if `dtype` is float64, else float32 from 24 bits.
        """
        high, xp = self.bits(plane), self.stream.xp
        if dtype != np.float64:
            return (high >> xp.uint32(8)).astype(xp.float32) * xp.float32(2.0**-24)
        return (high * 2.0**21 + (self.bits(plane + 1) >> xp.uint32(11))) * 2.0**-53
