"""Devices of the mirrored view with different numbers of rows: weight zero without rows; equal results under mpiexec and on threads."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import processes
import pytest
from mirrored import MODELS, batch, run, train_job, trained

import jobflow as flow
from jobflow.core.errors import JobError

PROGRAMS = Path(__file__).with_name("programs")
#: rows of each device
LENGTHS = [(4, 0), (0, 4), (4, 0, 0), (0, 4, 0), (0, 0, 4)]
WITHOUT_ROWS = [name for name in MODELS if name != "batch norm"]
REDUCTIONS = ["mean", "none", "sum"]
EACH = [(name, LENGTHS[i % 5], REDUCTIONS[i % 3]) for i, name in enumerate(WITHOUT_ROWS)]
ALL = [(name, lengths, reduction) for name in WITHOUT_ROWS for lengths in LENGTHS for reduction in REDUCTIONS]


def same(result: dict[str, np.ndarray], expected: dict[str, np.ndarray]) -> None:
    assert list(result) == list(expected)
    for name, value in expected.items():
        np.testing.assert_allclose(result[name], value, rtol=1e-5, atol=1e-6, err_msg=name)


@pytest.mark.parametrize(
    ("name", "lengths", "reduction"), [*EACH, *(pytest.param(*case, marks=pytest.mark.full) for case in ALL if case not in EACH)]
)
def test_a_device_without_rows_has_weight_zero(name: str, lengths: tuple[int, ...], reduction: str, fresh: None) -> None:
    same(trained(name, lengths, reduction, devices=len(lengths)), trained(name, (4,), reduction, devices=1))


@pytest.mark.parametrize(("lengths", "reduction"), [((4, 0, 2), "none"), ((3, 0, 3), "mean")])
def test_devices_with_rows_give_the_mean_of_one_device(lengths: tuple[int, ...], reduction: str, fresh: None) -> None:
    same(trained("linear", lengths, reduction, devices=3), trained("linear", (6,), reduction, devices=1))


def test_batch_norm_refuses_a_device_without_rows(fresh: None) -> None:
    with pytest.raises(JobError, match=r"lengths of arguments on the devices are \[4, 0\], and the body records different variables"):
        trained("batch norm", (4, 0), devices=2)


@pytest.mark.parametrize(
    ("lengths", "text"),
    [
        ((4, 0), r"the devices have [4, 0] rows, and each needs at least 2; pass at least 2 rows to every device"),
        ((1, 4, 3), r"the devices have [1, 4, 3] rows, and each needs at least 2; pass at least 2 rows to every device"),
        ((0, 0), r"the batch has no rows (x, y); pass at least 2 rows"),
    ],
)
def test_microbatches_refuse_devices_with_too_few_rows(lengths: tuple[int, ...], text: str, fresh: None) -> None:
    flow.config.cpu_device_num(len(lengths))
    job = train_job(MODELS["linear"](), "mean", microbatches=2)
    with pytest.raises(JobError, match=rf"job train: 2 microbatches, requested at mirrored.py:\d+: {re.escape(text)}"):
        job(*batch(lengths))


@pytest.mark.mpi
def test_ranks_of_mpiexec_train_as_threads_and_keep_checkpoints(tmp_path: Path, fresh: None) -> None:
    (ranks := tmp_path / "ranks").mkdir()
    ended = processes.run(PROGRAMS / "mirrored.py", str(ranks), ranks=2)
    assert ended.code == 0, ended.err
    same(dict(np.load(ranks / "found.npz")), run(tmp_path / "threads", devices=2))
    assert sorted(path.name for path in ranks.iterdir()) == ["found.npz", "saved", "saved-2"]
    notice = r"save at mirrored.py:\d+: .*/saved already exists .*; the checkpoint is written to .*/saved-2\n"
    assert len(re.findall(notice, ended.err)) == 1, ended.err
