"""Jobs that are declared again under their names, as in the cells of a notebook: variables are used again, or the job starts anew."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from parts import declare, sgd, values

import jobflow as flow
import jobflow.typing as tp
from jobflow import nn
from jobflow.core.errors import JobError

ONES = flow.ones_initializer()


def rows(width: int) -> Any:
    return tp.Numpy.Placeholder((4, width))


def x_of(width: int) -> Any:
    return np.ones((4, width), np.float32)


def trained(width: int, dtype: Any = flow.float, name: str = "train") -> Callable[..., Any]:
    """Declare a train job with `width` weights, like a cell that is run again."""

    def body(x: Any) -> Any:
        w: Any = flow.get_variable("w", (width,), dtype=dtype, initializer=ONES)
        loss = w * flow.cast(x, dtype) * flow.get_variable("scale", (1,), dtype=dtype, initializer=ONES)
        sgd(0.1, momentum=0.9).minimize(loss)
        return loss

    return declare(body, rows(width), name=name, type="train")


@pytest.mark.parametrize(("width", "dtype"), [(3, flow.float), (2, flow.double)])
def test_a_job_with_other_variables_starts_anew(devices: int, capfd: pytest.CaptureFixture[str], width: int, dtype: Any) -> None:
    first = trained(2)
    for _ in range(3):
        first(x_of(2))
    second = trained(width, dtype)
    np.testing.assert_array_equal(second(x_of(width)), np.ones((4, width)))
    assert {name: (value.shape, str(value.dtype)) for name, value in values().items()} == {
        "w": ((width,), str(np.dtype(dtype.numpy))),
        "scale": ((1,), str(np.dtype(dtype.numpy))),
        "System-Train-TrainStep-train": ((1,), "int64"),
        "w-momentum": ((width,), str(np.dtype(dtype.numpy))),
        "scale-momentum": ((1,), str(np.dtype(dtype.numpy))),
    }
    assert values()["System-Train-TrainStep-train"].tolist() == [1]
    after = "float32[3]" if width == 3 else "float64[2]"
    assert f'variable "w" was float32[2] and is {after} in the new definition, so all 5 variables of the job start anew' in capfd.readouterr().err
    with pytest.raises(JobError, match=r'variable "w" is declared .*; job train at \S+ uses "w" too; declare it anew together with train'):
        first(x_of(2))


def test_a_job_with_the_same_variables_continues(devices: int) -> None:
    trained(2)(x_of(2))
    before = values()
    again = trained(2)
    np.testing.assert_allclose(again(x_of(2))[0], before["w"] * before["scale"])
    assert values()["System-Train-TrainStep-train"].tolist() == [2]


def test_variables_of_other_jobs_are_not_released(devices: int) -> None:
    def predict(width: int) -> Callable[..., Any]:
        return declare(lambda x: x * flow.get_variable("w", (width,), initializer=ONES), rows(width), name="predict")

    first, other = trained(2), predict(2)
    first(x_of(2))
    expected = other(x_of(2))
    with pytest.raises(JobError, match=r'; job predict at \S+ uses "w" too; declare it anew together with train, or, to forget the variables'):
        trained(3)(x_of(3))
    np.testing.assert_array_equal(other(x_of(2)), expected)
    second, other = trained(3), predict(3)
    np.testing.assert_array_equal(second(x_of(3)), np.ones((4, 3)))
    np.testing.assert_allclose(other(x_of(3))[0], values()["w"])


def test_a_redefined_job_may_call_another_module(devices: int, capfd: pytest.CaptureFixture[str]) -> None:
    def cell(net: nn.Module, width: int) -> Any:
        return declare(lambda x: net(x), rows(width), name="call")(x_of(width))

    first, second, third = nn.Linear(2, 3), nn.Linear(2, 3), nn.Linear(5, 3)
    for net, width in ((first, 2), (second, 2), (third, 5)):
        np.testing.assert_allclose(cell(net, width), net(flow.tensor(x_of(width))).numpy(), rtol=1e-6)
    first.weight.data.fill_(0.0)
    assert first.weight.numpy().tolist() == [[0, 0]] * 3 and second.weight.numpy().any()
    np.testing.assert_allclose(cell(third, 5), third(flow.tensor(x_of(5))).numpy(), rtol=1e-6)
    printed = capfd.readouterr().err
    assert printed.count('"weight" belongs to another module') == 1 and printed.count("start anew") == 2
