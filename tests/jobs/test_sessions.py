"""Checkpoints, and sessions with several jobs."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from parts import Begin, Job, Labels, Rows, X, Y, declare, normal, values

import jobflow as flow
import jobflow.typing as tp
from jobflow.core.errors import JobError


def declare_net(rate: float = 0.1) -> Callable[..., Any]:
    """Declare a train job with all checkpoint contents: split layer, slots, moving statistics, schedule and dropout, in float64."""

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
    def test_training_resumes_from_a_checkpoint(self, on: Begin, tmp_path: Path, before: int, after: int) -> None:
        on(1)
        job = declare_net()
        expected = [job(X, Y).mean() for _ in range(10)]
        at_the_end = values()

        on(before)
        job = declare_net()
        check_point = flow.train.CheckPoint()
        check_point.init()
        losses = [job(X, Y).mean() for _ in range(5)]
        check_point.save(str(tmp_path / "five"))
        assert (tmp_path / "five" / "snapshot_done").exists()

        on(after)
        job = declare_net()
        flow.train.CheckPoint().load(str(tmp_path / "five"))
        losses += [job(X, Y).mean() for _ in range(5)]
        np.testing.assert_allclose(losses, expected, rtol=1e-9)
        now = values()
        assert list(now) == list(at_the_end)
        for name, value in now.items():
            np.testing.assert_allclose(value, at_the_end[name], rtol=1e-9, atol=1e-9, err_msg=name)

    def test_loading_reverts_later_steps(self, devices: int, tmp_path: Path) -> None:
        job = declare_net()
        check_point = flow.train.CheckPoint()
        for _ in range(2):
            job(X, Y)
        check_point.save(str(tmp_path / "two"))
        once = [job(X, Y).mean() for _ in range(3)]
        check_point.load(str(tmp_path / "two"))
        again = [job(X, Y).mean() for _ in range(3)]
        assert once == again

    def test_a_path_that_exists_is_never_replaced(self, devices: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
        """Save to the first free name and print a notice with it; an empty directory is free."""
        job, check_point = declare_net(), flow.train.CheckPoint()
        (tmp_path / "a").mkdir()
        (tmp_path / "a-3").write_text("kept")
        for _ in range(3):
            job(X, Y)
            check_point.save(str(tmp_path / "a"))
        flow.checkpoint.save(str(tmp_path / "a"), {"w": np.ones(3)})
        steps = {name: flow.checkpoint.get(str(tmp_path / name))["System-Train-TrainStep-train_job"].numpy().tolist() for name in ("a", "a-2", "a-4")}
        assert steps == {"a": [1], "a-2": [2], "a-4": [3]} and list(flow.checkpoint.get(str(tmp_path / "a-5"))) == ["w"]
        assert (tmp_path / "a-3").read_text() == "kept" and len(list(tmp_path.iterdir())) == 5
        notices = [line for line in capsys.readouterr().err.splitlines() if "already exists" in line]
        assert [Path(line.rpartition("is written to ")[2]).name for line in notices] == ["a-2", "a-4", "a-5"]

    def test_init_resets_variables_only_in_the_old_form(self, on: Begin, capsys: pytest.CaptureFixture[str]) -> None:
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
        loaded = flow.checkpoint.get(str(tmp_path / "all" / listed[-1]))
        for name, value in values().items():
            np.testing.assert_array_equal(loaded[name].numpy(), value)

    def test_saving_some_variables(self, devices: int, tmp_path: Path) -> None:
        declare_net()
        chosen = {name: variable for name, variable in flow.get_all_variables().items() if name.startswith("out-")}
        flow.checkpoint.save(str(tmp_path / "some"), chosen)
        assert set(flow.checkpoint.get(str(tmp_path / "some"))) == set(chosen)


class TestSessions:
    def test_a_later_job_of_the_same_name_replaces_the_first(self, devices: int) -> None:
        def times(factor: int) -> Job:
            return declare(lambda x: x * factor, Rows)

        first, second = times(2), times(3)
        np.testing.assert_array_equal(second(X), X * 3)
        third = times(4)  # after the first call, as in a notebook
        np.testing.assert_array_equal(third(X), X * 4)
        np.testing.assert_array_equal(second(X), X * 3)
        np.testing.assert_array_equal(first(X), X * 2)

    def test_jobs_declared_after_the_first_call_share_variables(self, devices: int) -> None:
        def model(x: Any) -> Any:
            return flow.layers.dense(x, 2, kernel_initializer=normal(), name="fc")

        early = declare(model, Rows, name="early")
        result = early(X)
        late = declare(lambda x: model(x) + flow.get_variable("more", (2,), initializer=flow.constant_initializer(5)), Rows, name="late")
        np.testing.assert_allclose(late(X), result + 5, rtol=1e-6)
        assert list(values()) == ["fc-weight", "fc-bias", "more"]

    def test_one_name_is_one_tensor(self, devices: int) -> None:
        small = declare(lambda x: x + flow.get_variable("w", (6,), initializer=flow.zeros_initializer()), Rows, name="small")
        small(X)
        large = declare(lambda x: x + flow.get_variable("w", (4, 6), initializer=flow.zeros_initializer()), Rows, name="large")
        with pytest.raises(JobError, match=r'variable "w" is declared as float32\[6\] elsewhere and as float32\[4,6\] here'):
            large(X)
        np.testing.assert_array_equal(small(X), X)

    def test_clearing_drops_jobs_variables_and_settings(self, fresh: None) -> None:
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

    def test_settings_after_the_start_have_no_effect_and_print_a_notice(self, devices: int, capsys: pytest.CaptureFixture[str]) -> None:
        job = declare_net()
        assert flow.config.gpu_device_num(0) is True
        job(X, Y)
        assert flow.config.cpu_device_num(7) is False
        assert flow.config.enable_debug_mode(True) is False
        assert flow.env.client("multi") is False
        notice = capsys.readouterr().err
        for option in ("config.cpu_device_num(7)", "config.enable_debug_mode(True)", "env.client('multi')"):
            assert notice.count(option) == 1 and "comes too late and has no effect: call it before the first job runs" in notice
        assert job(X, Y).shape == (4,)

    def test_the_seed_changes_everything_random(self, fresh: None) -> None:
        losses = []
        for seed in (0, 1, 1):
            flow.clear_default_session()
            flow.config.seed(seed)
            job = declare_net()
            losses.append([job(X, Y).mean() for _ in range(3)])
        assert losses[1] == losses[2] != losses[0]

    def test_sync_and_many_shapes(self, on: Begin) -> None:
        """Lists of other lengths are other programs; the oldest are evicted and compiled again."""
        on(2)
        config = flow.function_config()
        config.default_logical_view(flow.scope.mirrored_view())
        job = declare(lambda x: x * 2, tp.ListNumpy.Placeholder((40, 6)), gives=tp.ListNumpy, config=config)
        rows = np.ones((40, 6), np.float32)
        for n in [*range(1, 25), 1, 2]:
            first, second = job([rows[:n], rows[: 41 - n]])
            flow.sync_default_session()
            assert (first.shape, second.shape) == ((n, 6), (41 - n, 6)) and (first == 2).all() and (second == 2).all()
