"""Generation of tokens with a module."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from numbers import Integral
from typing import Any

import numpy as np

from jobflow.core.errors import ArgumentError, user_line
from jobflow.core.types import Array
from jobflow.functional.creation import tensor
from jobflow.functional.gradients import no_grad
from jobflow.functional.tensor_class import Tensor
from jobflow.models.generation.decoding import CHUNK, check_count, continued
from jobflow.models.generation.key_value_cache import KeyValueCache
from jobflow.models.generation.token_sampling import Sampling
from jobflow.nn.compiled.compiling import compile
from jobflow.nn.modules.module import Module


class _CachedModel(Module):
    """A model that reads tokens and extends a cache."""

    def __init__(self, model: Module, cache: KeyValueCache) -> None:
        super().__init__()
        self.model, self.cache = model, cache

    def forward(self, tokens: Any) -> Any:
        return self.model(tokens, cache=self.cache)


class ModuleReader:
    """A module with a cache, compiled for a chunk of tokens and for a single token."""

    def __init__(self, model: Module, cache: KeyValueCache) -> None:
        self.model, self.cache = model, cache
        self.length = min(cache.length, length_of(model) or cache.length)
        self.chunk = min(CHUNK, self.length)
        self.step = _CachedModel(model, cache)
        #: a plan for a chunk of tokens, and one for a single token
        self.compiled = {count: compile(self.step) for count in (1, self.chunk)}
        #: True after the first call, which creates the buffers
        self.started = False
        #: the number of tokens per sequence in the cache
        self.counts: list[int] = []

    def read(self, tokens: Array, first: Sequence[int]) -> Array:
        with no_grad():
            if not self.started:
                self.cache.rewind(0)
                self.step(self._tensor(tokens[:, :1]))  # creates the buffers, or raises if the cache has those of another model
                self.started = True
            if [*first] != self.counts:
                self.cache.rewind(first)
            result: Array = self.compiled[tokens.shape[1]](self._tensor(tokens)).numpy()
        self.counts = [n + tokens.shape[1] for n in first]
        return result

    def _tensor(self, tokens: Array) -> Tensor:
        return tensor(tokens, device=self.cache.device)


def generate(
    model: Module,
    prompt: Any,
    max_new_tokens: int,
    *,
    cache: KeyValueCache | None = None,
    temperature: float = 1.0,
    top_k: int = 0,
    top_p: float = 1.0,
    stop: int | Collection[int] = (),
    seed: int = 0,
    sliding: bool = False,
) -> list[Any]:
    """Return up to `max_new_tokens` tokens that continue `prompt`, a sequence of tokens or a batch of sequences of any lengths.

    `model(tokens, cache=cache)` returns the scores of the next tokens, [batch, tokens, words]. A temperature of 0 selects the token with the highest
    score. Otherwise tokens are sampled from softmax(scores / temperature). `top_k` limits them to the most likely tokens (0: no limit), and `top_p`
    to those of these with this total probability. A token in `stop` ends its sequence and is not returned. Equal seeds give equal tokens for a row of
    the batch, on any number of ranks.

    The maximum number of tokens is the smaller one of `cache.length` and `model.length`, if the model has this attribute. More tokens are an error
    before the first one. With `sliding`, the model reads the last tokens only, and each further token costs a whole window.

    The model is compiled at the first call with a cache. Later calls with the same cache reuse the plans, and discard its content.
    """
    if not isinstance(model, Module):
        raise ArgumentError(f"generate at {user_line()}: model is {model!r:.60}; pass a module")
    if cache is not None and not isinstance(cache, KeyValueCache):
        raise ArgumentError(f"generate at {user_line()}: cache is {cache!r:.60}; pass a KeyValueCache, or None")
    prompts, is_batch = _prompts(prompt)
    check_count(max_new_tokens)
    reader = _reader(model, len(prompts), max(map(len, prompts), default=0) + max_new_tokens, cache)
    sampling = Sampling(temperature, top_k, top_p, _stop_tokens(stop), seed)
    modes = [(module, module.training) for module in model.modules()]
    model.eval()
    try:
        steps = list(continued(reader, prompts, max_new_tokens, sampling, sliding))
    finally:
        for module, mode in modes:
            module.training = mode
    results = [[tokens[i] for tokens in steps if tokens[i] is not None] for i in range(len(prompts))]
    return results if is_batch else results[0]


def _prompts(prompt: Any) -> tuple[list[list[int]], bool]:
    """Return the prompts as lists of tokens, and True for a batch; raise ArgumentError for other values."""
    rows: Any = prompt.numpy() if isinstance(prompt, Tensor) else prompt
    message = f"generate at {user_line()}: the prompt must be a sequence of integers, or a batch of such sequences, not {prompt!r:.60}"
    try:
        rows = [*rows]
    except TypeError:  # not a sequence
        raise ArgumentError(message) from None
    is_batch = bool(rows) and all(isinstance(row, list | tuple) or np.ndim(row) == 1 for row in rows)
    try:
        arrays = [np.asarray([*row]) for row in (rows if is_batch else [rows])]
    except ValueError:  # nested sequences of different lengths
        raise ArgumentError(message) from None
    if any(array.ndim != 1 or (array.size and array.dtype.kind not in "iu") for array in arrays):
        raise ArgumentError(message)
    return [array.tolist() for array in arrays], is_batch


def _stop_tokens(stop: Any) -> tuple[int, ...]:
    """Return the tokens of the argument `stop`, one token or several; raise ArgumentError for other values."""
    values: Any = stop.tolist() if isinstance(stop, Tensor | np.ndarray) else stop
    tokens = tuple(values) if isinstance(values, Collection) else (values,)
    if not all(isinstance(token, Integral) for token in tokens):
        raise ArgumentError(f"generate at {user_line()}: stop is {stop!r:.60}; pass a token, or a sequence of tokens, which are integers")
    return tokens


def length_of(model: Module) -> int | None:
    """Return the maximum number of tokens of a model: its attribute `length`, if this is an integer of 1 or more, and else None."""
    length = getattr(model, "length", None)
    return length if isinstance(length, int) and length > 0 else None


def _reader(model: Module, batch: int, needed: int, cache: KeyValueCache | None) -> ModuleReader:
    """Return the reader of the model with this cache; a new cache has `model.length`, or the `needed` length."""
    if cache is None:
        device = next((x.device for x in model.parameters()), None)
        return ModuleReader(model, KeyValueCache(batch, length_of(model) or max(needed, 1), device))
    if cache.batch != batch:
        raise ArgumentError(f"generate at {user_line()}: the cache has a batch of {cache.batch}, but there are {batch} prompts; create another cache")
    reader = cache.__dict__.get("_reader")
    if reader is None or reader.model is not model:
        reader = ModuleReader(model, cache)
        object.__setattr__(cache, "_reader", reader)  # not a submodule
    reader.counts = []
    result: ModuleReader = reader
    return result
