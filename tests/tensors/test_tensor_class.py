"""The class of tensors: pickles, copies, isinstance and methods, for tensors and for tensors of a job."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import jobflow as flow
import jobflow.typing as tp

CLASSES = ("Tensor", "FloatTensor", "DoubleTensor", "LongTensor")
ROUND_TRIPS: dict[str, Callable[[Any], Any]] = {
    "pickle": lambda x: pickle.loads(pickle.dumps(x)),
    "copy": copy.copy,
    "deepcopy": copy.deepcopy,
}
TENSORS: dict[str, Callable[[], Any]] = {
    "tensor": lambda: flow.tensor([1.0, 2.0], requires_grad=True),
    "integers": lambda: flow.tensor([1, 2]),
    "parameter": lambda: flow.nn.Parameter(flow.tensor([1.0, 2.0])),
}


@pytest.mark.parametrize("trip", ROUND_TRIPS.values(), ids=ROUND_TRIPS)
@pytest.mark.parametrize("make", TENSORS.values(), ids=TENSORS)
def test_copies_keep_class_values_and_gradient_mode(make: Callable[[], Any], trip: Callable[[Any], Any]) -> None:
    x = make()
    y = trip(x)
    assert y is not x and type(y) is type(x) and y.requires_grad == x.requires_grad and y.tolist() == x.tolist()
    assert y.tensor_type == x.tensor_type and np.may_share_memory(y.detach().numpy(), x.detach().numpy()) is False


@pytest.mark.parametrize("make", TENSORS.values(), ids=TENSORS)
def test_tensors_are_instances_of_the_class_of_their_elements(make: Callable[[], Any]) -> None:
    x = make()
    of_elements = "LongTensor" if x.dtype is flow.int64 else "FloatTensor"
    assert [name for name in CLASSES if isinstance(x, getattr(flow, name))] == ["Tensor", of_elements]
    assert issubclass(type(x), flow.Tensor) and not issubclass(type(x), flow.LongTensor)


@pytest.mark.parametrize(
    "compute",
    [lambda x: x + 1, lambda x: x[0], lambda x: x.detach(), lambda x: x.sum(), lambda x: flow.nn.functional.relu(x), lambda x: x.data],
    ids=["operator", "subscript", "detach", "reduction", "function", "data"],
)
def test_results_of_a_parameter_are_plain_tensors(compute: Callable[[Any], Any]) -> None:
    parameter = flow.nn.Parameter(flow.tensor([1.0, 2.0]))
    assert type(compute(parameter)) is type(flow.ones(1))


def test_pickles_that_name_the_former_module_of_the_class_load() -> None:
    x = flow.tensor([1.0, 2.0])
    former = pickle.dumps(x, protocol=0).replace(b"jobflow.functional.tensor_class\nTensor", b"jobflow.tensors.tensor\nTensor")
    assert b"jobflow.tensors.tensor\nTensor" in former
    assert type(pickle.loads(former)) is type(x) and pickle.loads(former).tolist() == [1.0, 2.0]


def test_tensors_of_a_job_are_copied_and_are_no_tensors_outside_of_it() -> None:
    flow.clear_default_session()
    facts: dict[str, Any] = {}

    @flow.global_function()
    def job(x: tp.Numpy.Placeholder((2,))) -> tp.Numpy:  # type: ignore[valid-type]
        facts.update({name: trip(x).name for name, trip in ROUND_TRIPS.items()}, name=x.name)
        facts["classes"] = [name for name in CLASSES if isinstance(x, getattr(flow, name))]
        facts["shapes"] = x.shape, x.declared_shape, x.tensor_type.shape
        return x

    job(np.ones(2, np.float32))
    assert {facts[name] for name in ROUND_TRIPS} == {facts["name"]} and facts["classes"] == []
    assert facts["shapes"] == ((2,),) * 3


def test_a_job_shows_declared_sizes_and_functions_use_those_of_the_call() -> None:
    flow.clear_default_session()
    shapes: list[Any] = []

    @flow.global_function()
    def job(x: tp.ListNumpy.Placeholder((4, 3))) -> tp.ListNumpy:  # type: ignore[valid-type]
        shapes.append((tuple(x.shape), x.declared_shape))
        return flow.reshape(x, (x.shape[0], -1))

    assert job([np.ones((2, 3), np.float32)])[0].shape == (2, 3)
    assert set(shapes) == {((4, 3), (4, 3))}
