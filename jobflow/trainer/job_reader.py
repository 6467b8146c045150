"""A predict job with a key-value cache, which reads the tokens of a prompt and then one token per run."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np

from jobflow.core.types import Array
from jobflow.models.generation.decoding import CHUNK
from jobflow.trainer.jobs import Jobs


class JobReader:
    """The predict job of a model with a cache of `length` tokens, declared for a chunk of tokens and for a single token."""

    def __init__(self, jobs: Jobs, length: int, scores_of: Callable[[Mapping[str, Array]], Array]) -> None:
        self.jobs, self.length, self.scores_of = jobs, length, scores_of
        self.chunk = min(CHUNK, length)

    def read(self, tokens: Array, first: Sequence[int]) -> Array:
        job = self.jobs.generation(tokens.shape[1], self.length)
        return self.scores_of(self.jobs.session.call(job, (tokens, np.array(first, np.int64))))
