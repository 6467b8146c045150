"""The loop over tokens, for modules and for predict jobs, with or without a cache.

A prompt is read in chunks of one size, and then every token on its own. So two plans serve all prompts, and a plan call per token suffices. Chunks
are padded on the right: padding follows all tokens that are read, and later tokens overwrite its rows in the cache.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import islice
from numbers import Integral
from typing import Any, Protocol

import numpy as np

from jobflow.core.errors import ArgumentError, counted
from jobflow.core.types import Array
from jobflow.models.generation.token_sampling import Sampling, call_text

#: number of tokens of a prompt that a cached model reads at once
CHUNK = 64


class Reader(Protocol):
    """A model that reads tokens and remembers them, or reads a whole window."""

    #: the maximum number of tokens
    length: int
    #: the number of tokens that the model reads at once, if it does not read a single one
    chunk: int

    def read(self, tokens: Array, first: Sequence[int]) -> Array:
        """Read tokens int [batch, chunk or 1] at the positions from `first` [batch], and return scores [batch, tokens, words].

        The model has read the tokens of all earlier positions, and forgets those of later positions.
        """
        ...


class WindowReader:
    """A model without a cache, as a function from tokens [batch, length] to scores [batch, length, words], that reads all tokens again."""

    def __init__(self, scores_of: Callable[[Array], Array], length: int) -> None:
        self.scores_of, self.length, self.chunk = scores_of, length, length
        self.window = np.zeros((0, 0), np.int32)

    def read(self, tokens: Array, first: Sequence[int]) -> Array:
        if len(self.window) != len(tokens):
            self.window = np.zeros((len(tokens), self.length), np.int32)
        at = np.arange(len(tokens))[:, None], np.asarray(first)[:, None] + np.arange(tokens.shape[1])
        self.window[at] = tokens
        return np.asarray(self.scores_of(self.window.copy()))[at]


def tokens_after(scores_of: Callable[[Array], Array], prompt: Sequence[int], count: int, *, length: int, **sampling: Any) -> Iterator[int]:
    """Yield up to `count` tokens after a prompt, for a model without a cache that reads the last `length` tokens; see `WindowReader`.

    `sampling` are attributes of `Sampling`.
    """
    for (token,) in continued(WindowReader(scores_of, length), [prompt], count, Sampling(**sampling), sliding=True):
        assert token is not None, "a single sequence that has ended yields nothing"
        yield token


def continued(reader: Reader, prompts: Sequence[Sequence[int]], count: int, sampling: Sampling, sliding: bool = False) -> Iterator[list[int | None]]:
    """Yield the next token of each prompt up to `count` times; None for a sequence that a token of `sampling.stop` has ended.

    Raises: ArgumentError for an empty prompt, for scores that are NaN or inf, and without `sliding` for more than `reader.length` tokens in total.
    With `sliding`, the model reads the last `reader.length` tokens, and each further token costs a whole window.
    """
    sampling.check()
    _check(prompts, count, reader.length, sliding)
    windows = [list(prompt[-reader.length :]) for prompt in prompts]
    random = [sampling.stream(i) for i in range(len(prompts))]
    running = [True] * len(prompts)
    scores: list[Array] = _prompts_read(reader, windows) if count else []
    for step in range(count):
        for i, (row, prompt, alive) in enumerate(zip(scores, prompts, running, strict=True)):
            if alive:
                _check_scores(row, i, len(prompt) + step)
        tokens = [sampling.next(row, stream) if alive else 0 for row, stream, alive in zip(scores, random, running, strict=True)]
        running = [alive and token not in sampling.stop for token, alive in zip(tokens, running, strict=True)]
        if not any(running):
            return
        yield [token if alive else None for token, alive in zip(tokens, running, strict=True)]
        if step + 1 < count:
            scores = _read_next(reader, windows, tokens)


def _read_next(reader: Reader, windows: list[list[int]], tokens: Sequence[int]) -> list[Array]:
    """Append a token to each window, and return the scores of the tokens after it."""
    full = any(len(window) == reader.length for window in windows)
    for window, token in zip(windows, tokens, strict=True):
        if len(window) == reader.length:
            del window[0]
        window.append(token)
    if full:
        return _prompts_read(reader, windows)
    return list(reader.read(np.array(tokens, np.int32)[:, None], [len(window) - 1 for window in windows])[:, 0])


def _prompts_read(reader: Reader, windows: Sequence[Sequence[int]]) -> list[Array]:
    """Read the windows in chunks, and return the scores of the tokens after them."""
    lengths = [len(window) for window in windows]
    results: list[Array] = [np.zeros(0)] * len(windows)
    for start in range(0, max(lengths), reader.chunk):
        first = min(start, reader.length - reader.chunk)  # the last chunk reads some tokens again rather than beyond the length
        tokens = np.zeros((len(windows), reader.chunk), np.int32)
        for row, window in zip(tokens, windows, strict=True):
            part = list(islice(window, first, first + reader.chunk))
            row[: len(part)] = part
        scores = reader.read(tokens, [first] * len(windows))
        for i, length in enumerate(lengths):
            if first < length <= first + reader.chunk:
                results[i] = scores[i, length - 1 - first]
    return results


def _check_scores(scores: Array, row: int, position: int) -> None:
    """Raise ArgumentError if no token can be selected. A score of -inf excludes a token, which is valid if other scores are finite."""
    if not np.isfinite(scores.max()):
        count = scores.size - np.count_nonzero(np.isfinite(scores))
        raise ArgumentError(
            f"{call_text()}: {count} of {counted(scores.size, 'score')} at position {position} of row {row} are NaN or inf; check that the model's "
            f"parameters are finite"
        )


def check_count(count: Any) -> None:
    """Raise ArgumentError unless the number of new tokens is an integer."""
    if not isinstance(count, Integral):
        raise ArgumentError(f"{call_text()}: the number of new tokens is {count!r}; pass an integer of 0 or more")


def _check(prompts: Sequence[Sequence[int]], count: int, length: int, sliding: bool) -> None:
    check_count(count)
    if not prompts or not all(len(prompt) for prompt in prompts):
        raise ArgumentError(f"{call_text()}: the prompt is empty; pass at least one token")
    if count < 0 or length < 1:
        raise ArgumentError(
            f"{call_text()}: the number of new tokens is {count} and the length {length}; pass 0 or more tokens, and a length of 1 or more"
        )
    longest = max(map(len, prompts))
    if not sliding and longest + count > length:
        raise ArgumentError(
            f"{call_text()}: a prompt of {longest} and {count} new tokens exceed the length {length} of the model and its cache; pass fewer "
            f"tokens, or sliding=True to read the last {length} tokens only"
        )
