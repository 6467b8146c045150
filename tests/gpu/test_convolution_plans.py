"""cuDNN builds a plan for each convolution of ResNet-50 without a GPU, and the record has them all."""

from __future__ import annotations

import pytest
import record_convolutions

from jobflow.core.types import bfloat16, float32


def recorded() -> list[str]:
    return record_convolutions.TARGET.read_text(encoding="utf-8").splitlines()


def test_the_record_has_all_convolutions_of_a_step() -> None:
    head, *rows = recorded()
    assert "cuDNN" in head
    for dtype in (bfloat16, float32):
        calls = [int(row.split("; ")[3].removeprefix("calls ")) for row in rows if row.split("; ")[1].startswith(dtype.name)]
        assert sum(calls) == 3 * 53 - 1, "53 convolutions with two gradients each, without the gradient of the input images"


def test_convolutions_in_half_precision_need_a_workspace_for_the_gradient_of_the_first_filters_only() -> None:
    large = [row for row in recorded() if "bfloat16" in row and float(row.split("; ")[-1].removesuffix(" MB")) > 2]
    assert len(large) == 1 and large[0].startswith("convgradweight; bfloat16[256,3,224,224]")


@pytest.mark.skipif(bool(record_convolutions.missing()), reason=record_convolutions.missing() or "nothing is missing")
def test_plans_are_built_without_a_gpu() -> None:
    head, *rows = list(record_convolutions.rows())
    ours = recorded()
    assert len(rows) == len(ours) - 1
    if head == ours[0]:  # other versions choose other plans
        assert rows == ours[1:], "run python tests/gpu/record_convolutions.py --write and read the difference"
