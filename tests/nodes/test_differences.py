"""Nodes with different configurations, data, versions or clocks: an error names the nodes, and clocks do not matter."""

from __future__ import annotations

import json
import os
import shutil
import signal
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from nodes import CONFIG, Nodes, losses, training, two_nodes
from processes import ROOT

pytestmark = [pytest.mark.mpi, pytest.mark.full]

TABLE = "data: {train: {reader: csv, path: data.csv, fields: {x: [x, y], labels: label}, dtypes: {labels: int32}}, batch_size: 4}"
#: changes the versions or the clock of a node, as the file sitecustomize.py in PYTHONPATH
NUMPY = "import numpy\nnumpy.__version__ = '1.26.4'\n"
PYTHON = "import platform\nplatform.python_version = lambda: '3.99.1'\n"
CLOCK = """\
import time
real, real_ns = time.time, time.time_ns
time.time, time.time_ns = lambda: real() + {0}, lambda: real_ns() + {0} * 10**9
"""
DAY = 24 * 3600


def change_python(nodes: Nodes, text: str) -> None:
    """Run `text` at the start of each Python process of node 1."""
    (nodes.nodes[1].packages / "sitecustomize.py").write_text(text)


def change_jobflow(nodes: Nodes, name: str, old: str, new: str) -> None:
    """Replace a text in a file of the jobflow of node 1."""
    copy = nodes.nodes[1].packages / "jobflow"
    shutil.copytree(ROOT / "jobflow", copy, ignore=shutil.ignore_patterns("__pycache__"))
    text = (copy / name).read_text()
    assert text.count(old) == 1
    (copy / name).write_text(text.replace(old, new))


def run_here(nodes: Nodes, way: str) -> str:
    """Train run.yaml of each node's own directory; return the printed errors."""
    ended = nodes.run(way, 2, training(nodes.local / "run.yaml", f"output={nodes.folder / 'run'}"))
    assert all(one.code != 0 for one in ended), ended
    return "".join(one.err for one in ended)


@pytest.mark.parametrize("way", ["mpiexec", "launch"])
def test_different_configurations_are_listed_with_their_nodes(way: str, tmp_path: Path) -> None:
    with two_nodes(tmp_path) as nodes:
        for node, rate in zip(nodes.nodes, ("0.001", "0.002"), strict=True):
            (node.folder / "run.yaml").write_text(CONFIG.replace("0.001", rate))
        printed = run_here(nodes, way)
    assert "the ranks have different configurations:" in printed and "optimizer.lr: rank 0 on node0 has 0.001" in printed
    assert "rank 1 on node1 has 0.002" in printed


@pytest.mark.parametrize("way", ["mpiexec", "launch"])
def test_different_data_are_an_error_with_the_nodes(way: str, tmp_path: Path) -> None:
    generator = np.random.default_rng(0)
    with two_nodes(tmp_path) as nodes:
        for node in nodes.nodes:
            (node.folder / "run.yaml").write_text(CONFIG.replace(CONFIG.splitlines()[1], TABLE))
            rows = [f"{x:.3f},{y:.3f},{i % 10}" for i, (x, y) in enumerate(generator.random((40, 2)))]
            (node.folder / "data.csv").write_text("\n".join(["x,y,label", *rows]) + "\n")
        printed = run_here(nodes, way)
    assert "data.train differs between ranks: rank 0 on node0 has " in printed and ", rank 1 on node1 has " in printed, printed


@pytest.mark.parametrize("way", ["mpiexec", "launch", "by hand"])
@pytest.mark.parametrize(("text", "version"), [(NUMPY, "numpy 1.26.4"), (PYTHON, "python 3.99.1"), ("", "jobflow 0.1.0 (sources ")])
def test_different_versions_are_an_error_with_the_nodes(way: str, text: str, version: str, tmp_path: Path) -> None:
    with two_nodes(tmp_path) as nodes:
        if text:
            change_python(nodes, text)
        else:
            change_jobflow(nodes, "core/version.py", "The version of jobflow", "Another version of jobflow")
        for node in nodes.nodes:
            (node.folder / "run.yaml").write_text(CONFIG)
        printed = run_here(nodes, way)
    assert "start of 2 ranks: their versions differ" in printed, printed
    assert "rank 0 on node0: " in printed and f"rank 1 on node1: {version}" in printed, printed


def test_a_node_with_another_protocol_is_refused_with_its_node(tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text("import jobflow as flow\nflow.ones(4, placement=flow.placement.all('cpu'), sbp=flow.sbp.broadcast).sum()\n")
    with two_nodes(tmp_path) as nodes:
        change_jobflow(nodes, "runtime/world/service/authentication.py", "VERSION = 3", "VERSION = 2")
        nodes.launch(2, [str(program)], {"JOBFLOW_JOIN_SECONDS": "5"})
        ended = nodes.jobs.wait()
    printed = "".join(one.err for one in ended)
    assert "another version of jobflow (protocol 2) than the process with RANK=0 on node0 (protocol 3)" in printed, ended


# ---------------------------------------------------------------- clocks


@pytest.mark.parametrize("way", ["mpiexec", "launch", "by hand"])
@pytest.mark.parametrize("offset", [-2 * DAY, 2 * DAY])
def test_clocks_that_differ_do_not_change_a_run(way: str, offset: int, tmp_path: Path) -> None:
    (tmp_path / "run.yaml").write_text(CONFIG)
    with two_nodes(tmp_path) as nodes:
        change_python(nodes, CLOCK.format(offset))
        for steps in (3, 6):  # the second part resumes
            ended = nodes.run(way, 4, training(tmp_path / "run.yaml", f"output={tmp_path / 'run'}", f"training.steps={steps}"))
            nodes.jobs.jobs.clear()
            assert all(one.code == 0 for one in ended), ended
    assert len(losses(tmp_path / "run")) == 6


@pytest.mark.parametrize("way", ["mpiexec", "launch"])
def test_different_clocks_since_the_boot_change_neither_a_run_nor_its_trace(way: str, tmp_path: Path) -> None:
    (tmp_path / "run.yaml").write_text(CONFIG)
    with two_nodes(tmp_path) as nodes:
        nodes.nodes[1].options(f"--time --monotonic {30 * DAY} --boottime {30 * DAY}")
        words = training(tmp_path / "run.yaml", f"output={tmp_path / 'run'}", "training.steps=30")
        ended = nodes.run(way, 4, [*words, "--profile"])
        assert all(one.code == 0 for one in ended), ended
    assert len(losses(tmp_path / "run")) == 30
    slices = [one for one in json.loads((tmp_path / "run/trace.json").read_text())["traceEvents"] if one["ph"] == "X"]
    begins = {one["tid"]: one["ts"] for one in reversed(slices)}
    assert len(begins) == 4 and max(begins.values()) - min(begins.values()) < 1e6, "the tracks of all ranks begin within a second"


@pytest.mark.parametrize("offset", [-2 * DAY, 2 * DAY])
def test_a_lock_holds_on_nodes_with_other_clocks(offset: int, tmp_path: Path) -> None:
    """A run on node 0 keeps its lock, and its unfinished checkpoint, while a node with another clock tries to train in its directories."""
    (tmp_path / "run.yaml").write_text(CONFIG)
    with two_nodes(tmp_path) as nodes:
        change_python(nodes, CLOCK.format(offset))
        words = [sys.executable, *training(tmp_path / "run.yaml", f"output={tmp_path / 'run'}", "training.steps=100000")]
        nodes.start(0, words)
        deadline = time.monotonic() + 30
        while not list(tmp_path.glob("run/checkpoints/step-*")):
            assert time.monotonic() < deadline
            time.sleep(0.05)
        second = nodes.start(1, words)
        assert second.wait(60) == 2
        assert "is in use: process " in nodes.jobs.printed(1) and " on node0 trains there" in nodes.jobs.printed(1)
        assert nodes.jobs.jobs[0][0].poll() is None
        for pid in nodes.pids(0):
            os.kill(pid, signal.SIGTERM)
        assert nodes.jobs.jobs[0][0].wait(60) == 75
