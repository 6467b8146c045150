"""Invalid layouts: the message names the op, its layer and line, shapes and layouts, the source of the request, and legal changes."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from parts import Rows, declare

import jobflow as flow
import jobflow.typing as tp

X = np.random.default_rng(0).standard_normal((4, 6)).astype(np.float32)
HERE = r"test_bad_layouts\.py:\d+"
split, broadcast = flow.distribute.split, flow.distribute.broadcast


def refused(body: Callable[[Any], Any], error: type[Exception] = flow.errors.SbpError) -> str:
    """Return the error message of a job with this body."""
    job = declare(body, Rows)
    with pytest.raises(error) as caught:
        job(X)
    return str(caught.value)


@pytest.fixture(autouse=True)
def two(on: Callable[[int], None]) -> None:
    on(2)


def matches(message: str, *patterns: str) -> None:
    for pattern in patterns:
        assert re.search(pattern, message), f"{pattern!r} is not in: {message}"


def test_a_hint_that_no_signature_satisfies() -> None:
    message = refused(lambda x: flow.math.argmax(x.with_distribute(split(1)), name="best"))
    matches(
        message,
        rf'^argextreme at {HERE} \(layer "best"\): no signature reads its inputs as requested: ',
        rf"x float32\[4,6\] has layout S\(1\), requested as S\(1\) by with_distribute at {HERE}\. ",
        r"On the 2 ranks it may run as \(S\(0\) -> S\(0\)\) \| \(B -> B\)\. ",
        rf"The cheapest change that works: request x in S\(0\) at {HERE} \(distribute\.split\(0\)\)$",
    )


def test_a_cast_that_no_signature_satisfies() -> None:
    message = refused(lambda x: flow.math.argmax(flow.parallel_cast(x, distribute=split(1)), name="best"))
    matches(message, rf"requested as S\(1\) by parallel_cast at {HERE}", r"distribute\.split\(0\)")


def test_the_proposed_change_works() -> None:
    job = declare(lambda x: flow.math.argmax(x.with_distribute(split(0))), Rows)
    np.testing.assert_array_equal(job(X), X.argmax(-1))


def test_a_split_axis_that_does_not_exist() -> None:
    message = refused(lambda x: flow.get_variable("w", (3,), initializer=flow.zeros_initializer(), distribute=split(1)))
    matches(message, r"^get_variable\('w'\) at", r"axis 1, but the tensor float32\[3\] has the axes 0 to 0")
    message = refused(lambda x: flow.hierarchical_parallel_cast(x, ["S(4)"]))
    matches(message, r"^hierarchical_parallel_cast at", "axis 4")


def test_partial_into_a_nonlinear_op() -> None:
    message = refused(lambda x: flow.math.relu(flow.hierarchical_parallel_cast(x, ["P"]), name="positive"))
    matches(
        message,
        r'^relu at .* \(layer "positive"\): no signature reads its inputs as requested: ',
        rf"has layout P, requested as P by hierarchical_parallel_cast at {HERE}",
        r"\(S\(0\) -> S\(0\)\) \| \(S\(1\) -> S\(1\)\) \| \(B -> B\)",
        r"in S\(0\) at",
    )


def test_partial_into_a_linear_op_stays_partial() -> None:
    job = declare(lambda x: flow.hierarchical_parallel_cast(x, ["P"]) * 2.0, Rows)
    np.testing.assert_allclose(job(X), 2 * X, rtol=1e-6)


def test_contradictory_hints_on_one_handle() -> None:
    message = refused(lambda x: flow.parallel_cast(x.with_distribute(split(0)), distribute=split(1)))
    matches(
        message,
        rf"x float32\[4,6\] is requested as S\(0\) by with_distribute at {HERE} and as S\(1\) by parallel_cast at {HERE}; ",
        r"parallel_cast\(x, distribute=distribute\.split\(0\)\)",
    )


def test_a_later_hint_stands_for_an_earlier_one() -> None:
    @flow.global_function()
    def job(x: tp.Numpy.Placeholder((4, 6))) -> tp.Numpy:
        later = x.with_distribute(split(0)).with_distribute(split(1))
        assert later.distribute is split(1) and later.with_distribute(flow.distribute.auto()).distribute is flow.distribute.auto()
        return flow.math.relu(later)

    np.testing.assert_array_equal(job(X), np.maximum(X, 0))


def test_contradictory_hints_on_one_tensor_read_twice() -> None:
    message = refused(lambda x: flow.math.add(x.with_distribute(split(0)), x.with_distribute(split(1)), name="both"))
    matches(
        message,
        r'\(layer "both"\): the hints contradict each other: ',
        rf"S\(0\), requested as S\(0\) by with_distribute at {HERE}; .*S\(1\), requested as S\(1\) by with_distribute at {HERE}\. ",
        r"The cheapest change that works: request x in S\(0\)",
    )


def test_contradictory_hints_on_one_variable() -> None:
    def body(x: Any) -> Any:
        first = flow.get_variable("w", (4, 6), initializer=flow.zeros_initializer(), distribute=split(0))
        return first + flow.get_variable("w", (4, 6), initializer=flow.zeros_initializer(), distribute=split(1))

    matches(
        refused(body),
        rf"^get_variable\('w'\) at {HERE}: layout S\(1\) of float32\[4,6\] differs from S\(0\) at {HERE}; pass the same layout",
    )


def test_one_cast_after_another_is_no_contradiction() -> None:
    @flow.global_function()
    def job(x: tp.Numpy.Placeholder((4, 6))) -> tp.Numpy:
        return flow.math.relu(flow.parallel_cast(flow.parallel_cast(x, distribute=split(1)), distribute=broadcast()))

    np.testing.assert_array_equal(job(X), np.maximum(X, 0))


def test_the_mirrored_view_has_no_split_variables() -> None:
    config = flow.function_config()
    config.default_logical_view(flow.scope.mirrored_view())

    @flow.global_function(function_config=config)
    def job(x: tp.ListNumpy.Placeholder((2, 6))) -> tp.ListNumpy:
        return flow.matmul(x, flow.get_variable("w", (6, 2), initializer=flow.zeros_initializer(), distribute=split(0)))

    with pytest.raises(flow.errors.SbpError) as caught:
        job([X[:2], X[2:]])
    matches(
        str(caught.value),
        rf"^get_variable\('w'\) at {HERE}: layout S\(0\) of float32\[6,2\] on cpu\[0-1\] is not possible in the mirrored view",
        r"omit distribute, or use scope\.consistent_view\(\)",
    )


def test_along_one_of_several_mesh_dimensions(on: Callable[[int], None]) -> None:
    on(4)

    def body(x: Any) -> Any:
        with flow.scope.placement("cpu", "0:0-3", (2, 2)):
            return flow.math.argmax(flow.hierarchical_parallel_cast(x, ["S(0)", "S(1)"]), name="best")

    matches(
        refused(body),
        r"has layout S\(0\),S\(1\), requested as S\(0\),S\(1\) by hierarchical_parallel_cast",
        r"On the 2 ranks of mesh dimension 1 it may run as \(S\(0\) -> S\(0\)\) \| \(B -> B\)",
        r"request \S+ in S\(0\),S\(0\) at .*\(distribute\.split\(0\)\)",
    )
