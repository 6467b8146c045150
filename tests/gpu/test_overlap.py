"""Reductions of gradients in plans for 8 GPUs: recorded figures of the models in the comparison with PyTorch."""

from __future__ import annotations

import re

import pytest
import record_overlap

RECORDED = record_overlap.TARGET.read_text(encoding="utf-8")


def percent(text: str) -> list[float]:
    """Return the percentages after a text, one per model."""
    return [float(number) for number in re.findall(rf"{text}.*?([\d.]+)%", RECORDED)]


def test_gradients_are_reduced_from_the_first_layers_of_the_backward_pass_on() -> None:
    assert all(share < 15 for share in percent("before the first reduction: "))
    assert all(share > 90 for share in percent("other gradients reduced before the last backward product: "))


def test_estimated_exposed_communication_is_below_its_bounds() -> None:
    gpt2, pieces, resnet50 = percent("exposed ")
    assert gpt2 < 3 and resnet50 < 2 and pieces < 7


def test_early_reductions_need_at_most_one_percent_more_memory() -> None:
    pairs = re.findall(r"memory: ([\d,.]+) MB; late ([\d,.]+) MB", RECORDED)
    assert len(pairs) == len(record_overlap.MODELS)
    assert all(float(early.replace(",", "")) <= 1.01 * float(late.replace(",", "")) for early, late in pairs)


@pytest.mark.full
@pytest.mark.parametrize("name", record_overlap.MODELS)
def test_plans_have_the_recorded_figures(name: str) -> None:
    text = "".join(f"{line}\n" for line in record_overlap.lines(name))
    assert text in RECORDED, "write an intended change with python tests/gpu/record_overlap.py --write"
