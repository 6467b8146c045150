"""Generation with key-value caches: the tokens, batches, the end of the cache, and wrong calls."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import building
import numpy as np
import processes
import pytest

import jobflow as flow
from jobflow.core.errors import ArgumentError, DtypeError, JobError, ShapeError
from jobflow.models import GPT, KeyValueCache, Llama, attention, generate, gpt, renamed_weights, rotary_embedding
from jobflow.models.generation.key_value_cache import JobCache

LENGTH = 12
SIZES = {"words": 19, "length": LENGTH, "width": 16, "heads": 4, "blocks": 2}
#: prompts of different lengths
PROMPTS = ([3, 1, 4, 1, 5], [9], [2, 6, 5])


def model_of(kind: Any, dtype: Any = flow.float64) -> Any:
    flow.manual_seed(0)
    more = {"groups": 2, "hidden": 12} if kind is Llama else {}
    model = kind(**SIZES, **more).to(dtype)
    with flow.no_grad():
        for parameter in model.parameters():
            parameter.mul_(5.0)  # scores that differ
    return model


def without_cache(model: Any, prompt: Sequence[int], count: int) -> list[int]:
    """The most likely tokens; the model reads the last LENGTH tokens."""
    tokens = list(prompt)
    with flow.no_grad():
        for _ in range(count):
            tokens.append(int(model(flow.tensor([tokens[-LENGTH:]]))[0, -1].argmax().item()))
    return tokens[len(prompt) :]


KINDS = [
    (GPT, flow.float32),
    (Llama, flow.float64),
    *(pytest.param(*each, marks=pytest.mark.full) for each in ((GPT, flow.float64), (Llama, flow.float32))),
]


@pytest.mark.parametrize(("kind", "dtype"), KINDS)
def test_tokens_are_those_without_a_cache(kind: Any, dtype: Any) -> None:
    model = model_of(kind, dtype)
    cache = KeyValueCache(3, LENGTH)
    expected = [without_cache(model, prompt, 7) for prompt in PROMPTS]
    assert len({*map(tuple, expected)}) == 3
    assert generate(model, PROMPTS, 7, temperature=0, cache=cache) == expected
    assert generate(model, PROMPTS, 7, temperature=0, cache=cache) == expected
    # beyond the length, the model reads the last tokens
    assert generate(model, PROMPTS, 12, temperature=0, cache=cache, sliding=True) == [without_cache(model, prompt, 12) for prompt in PROMPTS]
    assert model.training


def test_a_sequence_is_a_function_of_its_prompt_settings_and_seed() -> None:
    model = model_of(GPT)
    cache = KeyValueCache(1, LENGTH)
    tokens = [generate(model, PROMPTS[0], 7, seed=seed, top_k=9, top_p=0.95, temperature=2.0, cache=cache) for seed in (1, 1, 2)]
    assert tokens[0] == tokens[1] != tokens[2] and len(tokens[0]) == 7
    stop = tokens[0][3]
    assert (
        generate(model, np.array(PROMPTS[0]), 7, seed=1, top_k=9, top_p=0.95, temperature=2.0, cache=cache, stop=stop)
        == (tokens[0][: tokens[0].index(stop)])
    )
    assert generate(model, flow.tensor(PROMPTS[0]), 0, cache=cache) == []


def test_a_cache_counts_tokens_and_can_be_rewound() -> None:
    model, tokens = model_of(GPT), flow.tensor([[3, 1, 4, 1, 5, 9], [2, 6, 5, 3, 5, 8]])
    cache = KeyValueCache(2, LENGTH)
    with flow.no_grad():
        whole = model(tokens).numpy()
        first, second = model(tokens[:, :4], cache=cache), model(tokens[:, 4:], cache=cache)
        np.testing.assert_allclose(np.concatenate([first.numpy(), second.numpy()], 1), whole, atol=1e-12)
        cache.rewind([4, 2])  # rows with different numbers of tokens
        later = flow.stack([tokens[0, 4:], tokens[1, 2:4]])
        scores = model(later, cache=cache).numpy()
    np.testing.assert_allclose(scores[0], whole[0, 4:], atol=1e-12)
    np.testing.assert_allclose(scores[1], whole[1, 2:4], atol=1e-12)
    assert cache.counts.tolist() == [6, 4]
    assert repr(cache) == "KeyValueCache(batch=2, length=12, layers=2)"


def test_a_cache_that_is_full_raises_and_keeps_its_content() -> None:
    model, cache = model_of(GPT), KeyValueCache(1, 4)
    with flow.no_grad():
        model(flow.tensor([[1, 2, 3]]), cache=cache)
        with pytest.raises(ArgumentError, match=r"number of tokens 5 at \[0\] exceeds the length 4 of the cache; generate fewer tokens, or create"):
            model(flow.tensor([[4, 5]]), cache=cache)
        assert cache.counts.tolist() == [3]
        expected = model(flow.tensor([[1, 2, 3, 4]]))[:, 3:].numpy()
        np.testing.assert_allclose(model(flow.tensor([[4]]), cache=cache).numpy(), expected, atol=1e-12)


def test_invalid_calls_raise_with_the_values() -> None:
    model = model_of(GPT)
    one = flow.tensor([[1]])
    q = flow.zeros(1, 4, 1, 2)
    wrong: list[tuple[Any, Any, str]] = [
        (
            lambda: generate(model, [1, 2], 11),
            ArgumentError,
            "a prompt of 2 and 11 new tokens exceed the length 12 of the model and its cache; pass fewer tokens, or ",
        ),
        (lambda: generate(model, [], 1), ArgumentError, "the prompt is empty"),
        (lambda: generate(model, [[1], []], 1), ArgumentError, "the prompt is empty"),
        (lambda: generate(model, "text", 1), ArgumentError, "the prompt must be a sequence of integers, or a batch of such sequences, not 'text'"),
        (lambda: generate(model, [[1, [2, 3]]], 1), ArgumentError, r"the prompt must be a sequence of integers, .*, not \[\[1, \[2, 3\]\]\]"),
        (lambda: generate(model, 3, 1), ArgumentError, "the prompt must be a sequence of integers"),
        (lambda: generate(model, [1.5], 1), ArgumentError, "the prompt must be a sequence of integers"),
        (lambda: generate(model, [1], -1), ArgumentError, "the number of new tokens is -1 and the length 12; pass 0 or more tokens"),
        (lambda: generate(model, [1], 1, seed=-1), ArgumentError, "seed is -1; pass an integer of 0 or more"),
        (lambda: generate(model, [1], 1, cache=KeyValueCache(2, 8)), ArgumentError, "the cache has a batch of 2, but there are 1 prompts"),
        (lambda: KeyValueCache(1, 0), ArgumentError, "batch is 1 and length 0; pass integers of 1 or more"),
        (
            lambda: KeyValueCache(2, 4).rewind(3),
            ArgumentError,
            r"rewind at .*: the counts are \[3, 3\], but the cache has \[0, 0\] tokens per sequence; pass one integer, or 2 integers, from 0",
        ),
        (lambda: KeyValueCache(1, 4).rewind(1.5), ArgumentError, r"the counts are \[1.5\], but"),  # type: ignore[arg-type]
        (lambda: generate(model, [1], 2.5), ArgumentError, "the number of new tokens is 2.5; pass an integer of 0 or more"),  # type: ignore[arg-type]
        (lambda: generate(model, [1], 1, stop="end"), ArgumentError, "stop is 'end'; pass a token, or a sequence of tokens"),  # type: ignore[arg-type]
        (lambda: generate(model, [1] * 10, 10, cache=KeyValueCache(1, 64)), ArgumentError, "and 10 new tokens exceed the length 12 of the model and"),
        (lambda: model(one, cache=KeyValueCache(1, 4)), JobError, r"a cache has no gradients; call the model inside of no_grad\(\)"),
        (lambda: model(flow.tensor([[1] * 13])), ArgumentError, "13 tokens exceed length 12"),
        (lambda: generate(3, [1], 1), ArgumentError, "model is 3; pass a module"),  # type: ignore[arg-type]
        (lambda: generate(model, [1], 1, cache=3), ArgumentError, "cache is 3; pass a KeyValueCache, or None"),  # type: ignore[arg-type]
        (lambda: KeyValueCache(1, 2.5), ArgumentError, "length 2.5; pass integers of 1 or more"),  # type: ignore[arg-type]
        (lambda: KeyValueCache(1, 4).extend(2.5), ArgumentError, "the count is 2.5; pass the number of new tokens"),  # type: ignore[arg-type]
        (lambda: KeyValueCache(1, 4)[-1], ArgumentError, "the layer is -1; pass its number"),
        (lambda: attention(q, q, q.numpy()), ArgumentError, "value is of the type ndarray; pass a tensor"),
        (lambda: attention(q, q, q, 3), ArgumentError, r"cache is 3; pass the cache of a layer, cache\[layer\]"),  # type: ignore[arg-type]
        (lambda: rotary_embedding(q, 3), ArgumentError, "at is of the type int; pass a tensor"),
        (lambda: rotary_embedding(q, flow.arange(2), 0), ArgumentError, "base is 0; pass a finite number above 0"),
        (lambda: renamed_weights([q], "gpt2"), ArgumentError, "pass a dict of tensors by name"),  # type: ignore[arg-type]
        (lambda: renamed_weights({}, None), ArgumentError, "names is None; pass gpt2 or llama"),  # type: ignore[arg-type]
        (lambda: GPT(heads=0), ArgumentError, "width 128 must be divisible by heads 0"),
        (lambda: GPT(width=10, heads=4), ArgumentError, "width 10 must be divisible by heads 4"),
        (lambda: Llama(heads=4, groups=3), ArgumentError, "groups must divide heads"),
        (
            lambda: attention(q, q, q, KeyValueCache(1, 4)[0]),
            ArgumentError,
            r"earlier tokens -1 at \[0\] is negative: call cache.extend\(count\) once",
        ),
        (lambda: attention(q, q[:, :3], q, KeyValueCache(1, 4)[0]), ShapeError, "the groups divide the heads"),
        (lambda: attention(q, q, q, KeyValueCache(2, 4)[0]), ShapeError, "do not have the batch 2 of the cache"),
        (lambda: rotary_embedding(flow.zeros(1, 1, 2, 3), flow.arange(2)), ShapeError, "even size"),
    ]
    for call, error, words in wrong:
        with pytest.raises(error, match=words):
            call()
    with flow.no_grad(), pytest.raises(JobError, match="the cache has no buffers yet; call the model with the cache once"):
        cache = KeyValueCache(1, 4)
        flow.compile(lambda tokens: model(tokens, cache=cache), fullgraph=True)(one)


def test_a_full_cache_of_a_job_raises() -> None:
    building.begin()

    def model(tokens: Any, counts: Any) -> Any:
        return gpt(tokens, words=19, length=8, width=8, heads=2, blocks=1, cache=JobCache(counts, 4))

    batch = {"tokens": np.array([[3, 1]], np.int32), "counts": np.array([1])}
    job = building.job_of(model, "predict", batch)
    assert job(batch)["scores"].shape == (1, 2, 19)
    with pytest.raises(
        ArgumentError, match=r'"counts" holds 3 at \[0\]; cache at .* accepts 0 to 2. Generate fewer tokens: the cache has the length 4'
    ):
        job(batch | {"counts": np.array([3])})


def test_a_cache_of_other_sizes_or_types_raises_an_error() -> None:
    model, cache = model_of(GPT), KeyValueCache(1, LENGTH)
    with flow.no_grad():
        model(flow.tensor([[1]]), cache=cache)
    wide = GPT(**SIZES | {"width": 32}).to(flow.float64)
    with pytest.raises(ShapeError, match=r"the cache has keys .*, but the model computes .*; create another cache for this model and batch"):
        generate(wide, [1], 2, cache=cache)
    deep = GPT(**SIZES | {"blocks": 3}).to(flow.float64)  # more layers of the same sizes
    assert generate(deep, [1], 2, temperature=0, cache=cache) == generate(deep, [1], 2, temperature=0)
    with pytest.raises(DtypeError, match=r"the cache has keys .*float64.*, but the model computes .*float32.*; create another cache"):
        generate(model.to(flow.float32), [1], 2, cache=cache)


@pytest.mark.mpi
@pytest.mark.full
def test_two_ranks_generate_the_tokens_of_one() -> None:
    done = processes.run(Path(__file__).parent / "programs" / "generating_ranks.py", ranks=2)
    assert (done.code, done.lines) == (0, ["GPT True True", "Llama True True"]), done.err
