"""Sampling of the next token from scores, in NumPy.

    p = softmax(scores / temperature) over the top_k best, and of these over the most likely ones with a total probability of top_p
    u uniform in [0, 1);  next = the first token whose cumulative p exceeds u

u is the next number of the stream of (seed, sequence) for each token. So a sequence is a function of model, prompt, settings, seed
and row in the batch.
"""

from __future__ import annotations

from collections.abc import Collection
from numbers import Integral, Real

import numpy as np

from jobflow.core.dataclass import dataclass
from jobflow.core.errors import NOWHERE, ArgumentError, user_line
from jobflow.core.types import Array


def call_text() -> str:
    """Return "generate at FILE:LINE" for messages; without a line of the user, as in `jobflow predict`, "generate"."""
    line = user_line()
    return "generate" if line == NOWHERE else f"generate at {line}"


@dataclass(frozen=True)
class Sampling:
    """The settings of a generation; see `generate`."""

    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    stop: Collection[int] = ()
    seed: int = 0

    def check(self) -> None:
        """Raise ArgumentError for a setting out of its range."""
        if not isinstance(self.temperature, Real) or not 0 <= self.temperature < np.inf or not isinstance(self.top_k, Integral) or self.top_k < 0:
            values = f"temperature is {self.temperature!r} and top_k {self.top_k!r}"
            raise ArgumentError(f"{call_text()}: {values}; pass a finite number and an integer of 0 or more")
        if not isinstance(self.top_p, Real) or not 0 < self.top_p <= 1:
            raise ArgumentError(f"{call_text()}: top_p is {self.top_p!r}; pass a number above 0 and at most 1")
        if not isinstance(self.seed, Integral) or self.seed < 0:
            raise ArgumentError(f"{call_text()}: seed is {self.seed!r}; pass an integer of 0 or more")

    def stream(self, sequence: int) -> np.random.Generator:
        """Return the random numbers of a sequence of a batch; the first sequence has the numbers of `default_rng(seed)`."""
        return np.random.default_rng([int(self.seed), sequence])

    def next(self, scores: Array, random: np.random.Generator) -> int:
        """Return the next token for scores [words]; each call takes one number from `random`."""
        return sample_token(scores, self.temperature, self.top_k, random.random(), self.top_p)


def sample_token(scores: Array, temperature: float, top_k: int, share: float, top_p: float = 1.0) -> int:
    """Return the first token whose cumulative probability exceeds the number `share` in [0, 1).

    The probabilities are softmax(scores / temperature) over the `top_k` best tokens, or over all tokens for 0.  Of these, only the most likely tokens
    remain, as few as have a total probability of `top_p`.  For temperature 0, return the token with the highest score.
    """
    if temperature == 0:
        return int(scores.argmax())
    wide = scores.astype(np.float64)
    with np.errstate(over="ignore"):  # a tiny temperature has the quotients 0 and -inf
        wide = (wide - wide.max()) / temperature
    if 0 < top_k < wide.size:
        wide[np.argsort(-wide, kind="stable")[top_k:]] = -np.inf
    weights = np.exp(wide)
    if top_p < 1:
        order = np.argsort(-weights, kind="stable")
        before = np.cumsum(weights[order]) - weights[order]
        weights[order[before >= top_p * weights.sum()]] = 0
    reached = np.cumsum(weights)
    return int(np.searchsorted(reached, share * reached[-1], side="right"))
