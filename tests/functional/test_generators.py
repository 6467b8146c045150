"""Generators of random functions: equal seeds yield equal values, different seeds yield different values."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import jobflow as flow
import jobflow.utils.data as data_tools
from jobflow import nn

NAMES = Path(__file__).parents[1] / "public" / "names.txt"


def half() -> Any:
    return flow.full((64,), 0.5)


def square() -> Any:
    return flow.zeros(8, 8)


#: by the last part of the name
CALLS: dict[str, Callable[[Any], Any]] = {
    "bernoulli": lambda g: flow.bernoulli(half(), generator=g),
    "bernoulli_": lambda g: half().bernoulli_(0.5, generator=g),
    "cauchy_": lambda g: half().cauchy_(generator=g),
    "exponential_": lambda g: half().exponential_(generator=g),
    "geometric_": lambda g: half().geometric_(0.1, generator=g),
    "log_normal_": lambda g: half().log_normal_(generator=g),
    "multinomial": lambda g: flow.multinomial(half(), 32, generator=g),
    "normal": lambda g: flow.normal(0.0, 1.0, 64, generator=g),
    "normal_": lambda g: half().normal_(generator=g),
    "rand": lambda g: flow.rand(64, generator=g),
    "rand_like": lambda g: half().rand_like(generator=g),
    "randint": lambda g: flow.randint(0, 1000, (64,), generator=g),
    "randint_like": lambda g: half().randint_like(0, 1000, generator=g),
    "randn": lambda g: flow.randn(64, generator=g),
    "randn_like": lambda g: half().randn_like(generator=g),
    "random_": lambda g: half().random_(0, 1000, generator=g),
    "randperm": lambda g: flow.randperm(64, generator=g),
    "uniform_": lambda g: half().uniform_(generator=g),
    "kaiming_normal_": lambda g: nn.init.kaiming_normal_(square(), generator=g),
    "kaiming_uniform_": lambda g: nn.init.kaiming_uniform_(square(), generator=g),
    "orthogonal_": lambda g: nn.init.orthogonal_(square(), generator=g),
    "sparse_": lambda g: nn.init.sparse_(square(), 0.5, generator=g),
    "trunc_normal_": lambda g: nn.init.trunc_normal_(square(), generator=g),
    "xavier_normal_": lambda g: nn.init.xavier_normal_(square(), generator=g),
    "xavier_uniform_": lambda g: nn.init.xavier_uniform_(square(), generator=g),
    "kaiming_normal": lambda g: nn.init.kaiming_normal(square(), generator=g),
    "kaiming_uniform": lambda g: nn.init.kaiming_uniform(square(), generator=g),
    "orthogonal": lambda g: nn.init.orthogonal(square(), generator=g),
    "sparse": lambda g: nn.init.sparse(square(), 0.5, generator=g),
    "uniform": lambda g: nn.init.uniform(square(), generator=g),
    "xavier_normal": lambda g: nn.init.xavier_normal(square(), generator=g),
    "xavier_uniform": lambda g: nn.init.xavier_uniform(square(), generator=g),
    "DataLoader": lambda g: flow.cat(list(data_tools.DataLoader(range(64), shuffle=True, generator=g))),
    "RandomSampler": lambda g: flow.tensor(list(data_tools.RandomSampler(range(64), generator=g))),
    "SubsetRandomSampler": lambda g: flow.tensor(list(data_tools.SubsetRandomSampler(range(64), generator=g))),
    "WeightedRandomSampler": lambda g: flow.tensor(list(data_tools.WeightedRandomSampler([1.0] * 64, 64, generator=g))),
    "random_split": lambda g: flow.tensor(data_tools.random_split(range(64), [32, 32], generator=g)[0].indices),
}
#: without a generator of their own
SEEDED: dict[str, Callable[[], Any]] = {
    "dropout": lambda: nn.functional.dropout(half(), 0.5),
    "Dropout": lambda: nn.Dropout(0.5)(half()),
    "Linear": lambda: nn.Linear(8, 8).weight,
}


def data(call: Callable[[], Any]) -> Any:
    return np.asarray(call().detach().numpy())


def test_every_function_with_a_generator_is_in_the_table() -> None:
    names = {m[1].rpartition(".")[2] for line in NAMES.read_text().splitlines() if (m := re.match(r"\*?\s+jobflow\.(\S+?)\(.*\bgenerator=", line))}
    assert names == set(CALLS)


@pytest.mark.parametrize("name", CALLS)
def test_generators_with_equal_seeds_yield_equal_values(name: str) -> None:
    first, same, other = (data(lambda: CALLS[name](flow.Generator().manual_seed(seed))) for seed in (1, 1, 2))  # noqa: B023
    np.testing.assert_array_equal(first, same)
    assert not np.array_equal(first, other)


@pytest.mark.parametrize("name", [*(name for name in CALLS if name != "random_split"), *SEEDED])  # its seed is 0 without a generator
def test_manual_seed(name: str) -> None:
    drawn = []
    for seed in (1, 1, 2):
        flow.manual_seed(seed)
        drawn.append(data(lambda: CALLS[name](None) if name in CALLS else SEEDED[name]()))
    np.testing.assert_array_equal(drawn[0], drawn[1])
    assert not np.array_equal(drawn[0], drawn[2])
