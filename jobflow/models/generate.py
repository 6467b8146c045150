"""Text generation with a predict job, in NumPy.

    p = softmax(scores / temperature) over the top_k best, and of these over the most likely ones with a total probability of top_p
    u uniform in [0, 1);  next = the first token whose cumulative p exceeds u

u is the next number of the seed's stream for each token, so a text is a function of (model, prompt, settings, seed).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from typing import TypeAlias

import numpy as np

from jobflow.core.errors import ArgumentError
from jobflow.core.types import Array

#: A function from tokens int32 [1, length] to scores of the next token, float [1, length, words].
Scores: TypeAlias = Callable[[Array], Array]


def tokens_after(
    scores_of: Scores,
    prompt: Sequence[int],
    count: int,
    *,
    length: int,
    temperature: float = 1.0,
    top_k: int = 0,
    top_p: float = 1.0,
    stop: Collection[int] = (),
    seed: int = 0,
) -> Iterator[int]:
    """Yield up to `count` tokens that continue `prompt`; the model reads the last `length` tokens.

    `scores_of` maps tokens int32 [1, length] to the scores of their next tokens, [1, length, words].
    A temperature of 0 selects the best token, the first one in ties; a `top_k` of 0 samples from all tokens.
    A token in `stop` ends the continuation and is not yielded.
    The window is padded on the right to `length`, so the job is traced once; a causal model does not read the padding.
    Raises: ArgumentError for an empty prompt, or for a number below its minimum.
    """
    _check(prompt, count, length, temperature, top_k)
    _check_share(top_p)
    window, random = list(prompt[-length:]), np.random.default_rng(seed)
    for _ in range(count):
        padded = np.zeros((1, length), np.int32)
        padded[0, : len(window)] = window
        token = sampled(np.asarray(scores_of(padded)[0, len(window) - 1]), temperature, top_k, random.random(), top_p)
        if token in stop:
            return
        window = [*window[-(length - 1) :], token] if length > 1 else [token]
        yield token


def sampled(scores: Array, temperature: float, top_k: int, share: float, top_p: float = 1.0) -> int:
    """Return the first token whose cumulative probability exceeds the number `share` in [0, 1).

    The probabilities are softmax(scores / temperature) over the `top_k` best tokens, or over all tokens for 0.  Of these, only the most likely tokens
    remain, as few as have a total probability of `top_p`.  For temperature 0, return the token with the highest score.
    """
    if temperature == 0:
        return int(scores.argmax())
    wide = scores.astype(np.float64) / temperature
    if 0 < top_k < wide.size:
        wide[np.argsort(-wide, kind="stable")[top_k:]] = -np.inf
    weights = np.exp(wide - wide.max())
    if top_p < 1:
        order = np.argsort(-weights, kind="stable")
        before = np.cumsum(weights[order]) - weights[order]
        weights[order[before >= top_p * weights.sum()]] = 0
    reached = np.cumsum(weights)
    return int(np.searchsorted(reached, share * reached[-1], side="right"))


def _check_share(top_p: float) -> None:
    if not 0 < top_p <= 1:
        raise ArgumentError(f"generating text: top_p must be more than 0 and at most 1, not {top_p}")


def _check(prompt: Sequence[int], count: int, length: int, temperature: float, top_k: int) -> None:
    if not len(prompt):
        raise ArgumentError("generating text: the prompt is empty; pass at least one character")
    if count < 0 or length < 1 or top_k < 0 or not temperature >= 0:
        values = f"count {count}, length {length}, temperature {temperature}, top_k {top_k}"
        raise ArgumentError(f"generating text: count, temperature and top_k must be at least 0, and length at least 1, not {values}")
