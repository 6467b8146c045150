"""Public functions with unexpected arguments: a result, or an error at the caller's line, never an internal error."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

import jobflow as flow
import jobflow.typing as tp
from jobflow.core.errors import DtypeError, JobError, JobflowError

APIS = (
    *("flow", "flow.math", "flow.nn", "flow.nn.functional", "flow.layers", "flow.linalg", "flow.random", "flow.losses", "flow.advanced"),
    *("flow.nn.init", "flow.nn.utils", "flow.nn.utils.rnn", "flow.comm", "flow.autograd"),
)
#: they change what is not the test's
ELSEWHERE = {"flow.save", "flow.load", "flow.load_variables", "flow.clear_default_session", "flow.sync_default_session"}
ARRAY = np.ones((2, 2), np.float32)


def owner(path: str) -> Any:
    value = flow
    for part in path.split(".")[1:]:
        value = getattr(value, part)
    return value


def functions() -> Iterator[tuple[str, Callable[..., Any]]]:
    """Return name and value of every function of the namespaces."""
    for path in APIS:
        for word in dir(owner(path)):
            value = getattr(owner(path), word)
            own = path in ("flow", "flow.nn") or getattr(value, "__module__", "") == owner(path).__name__
            if inspect.isfunction(value) and own and not word.startswith("_") and f"{path}.{word}" not in ELSEWHERE:
                yield f"{path}.{word}", value


def takes_tensors(function: Callable[..., Any]) -> bool:
    annotations = [str(each.annotation) for each in inspect.signature(function).parameters.values()]
    return any("Tensor" in each for each in annotations) or annotations[:1] in (["Any"], ["Operand"])


def complaint(name: str, function: Callable[..., Any], arguments: tuple[Any, ...]) -> str:
    """Return the fault of a call's outcome, or ""."""
    try:
        function(*arguments)
    except JobflowError as error:
        return "" if str(error) else f"{name}: an error without words"
    except TypeError as error:
        ours = (f"{name.rpartition('.')[2]}(", f"{function.__name__}(")
        return "" if str(error).startswith(ours) else f"{name}: TypeError: {error}"
    except (ArithmeticError, AssertionError, AttributeError, LookupError, RuntimeError, ValueError) as error:
        return f"{name}: {type(error).__name__}: {error}"
    return ""


def complaints(x: Any) -> list[str]:
    """Return the faults of every function of tensors, called with x in several ways."""
    calls = ((x,), (x, x), ([x, x],), (x, 1))
    texts = [complaint(name, function, way) for name, function in functions() if takes_tensors(function) for way in calls]
    assert len(texts) > 1500
    return list(filter(None, texts))


class Enough(Exception):
    """The exception that ends the body of a job early."""


def in_a_job(body: Callable[[Any], object]) -> None:
    """Run a function in the body of a job, with a tensor of the job."""

    @flow.global_function()
    def job(x: tp.Numpy.Placeholder((2, 2))) -> tp.Numpy:
        body(x)
        raise Enough

    with pytest.raises(Enough):
        job(ARRAY)


class Graph(flow.nn.Graph):
    def __init__(self, body: Callable[[Any], Any]) -> None:
        super().__init__()
        self.body = body

    def build(self, x: Any) -> Any:
        return self.body(x)


def test_calls_without_arguments() -> None:
    assert list(filter(None, (complaint(name, function, ()) for name, function in functions()))) == []


def test_a_tensor() -> None:
    assert complaints(flow.tensor(ARRAY)) == []


def test_an_array() -> None:
    assert complaints(ARRAY) == []


def test_a_tensor_in_a_graph() -> None:
    texts: list[str] = []

    def build(x: Any) -> None:
        texts.extend(complaints(x))
        raise Enough

    with pytest.raises(Enough):
        Graph(build)(flow.tensor(ARRAY))
    assert texts == []


def test_a_tensor_of_a_job() -> None:
    texts: list[str] = []
    in_a_job(lambda x: texts.extend(complaints(x)))
    assert texts == []


@pytest.mark.parametrize("value", [ARRAY, flow.tensor(ARRAY)], ids=["array", "tensor"])
def test_foreign_values_in_the_body_of_a_job(value: Any) -> None:
    texts: list[str] = []
    in_a_job(lambda _: texts.extend(complaints(value)))
    assert texts == []


# -------------------------------------------------------------------- what the answer is

VALUES = np.array([[0.5, -1.5, 2.0], [0.25, 3.0, -0.75]], np.float32)


def of_job(function: Callable[[Any], Any]) -> np.ndarray[Any, Any]:
    @flow.global_function()
    def job(x: tp.Numpy.Placeholder(VALUES.shape)) -> tp.Numpy:
        return function(x)

    return job(VALUES)


def one_tensor() -> list[str]:
    """Return the functions of the job API that need a single tensor."""
    names = []
    for name, function in functions():
        if name.startswith(("flow.math.", "flow.nn.")) and not name.startswith(("flow.nn.functional.", "flow.nn.init.", "flow.nn.utils.")):
            first, *others = inspect.signature(function).parameters.values()
            needs = [each for each in others if each.default is each.empty and each.kind is not each.VAR_KEYWORD]
            if first.annotation == "Tensor" and not needs and complaint(name, function, (flow.tensor(VALUES),)) == "":
                names.append(name)
    return names


@pytest.mark.parametrize("name", one_tensor())
def test_functions_of_jobs_accept_tensors(name: str) -> None:
    path, _, word = name.rpartition(".")
    function = getattr(owner(path), word)
    try:
        at_once = function(flow.tensor(VALUES))
    except JobError as error:
        assert "flow.nn." in str(error)  # it draws, and says what tensors have instead
        return
    except JobflowError:
        with pytest.raises(JobflowError):
            of_job(function)
        return
    whole = of_job(lambda x: function(x)[0]) if isinstance(at_once, tuple | list) else of_job(function)
    first = at_once[0] if isinstance(at_once, tuple | list) else at_once
    compiled = Graph(lambda x: function(x)[0] if isinstance(at_once, tuple | list) else function(x))(flow.tensor(VALUES))
    np.testing.assert_allclose(first.numpy(), whole, rtol=1e-6)
    np.testing.assert_allclose(compiled.numpy(), whole, rtol=1e-6)
    assert first.numpy().dtype == whole.dtype == compiled.numpy().dtype


@pytest.mark.parametrize("word", ["clamp", "clip"])
def test_bounds_in_every_mode(word: str) -> None:
    limited = lambda x: getattr(flow, word)(x, -0.5, 1.0)  # noqa: E731
    expected = VALUES.clip(-0.5, 1.0)
    np.testing.assert_array_equal(limited(flow.tensor(VALUES)).numpy(), expected)
    np.testing.assert_array_equal(of_job(limited), expected)
    np.testing.assert_array_equal(Graph(limited)(flow.tensor(VALUES)).numpy(), expected)


def test_shapes_of_the_job_api_for_tensors() -> None:
    x = flow.tensor(VALUES, requires_grad=True)
    assert flow.expand_dims(x, 1).shape == (2, 1, 3)
    assert flow.pad(x, [(1, 0), (0, 2)]).shape == (3, 5)
    np.testing.assert_array_equal(flow.slice(x, [0, 1], [2, 2]).numpy(), VALUES[:, 1:])
    np.testing.assert_array_equal(flow.math.add(x, 1).numpy(), VALUES + 1)
    flow.math.reduce_sum(flow.nn.relu(x)).backward()
    np.testing.assert_array_equal(x.grad.numpy(), (VALUES > 0).astype(np.float32))


@pytest.mark.parametrize("word", ["argwhere", "nonzero", "masked_select", "unique"])
def test_data_dependent_sizes(word: str) -> None:
    """Eager tensors have the size; a job and a graph raise for the function with a data-dependent size, and jobs return indices."""
    function = getattr(flow, word)
    for run in (lambda body: Graph(body)(flow.tensor(VALUES)), *([] if word in ("argwhere", "nonzero") else [of_job])):
        with pytest.raises(JobError) as caught:
            run(lambda x: function(x, x > 0) if word == "masked_select" else function(x))
        message = str(caught.value)
        assert word in message and "test_any_arguments.py:" in message
        if word != "unique":
            assert "where" in message
            assert "mask" in message


@pytest.mark.parametrize("function", [flow.exp, flow.sort, flow.math.relu, flow.nn.functional.softmax, flow.nn.Linear(3, 2), flow.nn.ReLU()])
def test_an_array_in_the_place_of_a_tensor(function: Callable[..., Any]) -> None:
    with pytest.raises(DtypeError) as caught:
        function(VALUES)
    assert "flow.tensor(x)" in str(caught.value) and "float32[2,3]" in str(caught.value) and "test_any_arguments.py:" in str(caught.value)


def test_a_data_dependent_start() -> None:
    with pytest.raises(JobError) as caught:
        Graph(lambda x: flow.narrow(x, 0, x.sum().long(), 1))(flow.tensor(VALUES))
    message = str(caught.value)
    assert "narrow" in message and "index_select" in message and "test_any_arguments.py:" in message
    np.testing.assert_array_equal(flow.narrow(flow.tensor(VALUES), 0, flow.tensor(1), 1).numpy(), VALUES[1:])


def test_layers_name_the_modules_of_tensors() -> None:
    with pytest.raises(JobError) as caught:
        flow.layers.dense(flow.tensor(VALUES), 2)
    assert "flow.nn.Linear" in str(caught.value)


def test_missing_arguments_are_those_of_the_name_that_was_called() -> None:
    for function, word in ((flow.absolute, "absolute"), (flow.math.clamp, "clamp"), (flow.scatter_add_, "scatter_add_")):
        with pytest.raises(TypeError, match=rf"^{word}\(\) .*missing"):
            function()
