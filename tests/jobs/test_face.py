"""Job functions as programs write them: what calls give back, names, variables, checkpoints, sessions and old spellings."""

import typing
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import jobflow as flow
import jobflow.typing as tp
from jobflow.errors import CheckpointError, JobError

X = np.linspace(-1, 1, 24, dtype=np.float32).reshape(4, 6)
Y = np.array([0, 1, 2, 0], np.int32)
Rows = tp.Numpy.Placeholder((4, 6))
Labels = tp.Numpy.Placeholder((4,), dtype=flow.int32)
Begin = Callable[[int], None]


def constant(rate: float) -> Any:
    return flow.optimizer.PiecewiseConstantScheduler([], [rate])


def sgd(rate: float = 0.5, momentum: float = 0.0, **options: Any) -> Any:
    return flow.optimizer.SGD(constant(rate), momentum=momentum, **options)


def values() -> dict[str, Any]:
    return {name: variable.numpy() for name, variable in flow.get_all_variables().items()}


def normal() -> Any:
    return flow.random_normal_initializer(stddev=0.3)


class TestResults:
    def test_numpy(self, devices: int) -> None:
        @flow.global_function()
        def job(x: Rows) -> tp.Numpy:
            return x * 2

        found = job(X)
        assert type(found) is np.ndarray and found.dtype == np.float32
        np.testing.assert_array_equal(found, X * 2)

    def test_results_of_two_calls_do_not_share_memory(self, devices: int) -> None:
        @flow.global_function()
        def job(x: Rows) -> tp.Numpy:
            return x * 2

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
        for found, add in zip([*two, *three.values()], (1, 2, 3, 4), strict=True):
            np.testing.assert_array_equal(found, X + np.float32(add))

    def test_builtin_containers(self, devices: int) -> None:
        @flow.global_function()
        def job(x: Rows) -> tuple[tp.Numpy, tp.ListNumpy]:
            return x, x + 1

        whole, listed = job(X)
        np.testing.assert_array_equal(whole, X)
        assert type(listed) is list
        np.testing.assert_array_equal(np.concatenate(listed), X + 1)

    @pytest.mark.parametrize("returned", [lambda x: [x, x], lambda x: (x,), lambda x: x, lambda x: (x, 3)])
    def test_a_container_must_be_as_annotated(self, devices: int, returned: Callable[[Any], Any]) -> None:
        @flow.global_function()
        def job(x: Rows) -> tuple[tp.Numpy, tp.Numpy]:
            return returned(x)

        with pytest.raises(JobError, match="job job"):
            job(X)

    def test_bundle(self, devices: int) -> None:
        @flow.global_function()
        def job(x: Rows) -> tp.Bundle[tp.Numpy]:
            return {"a": (x, [x + 1]), "b": x + 2}

        found = job(X)
        assert type(found["a"]) is tuple and type(found["a"][1]) is list
        np.testing.assert_array_equal(found["a"][1][0], X + 1)
        np.testing.assert_array_equal(found["b"], X + 2)

    def test_callback(self, devices: int) -> None:
        @flow.global_function()
        def job(x: Rows) -> tp.Callback[tuple[tp.Numpy, tp.Numpy]]:
            return x, x * 3

        seen: list[Any] = []
        for k in range(3):
            job(X + k)(seen.append)
        for k, (same, thrice) in enumerate(seen):
            np.testing.assert_array_equal(same, X + k)
            np.testing.assert_array_equal(thrice, (X + k) * np.float32(3))
        assert len(seen) == 3

    def test_future(self, devices: int) -> None:
        @flow.global_function()
        def job(x: Rows):  # type: ignore[no-untyped-def]
            return {"pair": (x, x * 2), "mean": flow.math.reduce_mean(x)}

        found = job(X).get()
        one, two = found["pair"]
        np.testing.assert_array_equal(one.numpy(), X)
        np.testing.assert_array_equal(np.array(two), X * 2)
        np.testing.assert_array_equal(two.ndarray(), X * 2)
        np.testing.assert_allclose(two + one, X * 3)
        assert two.mean() == (X * 2).mean() and len(two) == 4 and two[1, 2] == X[1, 2] * 2
        assert found["mean"].numpy().shape == (1,), "the legacy face has no tensors without axes"
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
        """A sum over the rows, which lie on several devices, is the sum of the devices' sums."""
        on(count)

        @flow.global_function()
        def job(x: Rows) -> tuple[tp.Numpy, tp.Numpy]:
            return flow.math.reduce_sum(x, axis=0), flow.matmul(x, x, transpose_a=True)

        total, product = job(X)
        np.testing.assert_allclose(total, X.sum(0), atol=1e-6)
        np.testing.assert_allclose(product, X.T @ X, rtol=1e-6)

    @pytest.mark.parametrize("count", [2, 3])
    def test_split_values_are_gathered(self, on: Begin, count: int) -> None:
        on(count)

        @flow.global_function()
        def job(x: Rows) -> tp.Numpy:
            return flow.parallel_cast(x, distribute=flow.distribute.split(1)) * 2

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
        for found, piece in zip(listed, pieces, strict=True):
            np.testing.assert_allclose(found, piece.sum(1), atol=1e-5)
        np.testing.assert_array_equal(whole, np.concatenate(pieces) + 1)

    def test_views_may_change_inside_a_job(self, on: Begin) -> None:
        on(2)

        @flow.global_function()
        def job(x: Rows) -> tuple[tp.ListNumpy, tp.Numpy]:
            with flow.scope.mirrored_view():
                mine = flow.math.reduce_sum(x, axis=0, keepdims=True)
            return mine, mine + 0

        listed, whole = job(X)
        found = np.concatenate(listed)
        assert found.shape == whole.shape and found.shape[1] == 6
        np.testing.assert_array_equal(found, whole)


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
            """What it does."""
            return x

        assert (documented.__name__, documented.__doc__) == ("documented", "What it does.")


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
        said = capsys.readouterr().err
        assert said.count("global_function(config) is the old form; write global_function(type, config)") == 1
        assert "default_distribute_strategy" in said

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


class TestNames:
    def test_layers_optimizers_and_the_train_step(self, devices: int) -> None:
        @flow.global_function(type="train")
        def train_job(x: tp.Numpy.Placeholder((4, 2, 6, 6))) -> tp.Numpy:
            with flow.scope.namespace("body"):
                x = flow.layers.conv2d(x, 3, 3, name="conv")
                with flow.scope.namespace("inner"):
                    x = flow.layers.batch_normalization(x, axis=1, name="bn")
            x = flow.layers.layer_norm(flow.reshape(x, (4, -1)), name="ln")
            x = flow.layers.prelu(x, name="slope")
            loss = flow.layers.dense(x, 5)
            flow.optimizer.Adam(constant(0.1)).minimize(loss)
            return loss

        train_job(np.ones((4, 2, 6, 6), np.float32))
        trained = {
            "body-conv-weight": (3, 2, 3, 3),
            "body-conv-bias": (3,),
            "body-inner-bn-gamma": (3,),
            "body-inner-bn-beta": (3,),
            "ln-gamma": (48,),
            "ln-beta": (48,),
            "slope-alpha": (48,),
            "Dense-weight": (5, 48),
            "Dense-bias": (5,),
        }
        expected = {
            **trained,
            "body-inner-bn-moving_mean": (3,),
            "body-inner-bn-moving_variance": (3,),
            **{f"{name}-{slot}": shape for name, shape in trained.items() for slot in ("m", "v")},
            "System-Train-TrainStep-train_job": (1,),
        }
        assert {name: variable.numpy().shape for name, variable in flow.get_all_variables().items()} == expected
        step = flow.get_all_variables()["System-Train-TrainStep-train_job"]
        assert (step.numpy().dtype, step.numpy().tolist()) == (np.int64, [1])

    @pytest.mark.parametrize(
        ("make", "slots"),
        [
            (lambda: sgd(momentum=0.9), {"momentum"}),
            (lambda: sgd(), set()),
            (lambda: flow.optimizer.RMSProp(constant(0.1)), {"mean_square"}),
            (lambda: flow.optimizer.RMSProp(constant(0.1), centered=True), {"mean_square", "mean_gradient"}),
            (lambda: flow.optimizer.LAMB(constant(0.1)), {"m", "v", "beta1_t", "beta2_t"}),
            (lambda: flow.optimizer.LARS(constant(0.1)), {"momentum"}),
        ],
    )
    def test_slots(self, devices: int, make: Callable[[], Any], slots: set[str]) -> None:
        @flow.global_function(type="train")
        def job(x: Rows) -> tp.Numpy:
            loss = flow.layers.dense(x, 1, use_bias=False, name="fc")
            make().minimize(loss)
            return loss

        job(X)
        assert set(values()) == {"fc-weight", "System-Train-TrainStep-job", *(f"fc-weight-{slot}" for slot in slots)}


class TestVariables:
    def test_a_returned_variable_is_as_it_was_before_the_update(self, devices: int) -> None:
        @flow.global_function(type="train")
        def job(x: Rows) -> tuple[tp.Numpy, tp.Numpy, tp.Numpy]:
            w = flow.get_variable("w", (6,), initializer=flow.constant_initializer(1.0))
            loss = flow.math.reduce_sum(x * w, axis=1)
            sgd(1.0).minimize(loss)
            return w, w * 2, loss

        step = X.mean(0)
        for k in range(3):
            w, twice, loss = job(X)
            np.testing.assert_allclose(w, 1 - k * step, atol=1e-6)
            np.testing.assert_allclose(twice, 2 * w)
            np.testing.assert_allclose(loss, X @ w, atol=1e-5)
        np.testing.assert_allclose(values()["w"], 1 - 3 * step, atol=1e-6)

    def test_predict_jobs_see_what_train_jobs_learned(self, devices: int) -> None:
        def model(x: Any) -> Any:
            return flow.layers.dense(x, 3, kernel_initializer=normal(), name="fc")

        @flow.global_function(type="train")
        def train_job(x: Rows, y: Labels) -> tp.Numpy:
            loss = flow.nn.sparse_softmax_cross_entropy_with_logits(y, model(x))
            sgd().minimize(loss)
            return loss

        @flow.global_function()
        def predict_job(x: Rows) -> tp.Numpy:
            return model(x)

        first = predict_job(X)
        train_job(X, Y)
        second = predict_job(X)
        assert not np.allclose(first, second)
        now = values()
        np.testing.assert_allclose(second, X @ now["fc-weight"].T + now["fc-bias"], rtol=1e-5, atol=1e-6)
        np.testing.assert_array_equal(predict_job(X), second)
        assert list(now) == ["fc-weight", "fc-bias", "System-Train-TrainStep-train_job"]

    def test_variables_that_are_not_trained(self, devices: int) -> None:
        """`trainable` is the wish of a job, not a property of the variable."""

        def model(x: Any, first: bool) -> Any:
            hidden = flow.layers.dense(x, 3, kernel_initializer=normal(), trainable=first, name="first")
            return flow.layers.dense(hidden, 1, kernel_initializer=normal(), trainable=not first, name="second")

        @flow.global_function(type="train")
        def train_first(x: Rows) -> tp.Numpy:
            loss = model(x, True)
            sgd().minimize(loss)
            return loss

        @flow.global_function(type="train")
        def train_second(x: Rows) -> tp.Numpy:
            loss = model(x, False)
            sgd().minimize(loss)
            return loss

        for job, changed in ((train_first, "first"), (train_second, "second")):
            before = values()
            job(X)
            after = values()
            moved = {name for name in before if not np.array_equal(before[name], after[name])}
            assert {name.partition("-")[0] for name in moved} == {changed, "System"}

    def test_the_first_values_do_not_depend_on_the_devices(self, on: Begin) -> None:
        found = []
        for count in (1, 2, 3):
            on(count)

            @flow.global_function()
            def job(x: Rows) -> tp.Numpy:
                hidden = flow.layers.dense(x, 7, kernel_initializer=normal(), model_distribute=flow.distribute.split(0), name="a")
                return flow.layers.dense(hidden, 2, kernel_initializer=flow.xavier_uniform_initializer(), name="b")

            found.append(values())
        for other in found[1:]:
            assert list(other) == list(found[0])
            for name, value in other.items():
                np.testing.assert_array_equal(value, found[0][name])

    def test_load_variables(self, devices: int) -> None:
        @flow.global_function()
        def job(x: Rows) -> tp.Numpy:
            return flow.layers.dense(x, 3, kernel_initializer=normal(), model_distribute=flow.distribute.split(0), name="fc")

        weight = np.arange(18, dtype=np.float32).reshape(3, 6)
        flow.load_variables({"fc-weight": weight, "of another model": np.zeros(3)})
        np.testing.assert_allclose(job(X), X @ weight.T, rtol=1e-5, atol=1e-5)
        flow.load_variables({"fc-bias": np.float32([1, 2, 3])})
        np.testing.assert_allclose(job(X), X @ weight.T + [1, 2, 3], rtol=1e-5, atol=1e-5)
        flow.load_variables(flow.get_all_variables())
        np.testing.assert_array_equal(values()["fc-weight"], weight)

    @pytest.mark.parametrize(
        ("given", "text"),
        [
            ({"fc-weight": np.zeros((6, 3), np.float32)}, r'variable "fc-weight" is float32\[3,6\] but the value is float32\[6, 3\]'),
            ({"fc-bias": np.ones(3, np.float32), "fc-weight": np.zeros((3, 6))}, r'variable "fc-weight" is float32\[3,6\] but the value is float64'),
            ({"fc-bias": np.ones(3, np.float32), "fc-wieght": np.zeros(3)}, r'there is no variable "fc-wieght"; did you mean "fc-weight"\?'),
        ],
    )
    def test_load_variables_all_or_none(self, devices: int, given: dict[str, Any], text: str) -> None:
        @flow.global_function()
        def job(x: Rows) -> tp.Numpy:
            return flow.layers.dense(x, 3, kernel_initializer=normal(), name="fc")

        before = values()
        with pytest.raises(CheckpointError, match=text):
            flow.load_variables(given, ignore_mismatch=False)
        after = values()
        for name, value in before.items():
            np.testing.assert_array_equal(after[name], value)
        assert job(X).shape == (4, 3)


class TestTraining:
    """One step of known arithmetic."""

    def step(self, optimizer: Any, losses: Callable[[Any], Any], **options: Any) -> Any:
        """w after one step; it begins as 1, 2, ..., 6."""
        first = np.arange(1, 7, dtype=np.float32)

        @flow.global_function(type="train")
        def job(x: Rows) -> tp.Numpy:
            w = flow.get_variable("w", (6,), initializer=flow.zeros_initializer(), **options)
            optimizer.minimize(losses(x * w))
            return w

        flow.load_variables({"w": first})
        np.testing.assert_array_equal(job(X), first)
        return values()["w"] - first

    def test_a_loss_per_sample_counts_as_their_mean(self, devices: int) -> None:
        np.testing.assert_allclose(self.step(sgd(), lambda x: flow.math.reduce_sum(x, axis=1)), -0.5 * X.mean(0), atol=1e-6)

    def test_every_element_of_a_loss_counts(self, devices: int) -> None:
        np.testing.assert_allclose(self.step(sgd(), lambda x: x), -0.5 * X.sum(0) / 24, atol=1e-6)

    def test_a_loss_of_one_number(self, devices: int) -> None:
        np.testing.assert_allclose(self.step(sgd(), lambda x: flow.math.reduce_sum(x)), -0.5 * X.sum(0), atol=1e-6)

    def test_losses_add_up(self, devices: int) -> None:
        def losses(x: Any) -> Any:
            return [flow.math.reduce_sum(x, axis=1), flow.math.reduce_sum(x * 3, axis=1)]

        np.testing.assert_allclose(self.step(sgd(), losses), -2 * X.mean(0), atol=1e-6)

    def test_regularizers_add_to_the_gradient(self, devices: int) -> None:
        w = np.arange(1, 7)
        found = self.step(sgd(), lambda x: flow.math.reduce_sum(x, axis=1), regularizer=flow.regularizers.l1_l2(0.1, 0.01))
        np.testing.assert_allclose(found, -0.5 * (X.mean(0) + 0.1 + 0.01 * w), atol=1e-6)

    def test_clipping_by_global_norm(self, devices: int) -> None:
        clip = flow.optimizer.grad_clipping.by_global_norm(0.1)
        gradient = X.mean(0)
        found = self.step(sgd(grad_clipping=clip), lambda x: flow.math.reduce_sum(x, axis=1))
        np.testing.assert_allclose(found, -0.5 * gradient * 0.1 / np.linalg.norm(gradient), atol=1e-6)

    def test_loss_scale_changes_nothing(self, devices: int) -> None:
        found = self.step(sgd(loss_scale_factor=1024.0), lambda x: flow.math.reduce_sum(x, axis=1))
        np.testing.assert_allclose(found, -0.5 * X.mean(0), atol=1e-6)

    def test_schedules_count_the_runs_of_their_job(self, devices: int) -> None:
        warmup = flow.optimizer.warmup.linear(2, 0.5)
        schedule = flow.optimizer.PiecewiseConstantScheduler([3], [1.0, 0.25], warmup=warmup)

        @flow.global_function(type="train")
        def job(x: Rows) -> tp.Numpy:
            w = flow.get_variable("w", (1,), initializer=flow.zeros_initializer())
            flow.optimizer.SGD(schedule, momentum=0).minimize(flow.math.reduce_sum(x * 0 + w, axis=1) / 6)
            return w

        seen = [float(job(X).item()) for _ in range(7)]
        np.testing.assert_allclose(-np.diff(seen), [0.5, 0.75, 1, 1, 0.25, 0.25], rtol=1e-6)


class TestDropout:
    def test_other_elements_at_every_run_and_none_in_predict_jobs(self, devices: int) -> None:
        @flow.global_function(type="train")
        def train_job(x: tp.Numpy.Placeholder((40, 50))) -> tp.Numpy:
            w = flow.get_variable("w", (50,), initializer=flow.ones_initializer(), trainable=True)
            dropped = flow.nn.dropout(x * w, rate=0.25)
            sgd(0.0).minimize(dropped)
            return dropped

        @flow.global_function()
        def predict_job(x: tp.Numpy.Placeholder((40, 50))) -> tp.Numpy:
            return flow.nn.dropout(x, rate=0.25)

        ones = np.ones((40, 50), np.float32)
        first, second = train_job(ones), train_job(ones)
        for found in (first, second):
            assert set(np.unique(found)) == {np.float32(0), np.float32(1 / 0.75)}
            assert abs(found.mean() - 1) < 0.06
        assert (first != second).mean() > 0.2
        np.testing.assert_array_equal(predict_job(ones), ones)


# -------------------------------------------------------------------- checkpoints


def declare_net(rate: float = 0.1) -> Callable[..., Any]:
    """A train job with all that a checkpoint must carry: a split layer, slots, moving statistics, a schedule and dropout, in float64."""

    @flow.global_function(type="train")
    def train_job(x: tp.Numpy.Placeholder((4, 6), dtype=flow.float64), y: Labels) -> tp.Numpy:
        hidden = flow.layers.dense(x, 8, kernel_initializer=normal(), name="hidden")
        hidden = flow.math.tanh(flow.layers.batch_normalization(hidden, axis=1, momentum=0.9, name="bn"))
        logits = flow.layers.dense(
            flow.nn.dropout(hidden, 0.3), 3, kernel_initializer=normal(), model_distribute=flow.distribute.split(0), name="out"
        )
        loss = flow.nn.sparse_softmax_cross_entropy_with_logits(y, logits)
        flow.optimizer.Adam(flow.optimizer.CosineScheduler(rate, 12), do_bias_correction=True).minimize(loss)
        return loss

    return train_job


class TestCheckPoint:
    @pytest.mark.parametrize(("before", "after"), [(1, 1), (2, 2), (1, 2), (3, 1), (2, 4)])
    def test_training_goes_on_where_it_was(self, on: Begin, tmp_path: Path, before: int, after: int) -> None:
        on(1)
        job = declare_net()
        expected = [job(X, Y).mean() for _ in range(10)]
        at_the_end = values()

        on(before)
        job = declare_net()
        check_point = flow.train.CheckPoint()
        check_point.init()
        found = [job(X, Y).mean() for _ in range(5)]
        check_point.save(str(tmp_path / "five"))
        assert (tmp_path / "five" / "snapshot_done").exists()

        on(after)
        job = declare_net()
        flow.train.CheckPoint().load(str(tmp_path / "five"))
        found += [job(X, Y).mean() for _ in range(5)]
        np.testing.assert_allclose(found, expected, rtol=1e-9)
        now = values()
        assert list(now) == list(at_the_end)
        for name, value in now.items():
            np.testing.assert_allclose(value, at_the_end[name], rtol=1e-9, atol=1e-9, err_msg=name)

    def test_loading_in_the_middle_takes_back_what_came_after(self, devices: int, tmp_path: Path) -> None:
        job = declare_net()
        check_point = flow.train.CheckPoint()
        for _ in range(2):
            job(X, Y)
        check_point.save(str(tmp_path / "two"))
        once = [job(X, Y).mean() for _ in range(3)]
        check_point.load(str(tmp_path / "two"))
        again = [job(X, Y).mean() for _ in range(3)]
        assert once == again

    def test_saving_twice_to_one_place_is_refused(self, devices: int, tmp_path: Path) -> None:
        job = declare_net()
        check_point = flow.train.CheckPoint()
        check_point.save(str(tmp_path / "one"))
        with pytest.raises(CheckpointError, match="one"):
            check_point.save(str(tmp_path / "one"))
        assert job(X, Y).shape == (4,)

    def test_init_gives_first_values_again_only_in_the_old_way(self, on: Begin, capsys: pytest.CaptureFixture[str]) -> None:
        for legacy in (False, True):
            on(2)
            flow.config.enable_legacy_model_io(legacy)
            job = declare_net()
            check_point = flow.train.CheckPoint()
            check_point.init()
            first = values()
            job(X, Y)
            check_point.init()
            same = all(np.array_equal(value, first[name]) for name, value in values().items())
            assert same is legacy

    def test_snapshots_by_time(self, devices: int, tmp_path: Path) -> None:
        job = declare_net()
        manager = flow.train.SimpleCheckPointManager(str(tmp_path / "all"), prefix="run_")
        assert manager.latest_checkpoint() is None
        manager.initialize_or_restore()
        first = values()
        job(X, Y)
        manager.initialize_or_restore()
        assert all(np.array_equal(value, first[name]) for name, value in values().items())
        job(X, Y)
        manager.save()
        listed = manager.list_checkpoints()
        assert len(listed) == 2 and listed == sorted(listed) and manager.latest_checkpoint() == listed[-1]
        found = flow.checkpoint.get(str(tmp_path / "all" / listed[-1]))
        for name, value in values().items():
            np.testing.assert_array_equal(found[name].numpy(), value)

    def test_saving_some_variables(self, devices: int, tmp_path: Path) -> None:
        declare_net()
        chosen = {name: variable for name, variable in flow.get_all_variables().items() if name.startswith("out-")}
        flow.checkpoint.save(str(tmp_path / "some"), chosen)
        assert set(flow.checkpoint.get(str(tmp_path / "some"))) == set(chosen)


# -------------------------------------------------------------------- sessions


class TestSessions:
    def test_a_later_job_of_the_same_name_takes_the_place(self, devices: int) -> None:
        def declare(factor: int) -> Callable[..., Any]:
            @flow.global_function()
            def job(x: Rows) -> tp.Numpy:
                return x * factor

            return job

        first, second = declare(2), declare(3)
        np.testing.assert_array_equal(second(X), X * 3)
        third = declare(4)  # after the first call, as in a notebook
        np.testing.assert_array_equal(third(X), X * 4)
        np.testing.assert_array_equal(second(X), X * 3)
        np.testing.assert_array_equal(first(X), X * 2)

    def test_jobs_declared_after_the_first_call_share_variables(self, devices: int) -> None:
        def model(x: Any) -> Any:
            return flow.layers.dense(x, 2, kernel_initializer=normal(), name="fc")

        @flow.global_function()
        def early(x: Rows) -> tp.Numpy:
            return model(x)

        found = early(X)

        @flow.global_function()
        def late(x: Rows) -> tp.Numpy:
            return model(x) + flow.get_variable("more", (2,), initializer=flow.constant_initializer(5))

        np.testing.assert_allclose(late(X), found + 5, rtol=1e-6)
        assert list(values()) == ["fc-weight", "fc-bias", "more"]

    def test_one_name_is_one_tensor(self, devices: int) -> None:
        @flow.global_function()
        def small(x: Rows) -> tp.Numpy:
            return x + flow.get_variable("w", (6,), initializer=flow.zeros_initializer())

        small(X)

        @flow.global_function()
        def large(x: Rows) -> tp.Numpy:
            return x + flow.get_variable("w", (4, 6), initializer=flow.zeros_initializer())

        with pytest.raises(JobError, match=r'variable "w" is float32\[6\] in another place but float32\[4,6\] here'):
            large(X)
        np.testing.assert_array_equal(small(X), X)

    def test_clearing_forgets_jobs_variables_and_settings(self, fresh: None) -> None:
        flow.config.cpu_device_num(2)
        job = declare_net()
        job(X, Y)
        assert flow.config.cpu_device_num(1) is False
        flow.clear_default_session()
        with pytest.raises(JobError, match="there is no job yet"):
            flow.get_all_variables()
        assert flow.config.cpu_device_num(3) is True
        first = declare_net()(X, Y)
        np.testing.assert_allclose(first.mean(), 1.09, atol=0.6)
        assert values()["System-Train-TrainStep-train_job"].tolist() == [1]

    def test_settings_after_the_start_change_nothing_and_say_so(self, devices: int, capsys: pytest.CaptureFixture[str]) -> None:
        job = declare_net()
        assert flow.config.gpu_device_num(0) is True
        job(X, Y)
        assert flow.config.cpu_device_num(7) is False
        assert flow.config.enable_debug_mode(True) is False
        assert flow.env.client("multi") is False
        said = capsys.readouterr().err
        for option in ("config.cpu_device_num(7)", "config.enable_debug_mode(True)", "env.client('multi')"):
            assert said.count(option) == 1 and "comes too late and changes nothing: call it before the first job runs" in said
        assert job(X, Y).shape == (4,)

    def test_the_seed_changes_everything_random(self, fresh: None) -> None:
        found = []
        for seed in (0, 1, 1):
            flow.clear_default_session()
            flow.config.seed(seed)
            job = declare_net()
            found.append([job(X, Y).mean() for _ in range(3)])
        assert found[1] == found[2] != found[0]

    def test_sync_and_many_shapes(self, on: Begin) -> None:
        """Lists of other lengths are other programs; the oldest are forgotten, and come back."""
        on(2)
        config = flow.function_config()
        config.default_logical_view(flow.scope.mirrored_view())

        @flow.global_function(function_config=config)
        def job(x: tp.ListNumpy.Placeholder((40, 6))) -> tp.ListNumpy:
            return x * 2

        rows = np.ones((40, 6), np.float32)
        for n in [*range(1, 25), 1, 2]:
            first, second = job([rows[:n], rows[: 41 - n]])
            flow.sync_default_session()
            assert (first.shape, second.shape) == ((n, 6), (41 - n, 6)) and (first == 2).all() and (second == 2).all()
