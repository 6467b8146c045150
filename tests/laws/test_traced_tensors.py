"""Functions of tensors in the body of a job: they return their eager results, or raise an error that names the user's line.

One job computes all functions of one argument.  In-place functions, and results whose size depends on values, raise an error.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from op_cases import ARGUMENTS, BINARY, PAIRS, REDUCTIONS, SHAPED, UNARY
from running import Array, at_once, in_one_job, proper

import jobflow as flow
import jobflow.typing as tp

F = flow.nn.functional
HERE = Path(__file__).name
Named = tuple[str, Callable[..., Any]]


def public(name: str) -> Callable[..., Any] | None:
    """Return a function of tensors, except for those that belong to the job API in a job."""
    module, _, word = name.rpartition(".")
    if module == "special":
        return getattr(flow.special, word)  # type: ignore[no-any-return]
    return getattr(F, word, None) or (None if module else getattr(flow.functional, word, None))


def of_one() -> Iterator[Named]:
    for name in UNARY:
        yield name, public(name)
    for name in REDUCTIONS:
        yield name, public(name)
        yield f"{name}(dim=0)", lambda x, name=name: public(name)(x, dim=0)
    for name, options in SHAPED:
        yield f"{name}{options}", lambda x, name=name, options=options: public(name)(x, *options)


def both_ways(calls: Sequence[Named], arrays: Sequence[Array], refused: bool = True) -> list[str]:
    """Return the differences between a job and eager calls; `refused`: include calls that raise errors for any values."""
    tensors = [flow.tensor(a) for a in arrays]
    expected = {name: at_once(call, tensors) for name, call in calls}
    # the lambda puts a line of this file into the messages
    outcomes = in_one_job([(name, lambda *x, call=call: call(*x)) for name, call in calls if refused or expected[name].error is None], arrays)
    wrong = []
    for name, end in outcomes.items():
        eager = expected[name]
        if end.error is not None and not proper(end.error, HERE):
            wrong.append(f"{name}: {end}")
        if end.error is not None and eager.error is None and not name.startswith("unique"):
            wrong.append(f"{name} fails: {end}")
        if end.error is None and not eager.same(end, 1e-6):
            wrong.append(f"{name}: {end}\n      but eagerly: {eager}")
    return wrong


@pytest.mark.parametrize("label", ["float32", "float16", "int64", "bool", "one element", "not finite"])
def test_functions_of_one_tensor(label: str) -> None:
    (array,) = (a for name, a, _ in ARGUMENTS if name == label)
    wrong = both_ways(list(of_one()), [array], refused=array.dtype.kind == "f")
    assert not wrong, "\n".join(wrong)


@pytest.mark.parametrize("label", ["float32", "int64 and float32", "bool and int8", "zeros below", "batches"])
def test_functions_of_two_tensors(label: str) -> None:
    (arrays,) = ((a, b) for name, a, b in PAIRS if name == label)
    wrong = both_ways([(name, public(name)) for name in BINARY if public(name)], arrays, refused=label in ("float32", "batches"))
    assert not wrong, "\n".join(wrong)


def test_functions_that_create_tensors() -> None:
    @flow.global_function()
    def job(x: tp.Numpy.Placeholder((3,))) -> tuple[(tp.Numpy,) * 6]:  # type: ignore[misc]
        return flow.functional.add(flow.arange(3), x), flow.full((2,), 7), flow.eye(2), flow.linspace(0, 1, 3), flow.rand(4), flow.randn(4)

    x = np.ones(3, np.float32)
    first, second = job(x), job(x)
    for result, again, expected in zip(first[:4], second, ([1, 2, 3], [7, 7], np.eye(2), [0, 0.5, 1]), strict=False):
        np.testing.assert_array_equal(result, expected)
        np.testing.assert_array_equal(again, expected)
    assert (first[4] != second[4]).all() and (first[5] != second[5]).all() and (first[4] != first[5]).all(), "sampled again at every run"


#: a tensor from outside the body of a job
OUTSIDE = flow.tensor(1.0)


@pytest.mark.parametrize(
    ("name", "call", "facts"),
    [
        ("unique", lambda x: flow.unique(x), "is not known while"),
        ("scatter_add_", lambda x: flow.scatter_add_(x, 0, flow.argmax(x, 0, True), x), "cannot be overwritten"),
        ("relu", lambda x: F.relu(x, inplace=True), "cannot be overwritten"),
        ("allclose", lambda x: flow.allclose(x, x), "no values while the body of a job runs"),
        ("to_global", lambda x: flow.to_global(x, flow.placement("cpu", [0]), flow.sbp.broadcast), "flow.parallel_cast"),
        ("where", lambda x: flow.functional.where(x > 0, OUTSIDE, x), "that does not belong to this job"),
        ("linear", lambda x: F.linear(x, np.ones((3, 3), np.float32)), "the array to the job"),
        ("add", lambda x: flow.add(x, np.ones(3, np.float32)), "pass the array to the job as an argument"),
        ("randn", lambda x: flow.randn(2, placement=flow.placement("cpu", [0]), sbp=flow.sbp.broadcast), "placement= and sbp="),
    ],
)
def test_functions_that_jobs_do_not_support_raise(name: str, call: Callable[[Any], Any], facts: str) -> None:
    @flow.global_function()
    def job(x: tp.Numpy.Placeholder((2, 3))) -> tp.Numpy:
        return call(x)

    with pytest.raises(flow.JobflowError) as caught:
        job(np.ones((2, 3), np.float32))
    assert facts in str(caught.value) and f"{HERE}:" in str(caught.value), f"{name}: {caught.value}"


def test_gradients_flow_through_functions_of_tensors() -> None:
    """Functions of tensors train variables of jobs; under no_grad they do not."""
    x = np.linspace(-1, 1, 6, dtype=np.float32).reshape(2, 3)

    def trained(detached: bool) -> Any:
        flow.clear_default_session()

        @flow.global_function(type="train")
        def job(x: tp.Numpy.Placeholder((2, 3))) -> tp.Numpy:
            w = flow.get_variable("w", (3,), initializer=flow.ones_initializer())
            loss = flow.mean(F.softplus(x * w)) + flow.math.reduce_sum(w) * 0.0
            if detached:
                with flow.no_grad():
                    loss = flow.mean(F.softplus(x * w))
                loss = loss + flow.math.reduce_sum(w) * 0.0
            flow.optimizer.SGD(flow.optimizer.PiecewiseConstantScheduler([], [1.0]), momentum=0).minimize(loss)
            return w

        job(x)
        return job(x)

    w = flow.ones(3, requires_grad=True)
    F.softplus(flow.tensor(x) * w).mean().backward()
    np.testing.assert_allclose(trained(False), 1 - w.grad.numpy(), rtol=1e-6)
    np.testing.assert_array_equal(trained(True), np.ones(3, np.float32))


SHARED: Sequence[Callable[[Any, Any], Any]] = (
    lambda x, ids: flow.transpose(x, [1, 0]),
    lambda x, ids: flow.transpose(x, 0, 1),
    lambda x, ids: flow.reshape(x, 3, 2),
    lambda x, ids: flow.reshape(x, [3, 2]),
    lambda x, ids: flow.squeeze(flow.reshape(x, (1, 6)), 0),
    lambda x, ids: flow.expand(flow.reshape(x, (1, 6)), 2, 6),
    lambda x, ids: flow.gather(x, ids),
    lambda x, ids: flow.matmul(x, x, transpose_b=True),
    lambda x, ids: flow.concat([x, x], axis=1),
    lambda x, ids: flow.concat([x, x], dim=1),
    lambda x, ids: flow.stack([x, x], dim=1),
    lambda x, ids: flow.one_hot(ids, 3),
    lambda x, ids: flow.one_hot(ids, 3, dtype=flow.float32),
    lambda x, ids: flow.clamp(x, min=1.0),
    lambda x, ids: flow.clip(x, min_value=1.0),
    lambda x, ids: flow.zeros(2, 3),
    lambda x, ids: flow.ones((2, 3), dtype=flow.float32),
)


def test_arguments_select_the_api_of_shared_names() -> None:
    """A list is a permutation, an int an axis; keywords have the same meaning in a job and in eager mode."""
    x, ids = np.arange(6, dtype=np.float32).reshape(2, 3), np.array([1, 0], np.int32)

    @flow.global_function()
    def job(x: tp.Numpy.Placeholder((2, 3)), ids: tp.Numpy.Placeholder((2,), dtype=flow.int32)) -> list[tp.Numpy]:
        return [call(x, ids) for call in SHARED]

    for call, result in zip(SHARED, job(x, ids), strict=True):
        expected = call(flow.tensor(x), flow.tensor(ids)).numpy()
        assert result.dtype == expected.dtype
        np.testing.assert_array_equal(result, expected)
