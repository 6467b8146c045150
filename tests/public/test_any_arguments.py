"""Public functions called with what they may not be made for: an answer or an error in words of the caller, never one from inside."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

import jobflow as flow
import jobflow.typing as tp
from jobflow.core.errors import DtypeError, JobError, JobflowError

FACES = (
    *("flow", "flow.math", "flow.nn", "flow.nn.functional", "flow.layers", "flow.linalg", "flow.random", "flow.losses", "flow.advanced"),
    *("flow.nn.init", "flow.nn.utils", "flow.comm", "flow.autograd"),
)
#: they change what is not the test's
ELSEWHERE = {"flow.save", "flow.load", "flow.load_variables", "flow.clear_default_session", "flow.sync_default_session"}
ARRAY = np.ones((2, 2), np.float32)


def owner(face: str) -> Any:
    value = flow
    for part in face.split(".")[1:]:
        value = getattr(value, part)
    return value


def functions() -> Iterator[tuple[str, Callable[..., Any]]]:
    """Name and value of every function of the faces."""
    for face in FACES:
        for word in dir(owner(face)):
            value = getattr(owner(face), word)
            own = face in ("flow", "flow.nn") or getattr(value, "__module__", "") == owner(face).__name__
            if inspect.isfunction(value) and own and not word.startswith("_") and f"{face}.{word}" not in ELSEWHERE:
                yield f"{face}.{word}", value


def takes_tensors(function: Callable[..., Any]) -> bool:
    annotations = [str(each.annotation) for each in inspect.signature(function).parameters.values()]
    return any("Tensor" in each for each in annotations) or annotations[:1] in (["Any"], ["Operand"])


def complaint(name: str, function: Callable[..., Any], arguments: tuple[Any, ...]) -> str:
    """What is wrong with what the call does; "" if nothing."""
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
    """Of every function that takes tensors, called with x in several ways."""
    ways = ((x,), (x, x), ([x, x],), (x, 1))
    found = [complaint(name, function, way) for name, function in functions() if takes_tensors(function) for way in ways]
    assert len(found) > 1500
    return list(filter(None, found))


class Enough(Exception):
    """A body ends here: what it recorded is of no use."""


def in_a_job(body: Callable[[Any], object]) -> None:
    """Run it in the body of a job, with a tensor of the job."""

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


def test_nothing() -> None:
    assert list(filter(None, (complaint(name, function, ()) for name, function in functions()))) == []


def test_a_tensor() -> None:
    assert complaints(flow.tensor(ARRAY)) == []


def test_an_array() -> None:
    assert complaints(ARRAY) == []


def test_a_tensor_in_a_graph() -> None:
    found: list[str] = []

    def build(x: Any) -> None:
        found.extend(complaints(x))
        raise Enough

    with pytest.raises(Enough):
        Graph(build)(flow.tensor(ARRAY))
    assert found == []


def test_a_tensor_of_a_job() -> None:
    found: list[str] = []
    in_a_job(lambda x: found.extend(complaints(x)))
    assert found == []


@pytest.mark.parametrize("given", [ARRAY, flow.tensor(ARRAY)], ids=["array", "tensor"])
def test_what_is_not_of_the_job_in_its_body(given: Any) -> None:
    found: list[str] = []
    in_a_job(lambda _: found.extend(complaints(given)))
    assert found == []


# -------------------------------------------------------------------- what the answer is

VALUES = np.array([[0.5, -1.5, 2.0], [0.25, 3.0, -0.75]], np.float32)


def of_job(function: Callable[[Any], Any]) -> np.ndarray[Any, Any]:
    @flow.global_function()
    def job(x: tp.Numpy.Placeholder(VALUES.shape)) -> tp.Numpy:
        return function(x)

    return job(VALUES)


def one_tensor() -> list[str]:
    """Functions of the job face that need a tensor only."""
    found = []
    for name, function in functions():
        if name.startswith(("flow.math.", "flow.nn.")) and not name.startswith(("flow.nn.functional.", "flow.nn.init.", "flow.nn.utils.")):
            first, *others = inspect.signature(function).parameters.values()
            needs = [each for each in others if each.default is each.empty and each.kind is not each.VAR_KEYWORD]
            if first.annotation == "Tensor" and not needs and complaint(name, function, (flow.tensor(VALUES),)) == "":
                found.append(name)
    return found


@pytest.mark.parametrize("name", one_tensor())
def test_functions_of_jobs_answer_tensors_as_they_answer_jobs(name: str) -> None:
    face, _, word = name.rpartition(".")
    function = getattr(owner(face), word)
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
def test_limits_in_every_way(word: str) -> None:
    limited = lambda x: getattr(flow, word)(x, -0.5, 1.0)  # noqa: E731
    wanted = VALUES.clip(-0.5, 1.0)
    np.testing.assert_array_equal(limited(flow.tensor(VALUES)).numpy(), wanted)
    np.testing.assert_array_equal(of_job(limited), wanted)
    np.testing.assert_array_equal(Graph(limited)(flow.tensor(VALUES)).numpy(), wanted)


def test_shapes_of_the_job_face_for_tensors() -> None:
    x = flow.tensor(VALUES, requires_grad=True)
    assert flow.expand_dims(x, 1).shape == (2, 1, 3)
    assert flow.pad(x, [(1, 0), (0, 2)]).shape == (3, 5)
    np.testing.assert_array_equal(flow.slice(x, [0, 1], [2, 2]).numpy(), VALUES[:, 1:])
    np.testing.assert_array_equal(flow.math.add(x, 1).numpy(), VALUES + 1)
    flow.math.reduce_sum(flow.nn.relu(x)).backward()
    np.testing.assert_array_equal(x.grad.numpy(), (VALUES > 0).astype(np.float32))


@pytest.mark.parametrize("word", ["argwhere", "nonzero", "masked_select", "unique"])
def test_sizes_that_only_numbers_tell(word: str) -> None:
    """At once they are told; a job and a graph are compiled before, and their errors name what has a size; positions are results of a job."""
    function = getattr(flow, word)
    for run in (lambda body: Graph(body)(flow.tensor(VALUES)), *([] if word in ("argwhere", "nonzero") else [of_job])):
        with pytest.raises(JobError) as caught:
            run(lambda x: function(x, x > 0) if word == "masked_select" else function(x))
        told = str(caught.value)
        assert word in told and "test_any_arguments.py:" in told
        if word != "unique":
            assert "where" in told
            assert "mask" in told


@pytest.mark.parametrize("function", [flow.exp, flow.sort, flow.math.relu, flow.nn.functional.softmax, flow.nn.Linear(3, 2), flow.nn.ReLU()])
def test_an_array_in_the_place_of_a_tensor(function: Callable[..., Any]) -> None:
    with pytest.raises(DtypeError) as caught:
        function(VALUES)
    assert "flow.tensor(x)" in str(caught.value) and "float32[2,3]" in str(caught.value) and "test_any_arguments.py:" in str(caught.value)


def test_a_place_that_only_numbers_tell() -> None:
    with pytest.raises(JobError) as caught:
        Graph(lambda x: flow.narrow(x, 0, x.sum().long(), 1))(flow.tensor(VALUES))
    told = str(caught.value)
    assert "narrow" in told and "index_select" in told and "test_any_arguments.py:" in told
    np.testing.assert_array_equal(flow.narrow(flow.tensor(VALUES), 0, flow.tensor(1), 1).numpy(), VALUES[1:])


def test_layers_name_the_modules_of_tensors() -> None:
    with pytest.raises(JobError) as caught:
        flow.layers.dense(flow.tensor(VALUES), 2)
    assert "flow.nn.Linear" in str(caught.value)


def test_missing_arguments_are_those_of_the_name_that_was_called() -> None:
    for function, word in ((flow.absolute, "absolute"), (flow.math.clamp, "clamp"), (flow.scatter_add_, "scatter_add_")):
        with pytest.raises(TypeError, match=rf"^{word}\(\) .*missing"):
            function()
