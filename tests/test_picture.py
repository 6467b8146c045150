"""The page that `jobflow explain --html` writes."""

from __future__ import annotations

import re
from pathlib import Path
from xml.etree import ElementTree

import pytest

from jobflow import scope
from jobflow.cli import main
from jobflow.compiler.layouts.box import Reroute
from jobflow.tools.explain import Explained, laid_out, load_job
from jobflow.tools.picture import arrange, graph_page

JOB = str(Path(__file__).parents[1] / "examples" / "hybrid_mlp.py") + ":train_job"
SVG = "{http://www.w3.org/2000/svg}"


@pytest.fixture(scope="module")
def explained() -> Explained:
    with scope.using(root=scope.Root()):
        return laid_out(load_job(JOB), 2)


def test_every_node_is_drawn_once_and_edges_lead_from_producer_to_reader(explained: Explained) -> None:
    (svg,) = re.findall(r"<svg.*</svg>", graph_page(explained.physical, {}), re.DOTALL)
    picture = ElementTree.fromstring(svg)
    nodes = explained.physical.graph.nodes
    ids = [g.get("id") for g in picture.iter(f"{SVG}g") if g.get("id")]
    assert ids == [f"n{i}" for i in range(len(nodes))]
    number = {node: i for i, node in enumerate(nodes)}
    drawn = {tuple(path.get("class", "").split()) for path in picture.iter(f"{SVG}path")}
    assert drawn == {(f"from{number[value.node]}", f"to{number[node]}") for node in nodes for value in node.inputs}


def test_nodes_do_not_cover_each_other(explained: Explained) -> None:
    spots = list(arrange(explained.physical.graph.nodes).values())
    assert all(a.x != b.x or abs(a.y - b.y) >= 56 for i, a in enumerate(spots) for b in spots[:i])


def test_the_backward_pass_is_read_from_below(explained: Explained) -> None:
    spots = arrange(explained.physical.graph.nodes)
    backward = [spots[node].y for node in explained.physical.graph.nodes if node.phase == "backward"]
    assert backward == sorted(backward, reverse=True)


def test_page_opens_offline_and_names_every_change_of_layout(explained: Explained, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with scope.using(root=scope.Root()):
        assert main(["explain", JOB, "--devices", "2", "--html", str(tmp_path / "page.html")]) == 0
    text = (tmp_path / "page.html").read_text(encoding="utf-8")
    assert capsys.readouterr().out == f"wrote {tmp_path / 'page.html'}\n"
    assert not re.search(r"(?:src|href)=|@import|url\(", text)
    reroutes = [node for node in explained.physical.graph.nodes if isinstance(node.op, Reroute)]
    assert len(re.findall(r'class="node reroute"', text)) == len(reroutes) > 0
    assert all(node.op.name in text and str(node.where) in text for node in reroutes)
