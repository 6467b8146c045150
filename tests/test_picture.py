"""The page that `jobflow explain --html` writes."""

from __future__ import annotations

import re
from itertools import pairwise
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import pytest

import jobflow as flow
import jobflow.typing as tp
from jobflow import scope
from jobflow.cli import main
from jobflow.compiler.layouts.box import Reroute
from jobflow.core.layout import B, Layout, P, Placement, S
from jobflow.core.layout_blocks import blocks
from jobflow.engine.job import job_of
from jobflow.tools.explain import Explained, laid_out, load_job
from jobflow.tools.module_groups import bands
from jobflow.tools.picture import arrange, graph_page

JOB = str(Path(__file__).parents[1] / "examples" / "hybrid_mlp.py") + ":train_job"
CPU2, MESH = Placement("cpu", (0, 1)), Placement("cpu", (0, 1, 2, 3), (2, 2))
SVG = "{http://www.w3.org/2000/svg}"


@pytest.fixture(scope="module")
def explained() -> Explained:
    with scope.using(root=scope.Root()):
        return laid_out(load_job(JOB), 2)


def test_every_node_is_drawn_once_and_edges_lead_from_producer_to_reader(explained: Explained) -> None:
    (svg,) = re.findall(r'<svg[^>]*aria-label="graph">.*</svg>', graph_page(explained.physical, {}), re.DOTALL)
    picture = ElementTree.fromstring(svg)
    nodes = explained.physical.graph.nodes
    ids = [g.get("id") for g in picture.iter(f"{SVG}g") if g.get("id")]
    assert ids == [f"n{i}" for i in range(len(nodes))]
    number = {node: i for i, node in enumerate(nodes)}
    drawn = {tuple(path.get("class", "").split()[:2]) for path in picture.iter(f"{SVG}path") if "to" in path.get("class", "")}
    assert drawn == {(f"from{number[value.node]}", f"to{number[node]}") for node in nodes for value in node.inputs}


def test_nodes_and_frames_do_not_overlap(explained: Explained) -> None:
    chart = arrange(explained.physical.graph)
    spots = list(chart.spots.values())
    assert len(spots) == len(explained.physical.graph.nodes)
    assert all(a.x != b.x or a.bottom < b.top or b.bottom < a.top for i, a in enumerate(spots) for b in spots[:i])
    assert [frame.name for frame in chart.frames] == ["hidden", "output"]
    assert all(a.bottom < b.top for a, b in pairwise(chart.frames))
    within = [spot for spot in spots for frame in chart.frames if frame.top < spot.top and spot.bottom < frame.bottom]
    across = [spot for spot in spots for frame in chart.frames if spot.top < frame.top < spot.bottom or spot.top < frame.bottom < spot.bottom]
    assert within and not across


def test_the_backward_pass_of_a_module_is_read_from_below(explained: Explained) -> None:
    spots = arrange(explained.physical.graph).spots
    for band in bands(explained.physical.graph):
        backward = [spots[node].y for node in band.nodes["backward"]]
        assert backward == sorted(backward, reverse=True)


def test_gradients_and_updates_are_drawn_in_the_frame_of_their_module(explained: Explained) -> None:
    names = {band.path: {phase: [node.name for node in nodes] for phase, nodes in band.nodes.items()} for band in bands(explained.physical.graph)}
    assert "hidden-activation" in names["hidden",]["forward"] and "output-matmul" in names["output",]["forward"]
    assert "hidden-matmul.matmul_1" in names["hidden",]["backward"] and "output-matmul.matmul_0" in names["output",]["backward"]
    assert {"sgdupdate_0", "sgdupdate_1"} <= {*names["hidden",]["update"]} and {"sgdupdate_2", "sgdupdate_3"} <= {*names["output",]["update"]}


def test_nodes_between_two_modules_belong_to_their_common_ancestor() -> None:
    with scope.using(root=scope.Root()):

        @flow.global_function()
        def net(x: tp.Numpy.Placeholder((2, 4))) -> tp.Numpy:
            for i in range(2):
                y = flow.math.relu(flow.layers.dense(x, 4, name=f"net.h.{i}.fc1"))
                x = x + flow.layers.dense(y, 4, name=f"net.h.{i}.fc2")
            return flow.math.tanh(x)

        graph = laid_out(job_of(net, "net"), 2).physical.graph
    paths = {node.op.word(): ".".join(band.path) for band in bands(graph) for node in band.nodes["forward"]}
    assert paths == {
        "input": "",
        "readvariable": "net.h.1.fc2",
        "matmul": "net.h.1.fc2",
        "biasadd": "net.h.1.fc2",
        "relu": "net.h.1",
        "add": "",
        "tanh": "",
    }
    assert [frame.name for frame in arrange(graph).frames] == [
        "net.h",
        "net.h.0",
        "net.h.0.fc1",
        "net.h.0.fc2",
        "net.h.1",
        "net.h.1.fc1",
        "net.h.1.fc2",
    ]


@pytest.mark.parametrize(
    "layout, shape, expected",
    [
        (Layout(CPU2, (S(0),)), (4, 4), [(0, 0, 1, 0.5), (0, 0.5, 1, 0.5)]),
        (Layout(CPU2, (S(1),)), (3, 3), [(0, 0, 2 / 3, 1), (2 / 3, 0, 1 / 3, 1)]),
        (Layout(CPU2, (B,)), (), [(0, 0, 1, 1)] * 2),
        (Layout(CPU2, (P,)), (4,), [(0, 0, 1, 1)] * 2),
        (Layout(MESH, (S(0), S(1))), (2, 2), [(x, y, 0.5, 0.5) for y in (0, 0.5) for x in (0, 0.5)]),
        (Layout(MESH, (S(0), S(0))), (4, 2), [(0, i / 4, 1, 0.25) for i in range(4)]),
        (Layout(MESH, (P, S(1))), (2, 5, 2), [(0, 0, 3 / 5, 1), (3 / 5, 0, 2 / 5, 1)] * 2),
        (Layout(CPU2, (S(0),)), (0, 3), [(0, 0, 1, 0)] * 2),
    ],
    ids=str,
)
def test_blocks_show_the_shard_of_each_rank(layout: Layout, shape: tuple[int, ...], expected: list[tuple[float, ...]]) -> None:
    drawn = blocks(layout, shape)
    assert np.allclose([block[1:5] for block in drawn], expected)
    assert all(block.partial is layout.is_partial for block in drawn)


def test_page_opens_offline_and_names_every_change_of_layout(explained: Explained, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with scope.using(root=scope.Root()):
        assert main(["explain", JOB, "--devices", "2", "--html", str(tmp_path / "page.html")]) == 0
    text = (tmp_path / "page.html").read_text(encoding="utf-8")
    assert capsys.readouterr().out == f"wrote {tmp_path / 'page.html'}\n"
    assert not re.search(r"(?:src|href)=|@import|url\((?!#)", text)
    reroutes = [node for node in explained.physical.graph.nodes if isinstance(node.op, Reroute)]
    assert len(re.findall(r'class="node reroute"', text)) == len(reroutes) > 0
    assert all(node.op.name in text and str(node.where) in text for node in reroutes)
