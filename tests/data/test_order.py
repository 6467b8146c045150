"""The laws of orders: permutations, each of its own, that any stretch is enough to compute."""

from __future__ import annotations

import itertools
from collections import Counter

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jobflow.core.errors import ArgumentError
from jobflow.data import Order

SEEDS, EPOCHS = st.integers(-(2**40), 2**64), st.integers(0, 2**40)


@settings(max_examples=60)
@given(SEEDS, EPOCHS, st.integers(0, 3000))
def test_every_epoch_has_each_sample_once(seed: int, epoch: int, n: int) -> None:
    order = Order(seed, n).indices(epoch, 0, n)
    assert order.dtype == np.int64
    assert np.array_equal(np.sort(order), np.arange(n))


@pytest.mark.parametrize("n", [*range(130), 1023, 1024, 1025, 4095, 4096, 4097])
def test_every_small_number_of_samples_is_permuted(n: int) -> None:
    assert np.array_equal(np.sort(Order(7, n).indices(3, 0, n)), np.arange(n))


@settings(max_examples=60)
@given(SEEDS, EPOCHS, st.integers(1, 10**12), st.data())
def test_a_stretch_does_not_depend_on_what_is_before_it(seed: int, epoch: int, n: int, data: st.DataObject) -> None:
    start = data.draw(st.integers(0, n - 1))
    stop = min(n, start + data.draw(st.integers(0, 40)))
    order = Order(seed, n)
    together = order.indices(epoch, start, stop)
    assert together.tolist() == [int(order.indices(epoch, i, i + 1)[0]) for i in range(start, stop)]
    assert ((together >= 0) & (together < n)).all() and len(set(together.tolist())) == stop - start


@pytest.mark.parametrize("ranks", [1, 2, 3, 4])
def test_ranks_that_read_their_rows_make_up_the_order(ranks: int) -> None:
    order, size = Order(5, 101), 16
    whole = order.indices(2, 0, 101)
    for start in range(0, 101, size):
        cuts = np.linspace(start, min(start + size, 101), ranks + 1).astype(int)
        parts = [order.indices(2, a, b) for a, b in itertools.pairwise(cuts.tolist())]
        assert np.array_equal(np.concatenate(parts), whole[start : start + size])


def test_epochs_and_seeds_have_orders_of_their_own() -> None:
    orders = {tuple(Order(seed, 50).indices(epoch, 0, 50).tolist()) for seed in range(20) for epoch in range(20)}
    assert len(orders) == 400
    assert Order(1, 50).indices(0, 0, 50).tolist() != list(range(50))


def test_orders_stay_what_they_are() -> None:
    """Runs that were begun with one version go on with the next."""
    assert Order(0, 10).indices(0, 0, 10).tolist() == [2, 0, 3, 8, 6, 1, 5, 9, 7, 4]
    assert Order(2026, 10**9).indices(3, 5, 9).tolist() == [497798062, 985448299, 444404365, 269504991]


def chi_square(counts: Counter[int], cells: int) -> float:
    expected = sum(counts.values()) / cells
    return sum((counts[cell] - expected) ** 2 / expected for cell in range(cells))


@pytest.mark.parametrize("n", [2, 3, 7, 10, 64])
def test_each_sample_comes_first_equally_often(n: int) -> None:
    drawn = Counter(int(Order(9, n).indices(epoch, 0, 1)[0]) for epoch in range(100 * n if n < 64 else 2000))
    assert chi_square(drawn, n) < n - 1 + 5 * np.sqrt(2 * n)


def test_all_permutations_of_three_come_up_equally_often() -> None:
    table = {p: i for i, p in enumerate(itertools.permutations(range(3)))}
    drawn = Counter(table[tuple(Order(4, 3).indices(epoch, 0, 3).tolist())] for epoch in range(1200))
    assert chi_square(drawn, 6) < 25


def test_neighbours_in_an_order_are_uncorrelated() -> None:
    order = Order(11, 4096).indices(0, 0, 4096).astype(float)
    for lag in (1, 2, 64):
        assert abs(np.corrcoef(order[:-lag], order[lag:])[0, 1]) < 0.06
    assert abs(np.corrcoef(order, np.arange(4096))[0, 1]) < 0.06
    assert abs(np.corrcoef(order, Order(11, 4096).indices(1, 0, 4096))[0, 1]) < 0.06


def test_without_shuffling_samples_come_as_they_are() -> None:
    assert Order(3, 100, shuffle=False).indices(7, 20, 25).tolist() == [20, 21, 22, 23, 24]


def test_what_is_beyond_an_epoch_is_an_error() -> None:
    for start, stop in ((0, 11), (5, 4), (-1, 3)):
        with pytest.raises(ArgumentError, match="exceeds the 10 samples"):
            Order(0, 10).indices(0, start, stop)
    with pytest.raises(ArgumentError, match="samples must be at least 0, not -1"):
        Order(0, -1)
