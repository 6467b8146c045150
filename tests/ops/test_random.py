"""Known answers of the generator, independence of the split of a tensor, and distributions."""

from __future__ import annotations

import math
from typing import Any

import laws
import numpy as np
import pytest

from jobflow import scope
from jobflow.core.errors import ArgumentError
from jobflow.core.layout import Box, whole_box
from jobflow.core.types import float32, float64, int32
from jobflow.expressions import philox
from jobflow.kernels import registry
from jobflow.kernels.llvm.random_loops import CompiledStream
from jobflow.kernels.target import target_of
from jobflow.ops.random_tensors import DropoutMask, RandomInt, RandomNormal, RandomUniform, TruncatedNormal, dropout
from jobflow.runtime.device.numpy_device import CpuDevice

ONES = 0xFFFFFFFF


@pytest.mark.parametrize(
    ("key", "counter", "words"),
    [
        ((0, 0), (0, 0, 0, 0), (0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8)),
        ((ONES, ONES), (ONES,) * 4, (0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD)),
        ((0xA4093822, 0x299F31D0), (0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344), (0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1)),
    ],
)
def test_known_answers(key: tuple[int, int], counter: tuple[int, ...], words: tuple[int, ...]) -> None:
    """The known-answer test of the authors' library."""
    even, odd = (np.array([[counter[i]], [counter[i + 2]]], np.uint64) for i in (0, 1))
    philox.philox(np, philox.round_keys(np, key), even, odd, np.empty_like(even))
    assert (int(even[0, 0]), int(odd[0, 0]), int(even[1, 0]), int(odd[1, 0])) == words


def test_scheme_is_fixed() -> None:
    """The bits of an element must never change, because checkpoints and curves depend on them."""
    key = philox.key_of(1, "dense-weight")
    lane = 16 * (70 // 64) + (70 % 64) % 16
    words = philox.words(np, key, np.array([lane], np.uint64), 3, 0)
    assert philox.Stream(np, key, 3).bits(70, 1)[0] == words[(70 % 64) // 16, 0]
    assert key == (0xED9E7AC1, 0xC9BF90AE)
    assert philox.Stream(np, key, 3).bits(70, 2).tolist() == [903934147, 2673985202]


BOXES = [
    ((0, 7), (0, 9), (0, 150)),
    ((2, 5), (0, 9), (0, 150)),
    ((0, 7), (3, 6), (0, 150)),
    ((0, 7), (0, 9), (100, 150)),
    ((1, 3), (2, 4), (5, 9)),
    ((6, 7), (8, 9), (149, 150)),
    ((3, 3), (0, 9), (0, 150)),
]


@pytest.mark.parametrize("spans", BOXES)
def test_any_box_equals_its_part_of_the_whole(spans: tuple[tuple[int, int], ...]) -> None:
    key, whole, box = philox.key_of(0, "x"), (7, 9, 150), Box(spans, (7, 9, 150))
    everything = philox.Stream(np, key, 5).box_bits(whole_box(whole)).reshape(whole)
    np.testing.assert_array_equal(philox.Stream(np, key, 5).box_bits(box), everything[box.slices].reshape(-1))
    np.testing.assert_array_equal(philox.indices(box), np.arange(7 * 9 * 150).reshape(whole)[box.slices].reshape(-1))


def test_blocks_join() -> None:
    """A range longer than a block of counters equals its concatenated parts."""
    count = 4 * philox.BLOCK + 1000
    whole = philox.Stream(np, (1, 2), 0).bits(17, count)
    np.testing.assert_array_equal(whole[-500:], philox.Stream(np, (1, 2), 0).bits(17 + count - 500, 500))


def test_the_compiled_loop_makes_the_same_words() -> None:
    lanes = np.array([0, 1, 15, 70, 2**32 - 1, 2**32, 2**50 + 3] * 5, np.uint64)
    for key, run, plane in (((1, 2), 0, 0), ((0xFFFFFFFF, 0xED9E7AC1), 2**40 + 5, 17), ((0, 0xFFFFFFFF), 2**55, 1)):
        np.testing.assert_array_equal(CompiledStream(np, key, run).words(lanes, plane), philox.words(np, key, lanes, run, plane))


FIRST_VALUES: tuple[tuple[Any, dict[str, float]], ...] = (
    (RandomNormal, {"mean": 1.0, "std": 0.02}),
    (RandomNormal, {"std": 1e-40}),
    (TruncatedNormal, {"std": -2.0}),
    (RandomUniform, {"low": -0.1, "high": 0.7}),
)


def test_initial_values_do_not_depend_on_the_tier() -> None:
    part = Box(((3, 53), (0, 90)), (60, 90))
    ops = (
        *(kind((50, 90), float32, "w", box=box, **options) for kind, options in FIRST_VALUES for box in (None, part)),
        RandomNormal((50, 90), float32, "w", box=Box(((0, 50), (10, 100)), (50, 200))),
        TruncatedNormal((5000,), float64, "w"),
    )
    for op in ops:
        drawn = np.empty(op.shape, op.dtype.numpy)
        for call, arguments in registry.bind(op, target_of("cpu", "llvm"), CpuDevice(), (), (drawn,)):
            call(*arguments)
        np.testing.assert_array_equal(drawn, draw(op))


def draw(op: object, *counter: int) -> np.ndarray:
    return laws.run(op, [np.array([c]) for c in counter])[0]  # type: ignore[arg-type]


def test_seed_name_and_run_matter() -> None:
    def values(name: str, seed: int, *counter: int) -> bytes:
        return draw(RandomUniform((8,), float32, name, seed), *counter).tobytes()

    assert values("a", 1) == values("a", 1) == values("a", 1, 0)
    assert len({values("a", 1), values("b", 1), values("a", 2), values("a", 1, 1), values("a", 1, 2**40)}) == 5


def test_uniform() -> None:
    x = draw(RandomUniform((200, 500), float32, "u", low=-1.0, high=3.0))
    assert x.min() >= -1 and x.max() < 3
    counts, _ = np.histogram(x, bins=20, range=(-1, 3))
    assert abs(counts / x.size - 1 / 20).max() < 0.003
    wide = draw(RandomUniform((200, 500), float64, "u", low=-1.0, high=3.0))
    np.testing.assert_allclose(x, wide, atol=4 * 2.0**-23)


def test_normal_is_normal() -> None:
    x = np.sort(draw(RandomNormal((100_000,), float64, "n", mean=2.0, std=3.0)))
    expected = np.array([0.5 * (1 + math.erf((v - 2) / 3 / math.sqrt(2))) for v in x])
    assert abs(expected - (np.arange(x.size) + 0.5) / x.size).max() < 1.63 / math.sqrt(x.size)  # Kolmogorov-Smirnov, 1 %


def test_truncated_normal() -> None:
    x = (draw(TruncatedNormal((100_000,), float64, "t", mean=1.0, std=0.5)) - 1.0) / 0.5
    assert abs(x).max() <= 2 and not np.any(abs(x) == 2)
    assert abs(x.std() - 0.87962566103423978) < 0.005 and abs(x.mean()) < 0.01


def test_integers() -> None:
    x = draw(RandomInt((60_000,), int32, "i", low=-2, high=4))
    values, counts = np.unique(x, return_counts=True)
    assert values.tolist() == [-2, -1, 0, 1, 2, 3] and abs(counts - 10_000).max() < 400
    with pytest.raises(ArgumentError, match=r"\[4, 4\) must contain 1 to 2"):
        RandomInt((3,), int32, "i", low=4, high=4).infer()


def test_dropout() -> None:
    x = np.ones((300, 400), np.float32)
    with scope.using(interpreter=laws.Immediate()):
        y = dropout(laws.Result(x), 0.25, laws.Result(np.array([1])), key="drop").array
        assert dropout(laws.Result(x), 0.0, laws.Result(np.array([1])), key="drop").array.tolist() == x.tolist()
    assert sorted(set(y.ravel().tolist())) == [0.0, float(np.float32(4 / 3))]
    assert abs((y == 0).mean() - 0.25) < 0.005
    with pytest.raises(ArgumentError, match=r"rate 1.0 must be in \[0, 1\)"):
        laws.run(DropoutMask(1.0, "drop"), [x, np.array([1])])
