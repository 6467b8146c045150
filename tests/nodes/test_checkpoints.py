"""Checkpoints of two nodes, in a shared directory and in directories of each node."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from nodes import CONFIG, losses, training, two_nodes

from jobflow.trainer import train
from jobflow.trainer.config import load

pytestmark = [pytest.mark.mpi, pytest.mark.full]


def alone(folder: Path, steps: int, output: str) -> list[float]:
    """Train in this process, or continue the run in this folder; return the losses of this part."""
    settings = [f"output={folder / output}", f"training.steps={steps}", "logging.progress=none"]
    return list(train(load(str(folder / "run.yaml"), settings=settings)).history["train/loss"])


def test_a_run_in_a_shared_directory_continues_on_other_numbers_of_nodes(tmp_path: Path) -> None:
    """Train three steps on two nodes, three in one process, and three on two nodes."""
    (tmp_path / "run.yaml").write_text(CONFIG)
    for steps in (3, 6, 9):
        if steps == 6:
            alone(tmp_path, steps, "run")
            continue
        with two_nodes(tmp_path / str(steps)) as nodes:
            ended = nodes.run("launch", 4, training(tmp_path / "run.yaml", f"output={tmp_path / 'run'}", f"training.steps={steps}"))
        assert all(one.code == 0 for one in ended), ended
    assert losses(tmp_path / "run") == pytest.approx(alone(tmp_path, 9, "alone"), rel=1e-4)


@pytest.mark.parametrize("way", ["mpiexec", "launch"])
def test_directories_of_each_node_are_refused_before_the_first_step(way: str, tmp_path: Path) -> None:
    (tmp_path / "run.yaml").write_text(CONFIG)
    with two_nodes(tmp_path) as nodes:
        ended = nodes.run(way, 2, training(tmp_path / "run.yaml", f"output={nodes.local / 'run'}"))
    printed = "".join(one.err for one in ended)
    for text in ("checkpoint.directory: node0 (rank 0) has created", "which is not visible on node1 (rank 1)", "a directory that all nodes share"):
        assert text in printed, ended
    assert "step 1" not in "".join(one.out for one in ended)
    assert max(one.code for one in ended) == 2


def test_a_save_of_a_program_into_directories_of_each_node_names_the_nodes(tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text(SAVES)
    with two_nodes(tmp_path) as nodes:
        ended = nodes.run("launch", 2, [str(program), str(nodes.local / "model")])
    printed = "".join(one.err for one in ended)
    assert "could not be saved, and nothing was changed: node0 (rank 0) has created" in printed, ended
    assert "which is not visible on node1 (rank 1)" in printed, ended


SAVES = """\
import sys
import numpy as np
import jobflow as flow
import jobflow.typing as tp


@flow.global_function("train")
def train_job(x: tp.Numpy.Placeholder((8, 6))) -> tp.Numpy:
    loss = flow.math.square(flow.layers.dense(x, 1, kernel_initializer=flow.xavier_uniform_initializer(), name="fc"))
    flow.optimizer.SGD(flow.optimizer.PiecewiseConstantScheduler([], [0.01]), momentum=0).minimize(loss)
    return loss


train_job(np.ones((8, 6), np.float32))
flow.train.CheckPoint().save(sys.argv[1])
"""


def test_a_load_names_the_node_and_the_file_that_it_lacks(tmp_path: Path) -> None:
    """Load from copies of a checkpoint on each node; the copy of node 1 is incomplete."""
    (tmp_path / "run.yaml").write_text(CONFIG)
    with two_nodes(tmp_path) as nodes:
        trained = nodes.run("launch", 4, training(tmp_path / "run.yaml", f"output={tmp_path / 'run'}"))
        assert all(one.code == 0 for one in trained), trained
        source = tmp_path / "run" / "checkpoints" / "step-00000006"
        for node in nodes.nodes:
            shutil.copytree(source, node.folder / "copy")
        lacking = sorted((nodes.nodes[1].folder / "copy").glob("*.safetensors"))[0]
        lacking.unlink()
        settings = [f"output={tmp_path / 'other'}", f"checkpoint.resume={nodes.local / 'copy'}", "training.steps=8"]
        nodes.jobs.jobs.clear()
        ended = nodes.run("launch", 4, training(tmp_path / "run.yaml", *settings))
    printed = "".join(one.err for one in ended)
    assert "rank 2 on node1: " in printed and str(nodes.local / "copy" / lacking.name) in printed, ended
    assert max(one.code for one in ended) == 1
