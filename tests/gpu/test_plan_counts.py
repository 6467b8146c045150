"""Training steps compiled for a GPU have the recorded numbers of calls, casts and bytes."""

from __future__ import annotations

import plan_counts
import pytest

from jobflow.plan.plan import Compute

RECORDED = dict(line.split("; ", 1) for line in plan_counts.TARGET.read_text(encoding="utf-8").splitlines())


def test_the_table_has_every_model() -> None:
    assert list(RECORDED) == [", ".join(model) for model in plan_counts.MODELS]


@pytest.mark.parametrize("model", plan_counts.MODELS, ids=", ".join)
def test_a_plan_has_the_recorded_counts(model: tuple[str, str, str]) -> None:
    name = ", ".join(model)
    assert plan_counts.line(*model) == f"{name}; {RECORDED[name]}", "write an intended change with python tests/gpu/plan_counts.py --write"


def columns(figures: str) -> dict[str, float]:
    return {name: float(number.replace(",", "")) for name, number in (figure.rsplit(" ", 1) for figure in figures.split("; "))}


def test_no_value_of_the_size_of_the_logits_is_float32() -> None:
    """The loss reads logits in half precision, and its gradient overwrites them."""
    size = plan_counts.SMALL
    plan = plan_counts.gpu_plan(plan_counts.gpt_job(size, plan_counts.TYPES["bfloat16"]), plan_counts.TABLES["cublasLt"])
    slots = [{*call.inputs, *call.outputs} for call in plan.instructions if isinstance(call, Compute)]
    logits = [{slot for slot in each if slot.type.shape == (size.batch * size.length, size.words)} for each in slots]
    assert {slot.type.dtype.name for each in logits for slot in each} == {"bfloat16"}
    assert len([each for each in logits if each]) == 5 and len(set().union(*logits)) == 1, "head, loss, its gradient and two products"


def test_separate_casts_convert_gradients_of_weights_without_cublaslt() -> None:
    """Updates write half-precision copies of weights, and the kernels that read or write other values cast them."""
    for name, figures in RECORDED.items():
        counts = columns(figures)
        assert counts["casts"] == counts["casts of weights"], name
        assert counts["casts"] == 0 or name.endswith("bfloat16, cublas"), name


def test_gpt2_step_has_few_calls_and_bytes() -> None:
    counts = columns(RECORDED["GPT-2 124M, 1 x 1,024, bfloat16, cublasLt"])
    assert counts["calls"] <= 340 and counts["operands"] <= 7000


def test_clipping_adds_one_reduction_and_no_product() -> None:
    """Without clipping, the embedding is updated by rows, so its gradient is one more call."""
    clipping = plan_counts.flow.optimizer.grad_clipping.by_global_norm(1.0)
    plans = [plan_counts.gpu_plan(plan_counts.gpt_job(plan_counts.SMALL, None, each), "cuda.product_patterns") for each in (None, clipping)]
    plain, clipped = [[str(call.op) for call in plan.instructions if isinstance(call, plan_counts.Compute)] for plan in plans]
    assert sum(op.count("SquareSum") for op in clipped) == 1
    assert len(clipped) <= len(plain) + 1
