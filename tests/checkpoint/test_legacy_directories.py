"""Directories of OneFlow, written and read by programs: a folder per variable with `out` and `meta`, and `snapshot_done`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import jobflow as flow
import jobflow.typing as tp
from jobflow.core.errors import CheckpointError

X = np.linspace(-1, 1, 12, dtype=np.float32).reshape(4, 3)


def training(devices: int, form: str = "oneflow") -> Any:
    """Begin a new session with a job whose weight is split over the devices."""
    flow.clear_default_session()
    flow.config.cpu_device_num(devices)
    flow.config.checkpoint_format(form)

    @flow.global_function("train")
    def job(x: tp.Numpy.Placeholder((4, 3))) -> tp.Numpy:
        w = flow.get_variable("w", (5, 3), initializer=flow.random_uniform_initializer(-1, 1), distribute=flow.distribute.split(0))
        hidden = flow.layers.dense(flow.math.tanh(flow.matmul(x, w, transpose_b=True)), 2, name="out", kernel_initializer=flow.ones_initializer())
        loss = flow.math.square(hidden)
        schedule = flow.optimizer.CosineScheduler(0.1, 6)
        flow.optimizer.LAMB(schedule).minimize(loss)
        return loss

    return job


NAMES = [f"{name}{slot}" for name in ("w", "out-weight", "out-bias") for slot in ("", "-m", "-v", "-beta1_t", "-beta2_t")] + [
    "System-Train-TrainStep-job"
]


@pytest.mark.parametrize("meta", [True, False], ids=["0.4", "0.2"])
def test_training_resumes_from_a_directory_on_another_number_of_devices(fresh: None, tmp_path: Path, meta: bool) -> None:
    job = training(2)
    losses = [job(X) for _ in range(2)]
    flow.train.CheckPoint().save(str(tmp_path / "old"))
    weights = flow.get_all_variables()["w"].numpy()
    losses += [job(X) for _ in range(2)]

    assert sorted(path.name for path in (tmp_path / "old").iterdir()) == sorted([*NAMES, "snapshot_done"])
    assert (tmp_path / "old" / "w" / "out").read_bytes() == weights.astype("<f4").tobytes()
    assert (tmp_path / "old" / "w" / "meta").read_text() == "shape {\n  dim: 5\n  dim: 3\n}\ndata_type: kFloat\n"
    assert (tmp_path / "old" / "System-Train-TrainStep-job" / "out").read_bytes() == (2).to_bytes(8, "little")
    if not meta:
        for file in (tmp_path / "old").glob("*/meta"):
            file.unlink()

    job = training(1)
    checkpoint = flow.train.CheckPoint()
    checkpoint.init()
    checkpoint.load(str(tmp_path / "old"))
    result = flow.checkpoint.get(str(tmp_path / "old"))
    assert isinstance(result, dict) and sorted(result) == sorted(NAMES)
    one = flow.checkpoint.get(str(tmp_path / "old" / "w"))
    assert not isinstance(one, dict)
    for stored in (result["w"], one):
        np.testing.assert_array_equal(stored.numpy(), weights)
        assert stored.shape == (5, 3) and stored.dtype is flow.float32 and stored.file_path == str(tmp_path / "old" / "w" / "out")
    np.testing.assert_allclose([job(X), job(X)], losses[2:], rtol=1e-5)


def test_some_variables_and_series_of_snapshots(fresh: None, tmp_path: Path) -> None:
    job = training(1)
    manager = flow.train.SimpleCheckPointManager(str(tmp_path / "series"))
    manager.initialize_or_restore()
    job(X)
    manager.save()
    _, last = manager.list_checkpoints()
    assert manager.latest_checkpoint() == last and (tmp_path / "series" / last / "w" / "out").is_file()
    variables = flow.get_all_variables()
    flow.checkpoint.save(str(tmp_path / "some"), {"w": variables["w"], "other": np.arange(3)})
    assert sorted(path.name for path in (tmp_path / "some").iterdir()) == ["other", "snapshot_done", "w"]
    flow.checkpoint.save(str(tmp_path / "some"))
    assert {"other", "w"} == {path.name for path in (tmp_path / "some").iterdir()} - {"snapshot_done"}
    assert (tmp_path / "some-2" / "System-Train-TrainStep-job" / "out").is_file()
    with pytest.raises(CheckpointError, match='"a/b": a legacy checkpoint needs a directory of this name'):
        flow.checkpoint.save(str(tmp_path / "more"), {"a/b": np.zeros(1)})

    flow.config.checkpoint_format("jobflow")  # at any time
    manager.save()
    assert (tmp_path / "series" / str(manager.latest_checkpoint()) / "manifest.json").is_file()
    training(1, "jobflow")
    manager.initialize_or_restore()
    assert flow.get_all_variables()["System-Train-TrainStep-job"].numpy().tolist() == [1]
