"""Variables of jobs: names, updates, and readers."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from parts import Begin, Labels, Rows, X, Y, constant, declare, normal, sgd, values

import jobflow as flow
import jobflow.typing as tp
from jobflow.core.errors import ArgumentError, CheckpointError, JobError


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
    def test_a_returned_variable_has_its_value_before_the_update(self, devices: int) -> None:
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

    def test_predict_jobs_read_trained_variables(self, devices: int) -> None:
        def model(x: Any) -> Any:
            return flow.layers.dense(x, 3, kernel_initializer=normal(), name="fc")

        @flow.global_function(type="train")
        def train_job(x: Rows, y: Labels) -> tp.Numpy:
            loss = flow.nn.sparse_softmax_cross_entropy_with_logits(y, model(x))
            sgd().minimize(loss)
            return loss

        predict_job = declare(model, Rows, name="predict_job")
        first = predict_job(X)
        train_job(X, Y)
        second = predict_job(X)
        assert not np.allclose(first, second)
        now = values()
        np.testing.assert_allclose(second, X @ now["fc-weight"].T + now["fc-bias"], rtol=1e-5, atol=1e-6)
        np.testing.assert_array_equal(predict_job(X), second)
        assert list(now) == ["fc-weight", "fc-bias", "System-Train-TrainStep-train_job"]

    def test_variables_that_are_not_trained(self, devices: int) -> None:
        """`trainable` is an option of a job, not a property of the variable."""

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
        variables = []
        for count in (1, 2, 3):
            on(count)

            @flow.global_function()
            def job(x: Rows) -> tp.Numpy:
                hidden = flow.layers.dense(x, 7, kernel_initializer=normal(), model_distribute=flow.distribute.split(0), name="a")
                return flow.layers.dense(hidden, 2, kernel_initializer=flow.xavier_uniform_initializer(), name="b")

            variables.append(values())
        for other in variables[1:]:
            assert list(other) == list(variables[0])
            for name, value in other.items():
                np.testing.assert_array_equal(value, variables[0][name])

    def test_values_of_another_model_print_a_notice_and_are_skipped(self, devices: int, capsys: pytest.CaptureFixture[str]) -> None:
        declare(lambda x: flow.layers.dense(x, 3, kernel_initializer=flow.ones_initializer(), name="fc"), Rows)
        flow.load_variables({"of another model": np.zeros(3)})
        assert (values()["fc-weight"] == 1).all()
        assert '0 of 1 values loaded; no variable "of another model"' in capsys.readouterr().err

    def test_load_variables(self, devices: int) -> None:
        job = declare(lambda x: flow.layers.dense(x, 3, kernel_initializer=normal(), model_distribute=flow.distribute.split(0), name="fc"), Rows)
        weight = np.arange(18, dtype=np.float32).reshape(3, 6)
        flow.load_variables({"fc-weight": weight, "of another model": np.zeros(3)})
        np.testing.assert_allclose(job(X), X @ weight.T, rtol=1e-5, atol=1e-5)
        flow.load_variables({"fc-bias": np.float32([1, 2, 3])})
        np.testing.assert_allclose(job(X), X @ weight.T + [1, 2, 3], rtol=1e-5, atol=1e-5)
        flow.load_variables(flow.get_all_variables())
        np.testing.assert_array_equal(values()["fc-weight"], weight)

    @pytest.mark.parametrize(
        ("variables", "text"),
        [
            ({"fc-weight": np.zeros((6, 3), np.float32)}, r'variable "fc-weight" is float32\[3,6\] but the value is float32\[6, 3\]'),
            ({"fc-bias": np.ones(3, np.float32), "fc-weight": np.zeros((3, 6))}, r'variable "fc-weight" is float32\[3,6\] but the value is float64'),
            ({"fc-bias": np.ones(3, np.float32), "fc-wieght": np.zeros(3)}, r'the session has no variable "fc-wieght"; did you mean "fc-weight"\?'),
        ],
    )
    def test_load_variables_all_or_none(self, devices: int, variables: dict[str, Any], text: str) -> None:
        job = declare(lambda x: flow.layers.dense(x, 3, kernel_initializer=normal(), name="fc"), Rows)
        before = values()
        with pytest.raises(CheckpointError, match=text):
            flow.load_variables(variables, ignore_mismatch=False)
        after = values()
        for name, value in before.items():
            np.testing.assert_array_equal(after[name], value)
        assert job(X).shape == (4, 3)


class TestTraining:
    """One training step with a known result."""

    def step(self, optimizer: Any, losses: Callable[[Any], Any], **options: Any) -> Any:
        """Return w after one step; its initial value is 1, 2, ..., 6."""
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
        weights = self.step(sgd(), lambda x: flow.math.reduce_sum(x, axis=1), regularizer=flow.regularizers.l1_l2(0.1, 0.01))
        np.testing.assert_allclose(weights, -0.5 * (X.mean(0) + 0.1 + 0.01 * w), atol=1e-6)

    def test_clipping_by_global_norm(self, devices: int) -> None:
        clip = flow.optimizer.grad_clipping.by_global_norm(0.1)
        gradient = X.mean(0)
        weights = self.step(sgd(grad_clipping=clip), lambda x: flow.math.reduce_sum(x, axis=1))
        np.testing.assert_allclose(weights, -0.5 * gradient * 0.1 / np.linalg.norm(gradient), atol=1e-6)

    def test_loss_scale_changes_nothing(self, devices: int) -> None:
        weights = self.step(sgd(loss_scale_factor=1024.0), lambda x: flow.math.reduce_sum(x, axis=1))
        np.testing.assert_allclose(weights, -0.5 * X.mean(0), atol=1e-6)

    def test_schedules_count_the_runs_of_their_job(self, devices: int) -> None:
        warmup = flow.optimizer.warmup.linear(2, 0.5)
        schedule = flow.optimizer.PiecewiseConstantScheduler([3], [1.0, 0.25], warmup=warmup)

        @flow.global_function(type="train")
        def job(x: Rows) -> tp.Numpy:
            w = flow.get_variable("w", (1,), initializer=flow.zeros_initializer())
            flow.optimizer.SGD(schedule, momentum=0).minimize(flow.math.reduce_sum(x * 0 + w, axis=1) / 6)
            return w

        weights = [float(job(X).item()) for _ in range(7)]
        np.testing.assert_allclose(-np.diff(weights), [0.5, 0.75, 1, 1, 0.25, 0.25], rtol=1e-6)


class TestFailure:
    @pytest.mark.parametrize("count", [1, 2, 3])
    def test_a_failed_step_changes_no_variable(self, on: Begin, count: int) -> None:
        """Labels that are computed are checked at their use: on one device, in the middle of a step."""
        on(count)

        @flow.global_function(type="train")
        def job(x: Rows, y: Labels) -> tp.Numpy:
            hidden = flow.layers.batch_normalization(x, axis=1, momentum=0.5, name="bn")
            logits = flow.layers.dense(flow.nn.dropout(hidden, 0.1), 3, kernel_initializer=normal(), name="fc")
            loss = flow.nn.sparse_softmax_cross_entropy_with_logits(y + y, logits)
            flow.optimizer.Adam(constant(0.1)).minimize(loss)
            return loss

        right, wrong = np.array([0, 1, 1, 0], np.int32), np.array([0, 1, 1, 2], np.int32)
        job(X, right)
        before = values()
        for _ in range(2):
            with pytest.raises(ArgumentError, match=r"label 4 at \[3\] is outside \[0, 3\)"):
                job(X, wrong)
            after = values()
            for name, value in before.items():
                np.testing.assert_array_equal(after[name], value, err_msg=name)
        assert np.isfinite(job(X, right)).all()


class TestDropout:
    def test_other_elements_at_every_run_and_none_in_predict_jobs(self, devices: int) -> None:
        @flow.global_function(type="train")
        def train_job(x: tp.Numpy.Placeholder((40, 50))) -> tp.Numpy:
            w = flow.get_variable("w", (50,), initializer=flow.ones_initializer(), trainable=True)
            dropped = flow.nn.dropout(x * w, rate=0.25)
            sgd(0.0).minimize(dropped)
            return dropped

        predict_job = declare(lambda x: flow.nn.dropout(x, rate=0.25), tp.Numpy.Placeholder((40, 50)), name="predict_job")
        ones = np.ones((40, 50), np.float32)
        first, second = train_job(ones), train_job(ones)
        for masks in (first, second):
            assert set(np.unique(masks)) == {np.float32(0), np.float32(1 / 0.75)}
            assert abs(masks.mean() - 1) < 0.06
        assert (first != second).mean() > 0.2
        np.testing.assert_array_equal(predict_job(ones), ones)


class TestCopies:
    """In the mirrored view every device has a copy of a variable; otherwise a replicated variable is stored once."""

    @staticmethod
    def declared(*names: str) -> dict[str, Any]:
        """Return these jobs, declared one after another."""
        mirrored = flow.function_config()
        mirrored.default_logical_view(flow.scope.mirrored_view())

        def declared_variable() -> Any:
            return flow.get_variable("kept", (2,), initializer=flow.zeros_initializer(), trainable=False)

        def keep(x: tp.ListNumpy.Placeholder((2,))) -> tp.ListNumpy:
            before = declared_variable()
            flow.assign(before, x)
            return before + x

        def show() -> tp.Numpy:
            return declared_variable() + 0.0

        bodies: dict[str, tuple[Any, Any]] = {"keep": (keep, mirrored), "show": (show, None)}
        return {name: flow.global_function(function_config=bodies[name][1])(bodies[name][0]) for name in names}

    def test_each_device_keeps_its_assigned_value(self, on: Begin) -> None:
        on(2)
        keep = self.declared("keep", "show")["keep"]
        values = [np.array([1, 1], np.float32), np.array([2, 5], np.float32)]
        assert [x.tolist() for x in keep(values)] == [[1, 1], [2, 5]]
        assert [x.tolist() for x in keep(values)] == [[2, 2], [4, 10]]

    def test_variables_stored_once_reject_per_device_values(self, on: Begin) -> None:
        on(2)
        keep = self.declared("show", "keep")["keep"]
        says = r"job keep at test_variables.py:\d+: each device assigns its own tensor to variable 'kept'.*declare this job before that job, or call"
        with pytest.raises(JobError, match=says):
            keep([np.ones(2, np.float32)] * 2)
