"""Tensors in the body of a job: names, distribute constraints, comparisons, the current scope, and old spellings."""

import copy
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from parts import Begin, Rows, X, declare

import jobflow as flow
import jobflow.typing as tp
from jobflow.core.errors import JobError, PlacementError
from jobflow.engine.job import job_of
from jobflow.tools import explain


def ask(question: Callable[[Any], Any], x: Any = X) -> Any:
    """Return the value of `question` for the argument of a job, in its body."""
    answers = []

    @flow.global_function()
    def job(x: tp.Numpy.Placeholder(x.shape)) -> tp.Numpy:  # type: ignore[valid-type]
        answers.append(question(x))
        return x

    job(x)
    return answers[0]


class TestHandles:
    def test_distribute_specs(self, devices: int) -> None:
        split, broadcast = flow.distribute.split, flow.distribute.broadcast()
        assert ask(lambda x: (x.distribute, x.split_axis)) == (flow.distribute.auto(), flow.INVALID_SPLIT_AXIS)
        assert ask(lambda x: x.with_distribute(split(1)).split_axis) == 1
        assert ask(lambda x: x.with_split_distribute(0).distribute is split(0))
        assert ask(lambda x: x.with_broadcast_distribute().distribute is broadcast)
        assert ask(lambda x: x.with_distribute(flow.distribute.auto()) is x)

    def test_the_requested_distribute_is_applied(self, on: Begin) -> None:
        on(2)
        job = declare(lambda x: flow.math.relu(x.with_distribute(flow.distribute.split(1)), name="positive"), Rows)
        np.testing.assert_array_equal(job(X), np.maximum(X, 0))
        text = explain.explain(job_of(job), devices=2, stages=["layouts"])
        (line,) = (line for line in text.splitlines() if "%positive:" in line)
        assert "S(1)" in line

    def test_gradient_distribute_is_applied(self, on: Begin) -> None:
        def train(constrain: Callable[[Any], Any]) -> tuple[Any, str]:
            @flow.global_function(type="train")
            def job(x: Rows) -> tp.Numpy:
                w = flow.get_variable("w", (6, 4), initializer=flow.ones_initializer())
                y = constrain(flow.matmul(x, w))
                flow.optimizer.SGD(flow.optimizer.PiecewiseConstantScheduler([], [0.5]), momentum=0).minimize(y * y)
                return w

            job(X)
            return job(X), explain.explain(job_of(job), devices=2, stages=["graph"])

        on(2)
        free, _ = train(lambda y: y)
        on(2)
        constrained, text = train(lambda y: y.with_gradient_distribute(flow.distribute.split(1)))
        np.testing.assert_allclose(constrained, free, rtol=1e-6)
        assert "ToLayout(S(1))" in text

    def test_names(self, fresh: None) -> None:
        def names(x: Any) -> Any:
            with flow.scope.namespace("block"):
                y = flow.math.exp(x, name="e")
            assert y.unique_name == y.logical_blob_name
            assert y.with_split_distribute(1).unique_name.endswith(":jobflow.distribute.split(axis=1)")
            return y.op_name, y.blob_name, y.logical_blob_name, y.parallel_size, y.is_dynamic

        assert ask(names) == ("block-e", "out", "block-e/out", 1, False)

    def test_a_tensor_per_device_is_dynamic(self, fresh: None) -> None:
        answers = []

        @flow.global_function()
        def job(x: tp.ListNumpy.Placeholder((4, 6))) -> tp.ListNumpy:
            static = flow.cast_to_static_shape(x)
            answers.extend([x.is_dynamic, (x + 1).is_dynamic, static.is_dynamic, (static + 1).is_dynamic])
            return x

        job([X])
        assert answers == [True, True, False, False]


CASES: dict[str, tuple[Callable[[Any, Any], Any], Callable[[Any, Any], Any]]] = {
    "less": (lambda x, y: x < y, np.less),
    "less_equal": (lambda x, y: x <= y, np.less_equal),
    "greater": (lambda x, y: x > y, np.greater),
    "greater_equal": (lambda x, y: x >= y, np.greater_equal),
    "equal": (lambda x, y: x == y, np.equal),
    "not_equal": (lambda x, y: x != y, np.not_equal),
}


def test_handles_can_be_copied(fresh: None) -> None:
    value = ask(lambda x: x)
    other = copy.copy(value)
    assert other is not value and (other.name, other.tensor_type, other.node) == (value.name, value.tensor_type, value.node)


class TestComparisons:
    """Comparisons return int8, because the legacy system has no bool."""

    @pytest.mark.parametrize("word", CASES)
    def test_operators(self, devices: int, word: str) -> None:
        written, expected = CASES[word]
        x, y = np.array([1, 2, 3, 3], np.float32), np.array([1, 3, 2, 3], np.float32)

        @flow.global_function()
        def job(x: tp.Numpy.Placeholder((4,)), y: tp.Numpy.Placeholder((4,))) -> tp.Bundle[tp.Numpy]:
            return [written(x, y), written(x, 3), written(2.0, x), flow.cast(written(x, y), flow.float)]

        results = job(x, y)
        assert [a.dtype for a in results] == [np.int8, np.int8, np.int8, np.float32]
        for a, b in zip(results, (expected(x, y), expected(x, 3), expected(2, x), expected(x, y)), strict=True):
            np.testing.assert_array_equal(a, b)

    def test_where_takes_them(self, devices: int) -> None:
        job = declare(lambda x: flow.where(x > 0, x, flow.zeros_like(x)), Rows)
        np.testing.assert_array_equal(job(X), np.maximum(X, 0))

    def test_comparisons_with_other_objects_compare_identity(self, fresh: None) -> None:
        assert ask(lambda x: (x == x.shape, x != "x", x == None, {x: 1}[x])) == (False, True, False, 1)  # noqa: E711

    def test_the_truth_of_a_tensor_raises(self, fresh: None) -> None:
        with pytest.raises(JobError, match=r"the truth value of a int8\[4,6\] tensor is not known"):
            ask(lambda x: x in (x * 2, x))

    def test_outside_of_jobs_values_are_themselves(self, fresh: None) -> None:
        x, y = ask(lambda x: (x, x * 2))
        assert x == x and x != y and y in (x, y)


class TestScope:
    def test_devices(self, devices: int) -> None:
        def current(x: Any) -> Any:
            here = flow.current_scope().device_parallel_desc_symbol
            with flow.scope.placement("cpu", "0:0"):
                inner = flow.scope.current_scope().device_parallel_desc_symbol
            return here.device_tag, here.parallel_num, here.machine_id2device_id_list, here.parallel_conf, inner.parallel_num

        ids = list(range(devices))
        assert ask(current) == ("cpu", devices, {0: ids}, f"cpu[{'0-1' if devices == 2 else '0'}]", 1)
        with pytest.raises(JobError, match=r"current_scope at .* outside a job"):
            flow.current_scope()

    def test_views(self, on: Begin) -> None:
        on(2)
        per_device = []

        @flow.global_function()
        def job(x: Rows) -> tuple[tp.ListNumpy, tp.Numpy]:
            assert flow.scope.consistent_view_enabled() and not flow.scope.mirrored_view_enabled()
            with flow.scope.mirrored_view():
                assert flow.scope.mirrored_view_enabled()
                y = flow.cast_to_current_logical_view(x)
                per_device.append((y.is_dynamic, y.shape))
                y = y + 1
            return y, flow.cast_to_current_logical_view(y)

        listed, _ = job(X)
        assert per_device == [(False, (2, 6))]
        for each, rows in zip(listed, np.split(X, 2), strict=True):
            np.testing.assert_array_equal(each, rows + 1)

    def test_the_job(self, fresh: None) -> None:
        assert ask(lambda x: (flow.current_global_function_desc().job_name, flow.current_global_function_desc().IsTrainable())) == ("job", False)


class TestSmallNames:
    def test_element_types(self) -> None:
        assert flow.float32 in flow.dtypes() and flow.bool_ not in flow.dtypes()
        assert flow.convert_oneflow_dtype_to_numpy_dtype(flow.int8) is np.int8
        assert [np.dtype(flow.convert_oneflow_dtype_to_numpy_dtype(d)) for d in flow.dtypes()] == [d.numpy for d in flow.dtypes()]
        with pytest.raises(JobError, match="must be a type such as"):
            flow.convert_oneflow_dtype_to_numpy_dtype(np.float32)  # type: ignore[arg-type]

    @pytest.mark.parametrize("spelling", [flow.name_scope, flow.deprecated.variable_scope])
    def test_namespaces(self, fresh: None, capsys: pytest.CaptureFixture[str], spelling: Any) -> None:
        def name(x: Any) -> Any:
            with spelling("a"), flow.scope.namespace("b"):
                return flow.math.exp(x, name="e").op_name

        assert ask(name) == "a-b-e"
        assert "name_scope is deprecated; use scope.namespace" in capsys.readouterr().err

    @pytest.mark.parametrize(
        ("arguments", "message"),
        [
            (("cpu", None), "machine_device_ids must be a string such as .*, not None"),
            (("cpu", []), "or a list of such strings or of ranks, not ."),
            (("cpu", b"0:0"), "not b'0:0'"),
            ((0, "0:0"), "device_tag 0 is unknown"),
            (("cpu", "0:0-1", 2), "hierarchy must be a shape of the devices such as .2, 2.; got 2"),
            (("cpu", "0:0-1", [1.5]), "hierarchy must be a shape"),
            (("cpu", "0:0-1", "2"), "hierarchy must be a shape"),
        ],
    )
    def test_invalid_placements_raise(self, fresh: None, arguments: Any, message: str) -> None:
        with pytest.raises(PlacementError, match=message):
            flow.scope.placement(*arguments)

    def test_placements_and_views(self, fresh: None, capsys: pytest.CaptureFixture[str]) -> None:
        assert flow.fixed_placement is flow.device_prior_placement
        assert repr(flow.fixed_placement("cpu", "0:0", (1, 1))) == repr(flow.scope.placement("cpu", "0:0", (1, 1)))
        assert flow.distribute.consistent_strategy().view == "consistent" and flow.distribute.mirrored_strategy().view == "mirrored"
        assert flow.distribute.consistent_strategy_enabled() and not flow.distribute.mirrored_strategy_enabled()
        notices = capsys.readouterr().err
        assert notices.count("is the old name of") == 4 and notices.count("are deprecated; use scope.placement") == 1

    def test_workers_are_not_started(self, fresh: None, capsys: pytest.CaptureFixture[str]) -> None:
        flow.deprecated.init_worker(scp_binary=True, use_uuid=True)
        flow.deprecated.delete_worker()
        assert capsys.readouterr().err.count("mpiexec starts the processes") == 1

    def test_modules_count_their_calls(self) -> None:
        class Twice(flow.deprecated.nn.Module):
            def forward(self, x: int) -> int:
                return 2 * x

        twice = Twice()
        assert (twice(3), twice(4), twice.call_seq_no, twice.module_name) == (6, 8, 2, "Twice")
        with pytest.raises(NotImplementedError, match="Module does not define forward"):
            flow.deprecated.nn.Module("m")(1)
