"""Arguments and results of job calls, and the older declarations."""

import typing
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from parts import Begin, Labels, Rows, X, Y, declare, normal, sgd, values

import jobflow as flow
import jobflow.typing as tp
from jobflow.core.errors import JobError


class TestResults:
    def test_numpy(self, devices: int) -> None:
        job = declare(lambda x: x * 2, Rows)
        result = job(X)
        assert type(result) is np.ndarray and result.dtype == np.float32
        np.testing.assert_array_equal(result, X * 2)

    def test_results_of_two_calls_do_not_share_memory(self, devices: int) -> None:
        job = declare(lambda x: x * 2, Rows)
        first = job(X)
        second = job(X + 1)
        np.testing.assert_array_equal(first, X * 2)
        second[:] = 0
        np.testing.assert_array_equal(job(X), X * 2)

    def test_none(self, devices: int) -> None:
        @flow.global_function(type="train")
        def job(x: Rows) -> None:
            sgd().minimize(flow.layers.dense(x, 1, kernel_initializer=normal(), name="fc"))

        assert job(X) is None
        before = values()["fc-bias"]
        assert job(X) is None
        np.testing.assert_allclose(values()["fc-bias"], before - 0.5, rtol=1e-6)

    def test_none_must_return_nothing(self, devices: int) -> None:
        @flow.global_function()
        def job(x: Rows) -> None:
            return x  # type: ignore[return-value]

        with pytest.raises(JobError, match="annotated None"):
            job(X)

    def test_containers(self, devices: int) -> None:
        @flow.global_function()
        def job(x: Rows) -> typing.Tuple[tp.Numpy, typing.List[tp.Numpy], typing.Dict[str, tp.Numpy]]:  # noqa: UP006 - as programs spell it
            return x, [x + 1, x + 2], {"three": x + 3, "four": x + 4}

        one, two, three = job(X)
        np.testing.assert_array_equal(one, X)
        assert type(two) is list and type(three) is dict and list(three) == ["three", "four"]
        for result, add in zip([*two, *three.values()], (1, 2, 3, 4), strict=True):
            np.testing.assert_array_equal(result, X + np.float32(add))

    def test_builtin_containers(self, devices: int) -> None:
        job = declare(lambda x: (x, x + 1), Rows, gives=tuple[tp.Numpy, tp.ListNumpy])
        whole, listed = job(X)
        np.testing.assert_array_equal(whole, X)
        assert type(listed) is list
        np.testing.assert_array_equal(np.concatenate(listed), X + 1)

    @pytest.mark.parametrize("returned", [lambda x: [x, x], lambda x: (x,), lambda x: x, lambda x: (x, 3)])
    def test_a_container_must_be_as_annotated(self, devices: int, returned: Callable[[Any], Any]) -> None:
        job = declare(returned, Rows, gives=tuple[tp.Numpy, tp.Numpy])
        with pytest.raises(JobError, match="job job"):
            job(X)

    def test_bundle(self, devices: int) -> None:
        job = declare(lambda x: {"a": (x, [x + 1]), "b": x + 2}, Rows, gives=tp.Bundle[tp.Numpy])
        result = job(X)
        assert type(result["a"]) is tuple and type(result["a"][1]) is list
        np.testing.assert_array_equal(result["a"][1][0], X + 1)
        np.testing.assert_array_equal(result["b"], X + 2)

    def test_callback(self, devices: int) -> None:
        job = declare(lambda x: (x, x * 3), Rows, gives=tp.Callback[tuple[tp.Numpy, tp.Numpy]])
        results: list[Any] = []
        for k in range(3):
            job(X + k)(results.append)
        for k, (same, thrice) in enumerate(results):
            np.testing.assert_array_equal(same, X + k)
            np.testing.assert_array_equal(thrice, (X + k) * np.float32(3))
        assert len(results) == 3

    def test_future(self, devices: int) -> None:
        @flow.global_function()
        def job(x: Rows):  # type: ignore[no-untyped-def]
            return {"pair": (x, x * 2), "mean": flow.math.reduce_mean(x)}

        results = job(X).get()
        one, two = results["pair"]
        np.testing.assert_array_equal(one.numpy(), X)
        np.testing.assert_array_equal(np.array(two), X * 2)
        np.testing.assert_array_equal(two.ndarray(), X * 2)
        np.testing.assert_allclose(two + one, X * 3)
        assert two.mean() == (X * 2).mean() and len(two) == 4 and two[1, 2] == X[1, 2] * 2
        assert results["mean"].numpy().shape == (1,), "the legacy face has no tensors without axes"
        assert isinstance(one == one, bool), "comparison is that of the object"
        handed: list[Any] = []
        job(X).async_get(handed.append)
        np.testing.assert_array_equal(handed[0]["pair"][0].numpy(), X)

    def test_no_annotation_and_no_result(self, devices: int) -> None:
        @flow.global_function()
        def job(x: Rows):  # type: ignore[no-untyped-def]
            flow.nn.relu(x)

        assert job(X) is None

    def test_an_argument_and_one_tensor_twice(self, devices: int) -> None:
        @flow.global_function()
        def job(x: Rows) -> tuple[tp.Numpy, tp.Numpy, tp.Numpy]:
            y = x + 1
            return x, y, y

        one, two, three = job(X)
        np.testing.assert_array_equal(one, X)
        np.testing.assert_array_equal(two, X + 1)
        np.testing.assert_array_equal(three, X + 1)

    @pytest.mark.parametrize("count", [1, 2, 3])
    def test_partial_values_are_summed(self, on: Begin, count: int) -> None:
        """Sum over rows on several devices: the result is the sum of the devices' sums."""
        on(count)
        job = declare(lambda x: (flow.math.reduce_sum(x, axis=0), flow.matmul(x, x, transpose_a=True)), Rows, gives=tuple[tp.Numpy, tp.Numpy])
        total, product = job(X)
        np.testing.assert_allclose(total, X.sum(0), atol=1e-6)
        np.testing.assert_allclose(product, X.T @ X, rtol=1e-6)

    @pytest.mark.parametrize("count", [2, 3])
    def test_split_values_are_gathered(self, on: Begin, count: int) -> None:
        on(count)
        job = declare(lambda x: flow.parallel_cast(x, distribute=flow.distribute.split(1)) * 2, Rows)
        np.testing.assert_array_equal(job(X), X * 2)

    @pytest.mark.parametrize("count", [1, 2, 3])
    def test_mirrored_results_are_lists_with_one_array_per_device(self, on: Begin, count: int) -> None:
        on(count)
        config = flow.function_config()
        config.default_logical_view(flow.scope.mirrored_view())

        @flow.global_function(function_config=config)
        def job(x: tp.ListNumpy.Placeholder((4, 6))) -> tuple[tp.ListNumpy, tp.Numpy]:
            return flow.math.reduce_sum(x, axis=1), x + 1

        pieces = [X[: i + 1] + i for i in range(count)]
        listed, whole = job(pieces)
        assert len(listed) == count
        for result, piece in zip(listed, pieces, strict=True):
            np.testing.assert_allclose(result, piece.sum(1), atol=1e-5)
        np.testing.assert_array_equal(whole, np.concatenate(pieces) + 1)

    def test_views_may_change_inside_a_job(self, on: Begin) -> None:
        on(2)

        @flow.global_function()
        def job(x: Rows) -> tuple[tp.ListNumpy, tp.Numpy]:
            with flow.scope.mirrored_view():
                mine = flow.math.reduce_sum(x, axis=0, keepdims=True)
            return mine, mine + 0

        listed, whole = job(X)
        result = np.concatenate(listed)
        assert result.shape == whole.shape and result.shape[1] == 6
        np.testing.assert_array_equal(result, whole)


class TestArguments:
    def test_nested_tuples(self, devices: int) -> None:
        @flow.global_function()
        def job(pair: typing.Tuple[Rows, Labels], more: Rows) -> tp.Numpy:  # type: ignore[valid-type]  # noqa: UP006
            x, y = pair
            return x + more + flow.reshape(flow.cast(y, flow.float), (4, 1))

        np.testing.assert_allclose(job((X, Y), X), 2 * X + Y[:, None], rtol=1e-6)
        np.testing.assert_allclose(job([X, Y], X), 2 * X + Y[:, None], rtol=1e-6)

    def test_no_arguments(self, devices: int) -> None:
        @flow.global_function()
        def job() -> tp.Numpy:
            return flow.constant(3.0, shape=(2, 3), dtype=flow.float)

        np.testing.assert_array_equal(job(), np.full((2, 3), 3, np.float32))

    def test_old_definitions_as_default_values(self, devices: int) -> None:
        @flow.global_function()
        def job(x=flow.FixedTensorDef((4, 6)), y=flow.FixedTensorDef((4,), dtype=flow.int32)):  # type: ignore[no-untyped-def]  # noqa: B008
            return x + flow.reshape(flow.cast(y, flow.float), (4, 1))

        np.testing.assert_allclose(job(X, Y).get().numpy(), X + Y[:, None], rtol=1e-6)

    def test_old_mirrored_definitions(self, on: Begin) -> None:
        on(2)

        @flow.global_function()
        def job(x=flow.MirroredTensorDef((4, 6))):  # type: ignore[no-untyped-def]  # noqa: B008
            return x * 2

        first, second = job([X, X[:1]]).get().numpy_list()
        np.testing.assert_array_equal(first, X * 2)
        np.testing.assert_array_equal(second, X[:1] * 2)

    def test_a_job_keeps_its_name_and_documentation(self, fresh: None) -> None:
        @flow.global_function()
        def documented(x: Rows) -> tp.Numpy:
            """Doubles its argument."""
            return x

        assert (documented.__name__, documented.__doc__) == ("documented", "Doubles its argument.")


class TestOldSpellings:
    @pytest.mark.parametrize("trains", [True, False])
    def test_configuration_as_first_argument(self, devices: int, trains: bool, capsys: pytest.CaptureFixture[str]) -> None:
        config = flow.FunctionConfig()
        config.default_distribute_strategy(flow.scope.consistent_view())
        if trains:
            config.train.primary_lr(0.5)
            config.train.model_update_conf({"naive_conf": {}})

        @flow.global_function(config)
        def job(x: Rows) -> tp.Numpy:
            loss = flow.layers.dense(x, 1, kernel_initializer=normal(), name="fc")
            if trains:
                flow.losses.add_loss(loss)
            return loss

        job(X)
        assert values()["fc-bias"].tolist() == ([-0.5] if trains else [0.0])
        message = capsys.readouterr().err
        assert message.count("global_function(config) is deprecated; write global_function(type, config)") == 1
        assert "default_distribute_strategy" in message

    def test_one_configuration_for_two_jobs(self, devices: int) -> None:
        config = flow.function_config()
        config.default_data_type(flow.float64)

        @flow.global_function(type="train", function_config=config)
        def train_job(x: tp.Numpy.Placeholder((4, 6), dtype=flow.float64)) -> tp.Numpy:
            loss = flow.layers.dense(x, 1, name="fc")
            sgd().minimize(loss)
            return loss

        config.default_data_type(flow.float)  # a job has a copy

        @flow.global_function(function_config=config)
        def predict_job(x: tp.Numpy.Placeholder((4, 6), dtype=flow.float64)) -> tp.Numpy:
            return flow.layers.dense(x, 1, name="fc")

        train_job(X)
        assert predict_job(X).dtype == np.float64
        np.testing.assert_allclose(predict_job(X), X @ values()["fc-weight"].T - 0.5, rtol=1e-9)
