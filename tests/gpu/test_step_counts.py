"""The recorded counts of training steps on a GPU: `scripts/cupy_without_gpu --only steps --write` writes them."""

from __future__ import annotations

from pathlib import Path

import pytest

TABLE = Path(__file__).parents[2] / "benchmarks" / "gpu_steps.md"
#: models of the comparison with PyTorch
TARGETS = ("GPT-2 124M, bfloat16, 1 x 1,024 tokens", "ResNet-50, bfloat16, 2 images")


def recorded() -> dict[str, dict[str, int]]:
    """Return the recorded counts by column, by model."""
    lines = [line.strip("| \n").split(" | ") for line in TABLE.read_text(encoding="utf-8").splitlines() if line.startswith("| ")]
    (_, *columns), *rows = lines
    return {name: dict(zip(columns, map(int, counts), strict=True)) for name, *counts in rows}


@pytest.mark.parametrize("name", TARGETS)
def test_target_models_wait_for_fetches_only_and_allocate_when_bound(name: str) -> None:
    counts = recorded()[name]
    assert counts["waits of the host"] == 1 and counts["waits without a fetch"] == 0
    assert counts["copies to the GPU"] == counts["copies to the host"] == 1
    assert counts["allocations"] == 0 and counts["allocations to bind"] <= 8


def test_no_step_waits_without_a_fetch() -> None:
    assert {name: counts["waits without a fetch"] for name, counts in recorded().items() if counts["waits without a fetch"]} == {}


def test_gpt2_is_one_graph_and_the_copies_of_its_arguments() -> None:
    counts = recorded()[TARGETS[0]]
    arguments = counts["kernels alone"] + counts["copies on the GPU"]
    assert (counts["graphs"], counts["products"], arguments) == (1, 0, 2)
