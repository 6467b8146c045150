"""`ctc_loss` and `range`, names of both APIs: PyTorch's values outside jobs, OneFlow 0.4's conventions in jobs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from ctc_cases import CASES, LENGTHS, scores, weights
from doors import gives, refuses

import jobflow as flow
import jobflow.nn.functional as F
import jobflow.typing as tp
from jobflow.core.errors import ArgumentError, ConfigError, DtypeError, ShapeError

EXPECTED = np.load(Path(__file__).parents[1] / "references" / "ctc_of_tensors.npz")


@pytest.fixture(autouse=True)
def _new_session(fresh: None) -> None:
    pass


def log_softmax(x: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    return x - np.log(np.exp(x).sum(-1, keepdims=True))


@pytest.mark.parametrize("case", CASES, ids=lambda case: "-".join(map(str, case)))
def test_ctc_loss_and_its_gradient_equal_pytorch(case: tuple[str, str, bool]) -> None:
    name, reduction, zero = case
    lengths, key = LENGTHS[name], "|".join(map(str, case))
    logs = flow.tensor(log_softmax(scores(name)), requires_grad=True)
    arguments = (flow.tensor(lengths.targets), lengths.input_lengths, tuple(lengths.target_lengths))
    loss = flow.ctc_loss(logs, *arguments, lengths.blank, reduction, zero)
    assert tuple(loss.shape) == EXPECTED[key].shape
    np.testing.assert_allclose(loss.numpy(), EXPECTED[key], rtol=1e-12, atol=1e-12)
    (flow.tensor(weights(loss.numel())) * loss.reshape(-1)).sum().backward()
    np.testing.assert_allclose(logs.grad.numpy(), EXPECTED[f"{key}|gradient"], rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("name", ["rows", "joined", "one sample"])
def test_ctc_loss_accepts_lengths_as_tensors_and_keywords(name: str) -> None:
    arguments = LENGTHS[name]
    arrays = [log_softmax(scores(name)), *map(np.array, arguments[1:4])]
    for function in (flow.ctc_loss, F.ctc_loss, lambda a, b, c, d: F.ctc_loss(a, targets=b, target_lengths=d, input_lengths=c)):
        gives(function, arrays, EXPECTED[f"{name}|mean|False"], rtol=1e-12)
    listed = (arguments.input_lengths, arguments.target_lengths)
    gives(lambda logs, targets: flow.ctc_loss(logs, targets, *listed), arrays[:2], EXPECTED[f"{name}|mean|False"], rtol=1e-12)


def test_ctc_loss_of_float32_is_float32() -> None:
    arguments = LENGTHS["rows"]
    arrays = [log_softmax(scores("rows")).astype(np.float32), *map(np.int32, arguments[1:4])]
    gives(flow.ctc_loss, arrays, EXPECTED["rows|mean|False"], dtype=flow.float32, rtol=1e-6)


LOGS, ROWS = log_softmax(scores("rows")), np.array(LENGTHS["rows"].targets)
WRONG: dict[str, tuple[Any, type[Exception], str]] = {
    "a length as a number": (lambda x, t: flow.ctc_loss(x, t, 6, [3, 2, 1]), ArgumentError, "input_lengths is 6"),
    "a length with a fraction": (lambda x, t: flow.ctc_loss(x, t, [6, 5, 2], [3, 2.5, 1]), ArgumentError, "target_lengths is [3, 2.5, 1]"),
    "too few lengths": (lambda x, t: flow.ctc_loss(x, t, [6, 5], [3, 2, 1]), ShapeError, "input_lengths int64[2]"),
    "more frames than there are": (lambda x, t: flow.ctc_loss(x, t, [7, 5, 2], [3, 2, 1]), ArgumentError, "input length 7 at [0]"),
    "more labels than joined targets": (
        lambda x, t: flow.ctc_loss(x, t.reshape(-1)[:5], [6, 5, 2], [3, 2, 1]),
        ArgumentError,
        "sum of target lengths 6 at [2]",
    ),
    "a label beyond the classes": (lambda x, t: flow.ctc_loss(x, t + 1, [6, 5, 2], [3, 2, 1]), ArgumentError, "label 4"),
    "a blank beyond the classes": (lambda x, t: flow.ctc_loss(x, t, [6, 5, 2], [3, 2, 1], 4), ShapeError, "blank 4"),
    "targets with fractions": (lambda x, t: flow.ctc_loss(x, t * 1.0, [6, 5, 2], [3, 2, 1]), DtypeError, "integers"),
    "an unknown reduction": (lambda x, t: flow.ctc_loss(x, t, [6, 5, 2], [3, 2, 1], reduction="avg"), ConfigError, "'avg'"),
    "one sample with rows of targets": (lambda x, t: flow.ctc_loss(x[:, 0], t, [6], [3]), ShapeError, "one sample"),
}


@pytest.mark.parametrize("name", WRONG)
def test_ctc_loss_raises_for_invalid_arguments(name: str) -> None:
    function, error, fact = WRONG[name]
    refuses(function, [LOGS, ROWS], error, "ctc_loss at", fact)


#: arguments of torch.range 2.13 and its values
RANGES: list[tuple[tuple[float, ...], Any, list[float]]] = [
    ((1, 4), None, [1, 2, 3, 4]),
    ((1, 4, 0.5), None, [1, 1.5, 2, 2.5, 3, 3.5, 4]),
    ((4, 1, -1), None, [4, 3, 2, 1]),
    ((2, 2), None, [2]),
    ((0, 0.3, 0.1), None, [0.0, 0.10000000149011612, 0.20000000298023224]),
    ((0, 1, 0.25), "float64", [0, 0.25, 0.5, 0.75, 1]),
    ((2**24, 2**24 + 3), None, [16777216, 16777216, 16777218, 16777220]),
    ((0, 5, 2), "int64", [0, 2, 4]),
    ((0.5, 2.7), "int32", [0, 1, 2]),
    ((0, 5.5, 1.5), "int64", [0, 1, 2, 3, 4, 5]),
]


@pytest.mark.parametrize(("arguments", "dtype", "values"), RANGES)
def test_range_equals_pytorch(arguments: tuple[float, ...], dtype: str | None, values: list[float]) -> None:
    options = {} if dtype is None else {"dtype": getattr(flow, dtype)}
    gives(lambda x: flow.range(*arguments, **options), [0.0], values, dtype=getattr(flow, dtype or "float32"))


def test_range_accepts_the_options_of_factories() -> None:
    x = flow.range(start=0, end=5, step=1, placement=flow.placement("cpu", [0]), sbp=flow.sbp.split(0), requires_grad=True)
    assert x.is_global and x.requires_grad and x.numpy().tolist() == [0, 1, 2, 3, 4, 5]
    flow.set_default_dtype(flow.float64)
    try:
        assert flow.range(0, 1).dtype is flow.float64
    finally:
        flow.set_default_dtype(flow.float32)


@pytest.mark.parametrize("arguments", [(4, 1), (1, 4, -1), (1, 4, 0), (0, float("nan")), (float("inf"), 2)])
def test_range_raises_for_steps_that_do_not_reach_the_end(arguments: tuple[float, ...]) -> None:
    refuses(lambda x: flow.range(*arguments), [0.0], ArgumentError, "range at", f"end {arguments[1]}")


def test_range_raises_for_an_integer_step_of_zero() -> None:
    refuses(lambda x: flow.range(0, 5.5, 0.5, dtype=flow.int64), [0.0], ArgumentError, "step 0.5", "int64")


def test_range_and_ctc_loss_keep_the_conventions_of_jobs() -> None:
    """In a job `range` ends before its limit and is int64; the losses have the shape (1,); nn.functional has PyTorch's shape."""

    @flow.global_function()
    def job(
        logs: tp.Numpy.Placeholder((6, 3, 4), flow.float64),  # type: ignore[valid-type]
        targets: tp.Numpy.Placeholder((3, 3), flow.int64),  # type: ignore[valid-type]
        frames: tp.Numpy.Placeholder((3,), flow.int64),  # type: ignore[valid-type]
        labels: tp.Numpy.Placeholder((3,), flow.int64),  # type: ignore[valid-type]
    ) -> tp.Bundle[tp.Numpy]:
        arguments = (logs, targets, frames, labels)
        return {
            "range": flow.range(1, 4, name="range1"),
            "limit": flow.range(0, limit=6, delta=2, dtype=flow.int32, name="range2"),
            "legacy": flow.ctc_loss(*arguments, reduction="mean", name="loss"),
            "tensors": F.ctc_loss(*arguments),
            "listed": F.ctc_loss(logs, targets, *LENGTHS["rows"][2:4]),
        }

    output = job(LOGS, ROWS, *map(np.array, LENGTHS["rows"][2:4]))
    assert output["range"].tolist() == [1, 2, 3] and output["range"].dtype == np.int64
    assert output["limit"].tolist() == [0, 2, 4] and output["limit"].dtype == np.int32
    assert output["legacy"].shape == (1,) and output["tensors"].shape == output["listed"].shape == ()
    for name in ("legacy", "tensors", "listed"):
        np.testing.assert_allclose(output[name].reshape(()), EXPECTED["rows|mean|False"], rtol=1e-12)
