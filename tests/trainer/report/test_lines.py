"""Source lines of ops: lines of the configuration for the trainer's ops, lines of the builder for its ops."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from jobflow.core.errors import NOWHERE, SourceLine, at_line, user_line
from jobflow.trainer.config import load
from jobflow.trainer.jobs import prepared

LISTED = """\
name: listed
model:
  layers:
    - flatten: {}
    - dense: {units: 8, activation: relu}
    - dense: {units: 10}
  loss: softmax_cross_entropy
data:
  train: {reader: digits, split: train, edge: 8}
  batch_size: 50
optimizer:
  name: adam
  lr: 1e-3
training: {epochs: 1}
"""
BUILDER = """\
import jobflow as flow


def model(images, labels=None):
    x = flow.reshape(images, [images.shape[0], -1])
    x = flow.layers.dense(x, 10, name="only")
    return {"loss": flow.nn.sparse_softmax_cross_entropy_with_logits(labels, x)}
"""


def lines(file: Path) -> dict[str, str]:
    """Return the line of every op of the train job by the op's name."""
    with prepared(load(file), only=("train",)) as run:
        job = run.train(50)
        graph = job.compile(run.session, job.declared_shapes(run.session), 0).graph
        return {node.name: str(node.where) for node in graph.nodes if node.where != NOWHERE}


def test_ops_of_listed_layers_are_at_the_lines_of_the_file(tmp_path: Path) -> None:
    (tmp_path / "listed.yaml").write_text(LISTED)
    where_of = lines(tmp_path / "listed.yaml")
    assert where_of["dense2-matmul"] == where_of["dense2-activation"] == "listed.yaml:5" and where_of["dense3-matmul"] == "listed.yaml:6"
    assert where_of["loss"] == "listed.yaml:7" and {where for name, where in where_of.items() if "adam" in name} == {"listed.yaml:12"}
    assert all(where.startswith("listed.yaml:") for where in where_of.values())


def test_ops_of_builders_are_at_their_own_lines(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "own_lines.py").write_text(BUILDER)
    (tmp_path / "built.yaml").write_text(LISTED.replace(LISTED[LISTED.index("  layers") : LISTED.index("data:")], "  builder: own_lines:model\n"))
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    where_of = lines(tmp_path / "built.yaml")
    sys.modules.pop("own_lines")
    assert {where for name, where in where_of.items() if name.startswith("only-matmul")} == {"own_lines.py:6"}
    assert {where for name, where in where_of.items() if "adam" in name} == {"built.yaml:8"}


def test_a_line_stands_for_what_is_above_it_only() -> None:
    yaml = SourceLine("net.yaml", 7)
    # as jobflow's own code would: frames of this file are lines of a program
    inner = compile(
        "with at_line(yaml):\n    own = user_line()\n    theirs = called()\nafter = user_line()\n", at_line.__init__.__code__.co_filename, "exec"
    )
    names = {"at_line": at_line, "yaml": yaml, "user_line": user_line, "called": user_line_here}
    exec(inner, names)
    assert names["own"] == yaml and names["theirs"].file == __file__
    assert names["after"].file == __file__, "the line of the call of exec"


def user_line_here() -> SourceLine:
    return user_line()
