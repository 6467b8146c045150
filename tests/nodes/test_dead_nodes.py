"""A node that dies, or that the network no longer reaches, ends all ranks with the cause, and the run resumes from its checkpoint."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

import pytest
from nodes import CONFIG, Nodes, losses, training, two_nodes

from jobflow.runtime.world.service.messages import SILENCE
from jobflow.trainer import train
from jobflow.trainer.config import load

pytestmark = [pytest.mark.mpi, pytest.mark.full]

#: seconds from the loss of a node to the end of all processes, in addition to the documented time
MORE = 8.0


def saved(folder: Path) -> list[int]:
    """Return the steps of the complete checkpoints of a run."""
    return sorted(int(path.parent.name.partition("-")[2]) for path in folder.glob("run/checkpoints/step-*/manifest.json"))


def run_until_saved(nodes: Nodes, way: str, folder: Path) -> None:
    """Start a training of many steps, and wait for a checkpoint."""
    (folder / "run.yaml").write_text(CONFIG)
    nodes.starts(way)(4, training(folder / "run.yaml", f"output={folder / 'run'}", "training.steps=100000"))
    deadline = time.monotonic() + 60
    while not saved(folder):
        assert time.monotonic() < deadline, "no checkpoint was saved"
        time.sleep(0.05)


def lose(nodes: Nodes, how: str, number: int) -> float:
    """Kill all processes of a node, or cut its cable; return the time."""
    if how == "cut":
        nodes.link(number, "down")
    for pid in nodes.pids(number) if how == "killed" else ():
        os.kill(pid, signal.SIGKILL)
    return time.time()


def check_resumed(folder: Path) -> None:
    """Resume the run on two nodes for three steps; compare the losses with a run in one process."""
    steps = saved(folder)[-1] + 3
    with two_nodes(folder / "again") as nodes:
        ended = nodes.run("launch", 4, training(folder / "run.yaml", f"output={folder / 'run'}", f"training.steps={steps}"))
    assert all(one.code == 0 for one in ended), ended
    settings = [f"output={folder / 'alone'}", f"training.steps={steps}", "logging.progress=none"]
    alone = train(load(str(folder / "run.yaml"), settings=settings)).history["train/loss"]
    assert losses(folder / "run")[-3:] == pytest.approx(list(alone[-3:]), rel=1e-4)


KILLED = "on node1) ended without a report: it was killed, or called os._exit"
SILENT = "has not answered for 25 s: node1, or the network between it and node0, is down"
#: way, loss, lost node, and a text that the other node prints
ENDS = [
    ("launch", "killed", 1, KILLED),
    ("launch", "killed", 0, "the process with RANK=0, or the service that it started at 10.77.31.1:7788, has died"),
    ("by hand", "killed", 1, KILLED),
    ("mpiexec", "killed", 1, "mpiexec@node0"),
    ("launch", "cut", 1, SILENT),
    ("by hand", "cut", 1, SILENT),
    ("mpiexec", "cut", 1, "node1 (ranks 1, 3) has not answered for 25 s: the machine, or the network between it and node0, is down"),
]


@pytest.mark.parametrize(("way", "how", "number", "text"), ENDS)
def test_the_loss_of_a_node_ends_all_ranks_with_the_cause_and_the_run_resumes(way: str, how: str, number: int, text: str, tmp_path: Path) -> None:
    with two_nodes(tmp_path) as nodes:
        run_until_saved(nodes, way, tmp_path)
        lost = lose(nodes, how, number)
        ended = nodes.jobs.wait(SILENCE + 60)
    assert all(one.code != 0 for one in ended), ended
    assert max(one.at for one in ended) - lost < (SILENCE if how == "cut" else 0) + MORE
    printed = "".join(one.err for one in ended)
    assert text in printed, printed
    if how == "cut" and way != "mpiexec":  # the lost node reports the loss of the other one
        assert "has not answered for 25 s: the machine of RANK=0, or the network between it and node1, is down" in printed, printed
    check_resumed(tmp_path)
