"""Text from scores: sampling, the frequencies of tokens, and the input of the model."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from jobflow.core.errors import ArgumentError
from jobflow.models.generation.decoding import tokens_after
from jobflow.models.generation.token_sampling import sample_token
from jobflow.trainer.predict import before_stop


def counting(words: int, calls: list[Any] | None = None) -> Any:
    """A model that is sure that each token is followed by the next one."""

    def scores_of(tokens: Any) -> Any:
        if calls is not None:
            calls.append(tokens.copy())
        return np.eye(words, dtype=np.float32)[(tokens + 1) % words] * 50

    return scores_of


def test_text_goes_on_behind_the_prompt() -> None:
    assert list(tokens_after(counting(10), [3, 4], 5, length=4)) == [5, 6, 7, 8, 9]
    assert bytes(tokens_after(counting(256), b"ab", 4, length=8)) == b"cdef"
    assert list(tokens_after(counting(10), [3], 2, length=1)) == [4, 5]
    assert list(tokens_after(counting(10), [3], 0, length=4)) == []


def test_the_model_sees_the_last_tokens_in_windows_of_one_length() -> None:
    windows: list[Any] = []
    list(tokens_after(counting(10, windows), [1, 2], 4, length=4))
    assert [window.tolist() for window in windows] == [[[1, 2, 0, 0]], [[1, 2, 3, 0]], [[1, 2, 3, 4]], [[2, 3, 4, 5]]]
    assert {(window.shape, window.dtype) for window in windows} == {((1, 4), np.dtype(np.int32))}
    windows.clear()
    list(tokens_after(counting(10, windows), range(8), 1, length=4))
    assert windows[0].tolist() == [[4, 5, 6, 7]]


def test_shares_of_a_draw_are_the_probabilities() -> None:
    scores = np.log(np.array([1, 2, 3, 4], np.float32))
    counts = np.bincount([sample_token(scores, 1.0, 0, share) for share in (np.arange(1000) + 0.5) / 1000], minlength=4)
    np.testing.assert_array_equal(counts, [100, 200, 300, 400])
    sharper = np.bincount([sample_token(scores, 0.5, 0, share) for share in (np.arange(3000) + 0.5) / 3000], minlength=4)
    np.testing.assert_array_equal(sharper, [100, 400, 900, 1600])


def test_top_k_leaves_the_best() -> None:
    scores = np.log(np.array([3, 1, 4, 2], np.float32))
    counts = np.bincount([sample_token(scores, 1.0, 2, share) for share in (np.arange(700) + 0.5) / 700], minlength=4)
    np.testing.assert_array_equal(counts, [300, 0, 400, 0])
    assert {sample_token(scores, 1.0, 1, share) for share in np.linspace(0, 0.999, 7)} == {2}
    assert sample_token(scores, 0.0, 0, 0.999) == 2


def test_top_p_keeps_the_most_likely_tokens_up_to_a_probability() -> None:
    scores = np.log(np.array([3, 1, 4, 2], np.float32))
    for top_p, weights in ((0.39, [0, 0, 7, 0]), (0.41, [3, 0, 4, 0]), (0.69, [3, 0, 4, 0]), (0.71, [3, 0, 4, 2]), (1.0, [3, 1, 4, 2])):
        count = 100 * sum(weights)
        drawn = np.bincount([sample_token(scores, 1.0, 0, share, top_p) for share in (np.arange(count) + 0.5) / count], minlength=4)
        np.testing.assert_array_equal(drawn, [100 * weight for weight in weights])
    assert {sample_token(scores, 1.0, 2, share, 0.5) for share in (0.0, 0.5, 0.99)} == {2}  # of the two best, 4 / 7 is the best one


def test_a_stop_token_ends_the_continuation() -> None:
    assert list(tokens_after(counting(10), [3], 9, length=4, stop=[6, 8])) == [4, 5]
    assert list(tokens_after(counting(10), [3], 2, length=4, stop=[9])) == [4, 5]


@pytest.mark.parametrize(
    "pieces, stop, expected",
    [
        ("abcdef", ["cd"], ["a", "b"]),
        ("ababc", ["abc"], ["ab"]),
        ("aab", ["b", "ab"], ["a"]),
        ("abx", ["abc"], ["abx"]),
        ("ab", ["abc"], ["ab"]),
        ("ab", [], ["a", "b"]),
        (["xy", "z\nw"], ["\n"], ["xy", "z"]),
    ],
)
def test_texts_end_before_a_stop_text(pieces: Sequence[str], stop: list[str], expected: list[str]) -> None:
    assert list(before_stop(pieces, stop)) == expected


def test_ends_of_the_draw_are_tokens_that_can_be() -> None:
    scores = np.array([-np.inf, 0.0, 0.0, -np.inf])
    assert sample_token(scores, 1.0, 0, 0.0) == 1
    assert sample_token(scores, 1.0, 0, np.nextafter(1.0, 0.0)) == 2
    assert sample_token(np.array([1e30, 0.0]), 1e-3, 0, 0.5) == 0
    assert sample_token(np.array([1e30, 0.0, 2e30], np.float32), 5e-324, 0, 0.999) == 2


def test_a_text_is_a_function_of_its_seed() -> None:
    def flat(tokens: Any) -> Any:
        return np.zeros((*tokens.shape, 50), np.float32)

    first, again, other = (list(tokens_after(flat, [0], 30, length=4, seed=seed)) for seed in (1, 1, 2))
    assert first == again != other


@pytest.mark.parametrize("temperature", (0.0, 1.0))
@pytest.mark.parametrize(("values", "count"), (([np.nan, 0, 0], 1), ([0, np.inf, np.nan], 2), ([-np.inf] * 3, 3)))
def test_scores_that_are_not_finite_raise_an_error(values: list[float], count: int, temperature: float) -> None:
    def scores_of(tokens: Any) -> Any:
        scores = counting(3)(tokens)
        scores[0, 3] = values
        return scores

    sequence = tokens_after(scores_of, [0, 1], 9, length=8, temperature=temperature)
    assert [next(sequence), next(sequence)] == [2, 0]
    with pytest.raises(ArgumentError, match=rf"generate at .*: {count} of 3 scores at position 4 of row 0 are NaN or inf; check that"):
        next(sequence)


def test_a_score_of_minus_infinity_excludes_its_token() -> None:
    def scores_of(tokens: Any) -> Any:
        return np.broadcast_to(np.array([-np.inf, 0, -np.inf]), (*tokens.shape, 3))

    assert list(tokens_after(scores_of, [0], 4, length=8)) == [1] * 4


@pytest.mark.parametrize(
    ("prompt", "options", "words"),
    (
        (b"", {}, "the prompt is empty"),
        (b"a", {"temperature": -1.0}, "temperature is -1.0"),
        (b"a", {"temperature": float("nan")}, "temperature is nan"),
        (b"a", {"temperature": float("inf")}, "temperature is inf and top_k 0; pass a finite number and an integer of 0 or more"),
        (b"a", {"temperature": "1"}, "temperature is '1'"),
        (b"a", {"top_k": -1}, "top_k -1"),
        (b"a", {"top_k": 1.5}, "top_k 1.5"),
        (b"a", {"top_p": 0.0}, r"generate at test_generate.py:\d+: top_p is 0.0; pass a number above 0 and at most 1"),
        (b"a", {"top_p": float("nan")}, "top_p is nan"),
        (b"a", {"length": 0}, "the number of new tokens is 3 and the length 0; pass"),
    ),
)
def test_mistakes_are_named(prompt: bytes, options: dict[str, Any], words: str) -> None:
    with pytest.raises(ArgumentError, match=words):
        list(tokens_after(counting(256), prompt, 3, **{"length": 4, **options}))
