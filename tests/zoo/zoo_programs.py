"""The small configurations of examples/zoo, and the batches that they are trained with; for the tests and for references/record.py."""

from __future__ import annotations

from collections.abc import Iterator
from importlib import import_module
from typing import Any

import numpy as np

#: case -> program
CASES = {
    "resnet50": "resnet50",
    "bert_pretrain": "bert",
    "bert_squad": "bert",
    "gpt2": "gpt2",
    "wide_and_deep": "wide_and_deep",
    "insightface": "insightface",
    "dcgan": "dcgan",
}
STEPS = 5


def program(case: str) -> Any:
    return import_module(CASES[case])


def size_of(case: str) -> Any:
    return program(case).SMALL


def batches(case: str) -> Iterator[Any]:
    """The arguments of every step: two batches in turn."""
    random = np.random.default_rng(7)
    all_batches = [_batch(case, program(case), size_of(case), random) for _ in range(2)]
    for step in range(STEPS):
        yield all_batches[step % 2]


def _batch(case: str, module: Any, size: Any, random: np.random.Generator) -> Any:
    if case == "dcgan":
        noise = random.standard_normal((size.batch, size.noise)).astype(np.float32)
        return noise, random.uniform(-1, 1, (size.batch, 1, 28, 28)).astype(np.float32)
    if case.startswith("bert_"):
        return module.random_batch(case.removeprefix("bert_"), size, random)
    batch = module.random_batch(size, random)
    return batch if isinstance(batch, tuple) else (batch,)
