"""A job as one HTML page: a drawing of its physical graph, and the tables of `explain`.

Frames are modules (`module_groups`).  Inside a frame, the forward pass runs down the left lane, the backward pass up the middle lane, and the
update down the right lane.  Redistributions are pills on the arrows, labelled with their bytes; blocks show the layout of a tensor (`layout_blocks`).
This module computes positions; templates/graph.html and graph.js draw, select and search.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import field
from typing import NamedTuple

from jobflow.compiler.layouts.box import Reroute
from jobflow.core.dataclass import dataclass
from jobflow.core.layout import B, Layout, P, Placement, S, Sbp
from jobflow.core.layout_blocks import Block, blocks
from jobflow.graph.ir import Graph, Node, Phase, Physical
from jobflow.ops.source import Input, ReadVariable
from jobflow.tools.module_groups import Band, bands
from jobflow.tools.pages import page

#: sizes in pixels: a node, a redistribution, the gap below both, a lane, the label of a frame, the inset of a frame
WIDTH, HEIGHT, PILL, GAP, COLUMN, LABEL, INSET = 300, 56, 30, 20, 372, 22, 7
MARGIN = 30
#: vertical distance in pixels from which an arrow is pale until one of its ends is selected
FAR = 500
#: maximum number of ranks whose blocks are drawn in a node
MOST_BLOCKS = 8
LANES: Mapping[Phase, int] = {"forward": 0, "backward": 1, "update": 2}


@dataclass(frozen=True)
class Spot:
    """The centre and the height of a node's box in the drawing, in pixels."""

    x: float
    y: float
    height: float

    @property
    def top(self) -> float:
        return self.y - self.height / 2

    @property
    def bottom(self) -> float:
        return self.y + self.height / 2


class Frame(NamedTuple):
    """The rectangle around a module."""

    name: str
    depth: int
    top: float
    bottom: float


@dataclass
class Arrangement:
    """Positions of nodes and frames; `height` is the total height."""

    spots: dict[Node, Spot] = field(default_factory=dict)
    frames: list[Frame] = field(default_factory=list)
    height: float = MARGIN + 10


class Text(NamedTuple):
    """The text of a node: operation, name, type of the first output, and the layout without the placement."""

    word: str
    name: str
    type: str
    layout: str


def graph_page(physical: Physical, tables: Mapping[str, str]) -> str:
    """Return the HTML page; `tables` maps titles to texts below the drawing."""
    graph = physical.graph
    number = {node: i for i, node in enumerate(graph.nodes)}
    chart = arrange(graph)
    spots = chart.spots
    sent = sum(node.op.bytes_per_rank(*(value.tensor_type for value in node.inputs)) for node in graph.nodes if isinstance(node.op, Reroute))
    return page(
        "graph.html",
        title=f"{graph.kind} {graph.name}",
        subtitle=f"{graph.placement}, {len(graph.nodes)} operations; the busiest ranks send {sent:,} bytes per step",
        width=len(LANES) * COLUMN + 2 * MARGIN,
        height=chart.height + MARGIN,
        column=COLUMN,
        margin=MARGIN,
        box=WIDTH,
        lanes={phase: _middle(lane) for phase, lane in LANES.items()},
        frames=[(frame, MARGIN + frame.depth * INSET, len(LANES) * COLUMN - 2 * frame.depth * INSET) for frame in chart.frames],
        edges=[(number[a], number[b], arrow(spots[a], spots[b]), abs(spots[a].y - spots[b].y) > FAR) for a, b in _edges(graph)],
        boxes=[(_kind(node), spots[node], _text(node, physical), _blocks(node, physical), _story(node, physical)) for node in graph.nodes],
        legend=_legend(),
        most=MOST_BLOCKS,
        tables=tables,
    )


def _edges(graph: Graph) -> Iterator[tuple[Node, Node]]:
    """Yield every producer with each of its readers, once."""
    for node in graph.nodes:
        for producer in dict.fromkeys(value.node for value in node.inputs):
            yield producer, node


def arrange(graph: Graph) -> Arrangement:
    """Assign a position to each node, and a frame to each module."""
    chart = Arrangement()
    _arrange(bands(graph), 0, chart)
    return chart


def _arrange(members: Sequence[Band], depth: int, chart: Arrangement) -> None:
    """Place consecutive bands whose paths share `depth` components, below everything placed before."""
    i = 0
    while i < len(members):
        if len(members[i].path) == depth:
            _arrange_nodes(members[i], chart)
            i += 1
            continue
        end = i
        while end < len(members) and members[end].path[: depth + 1] == members[i].path[: depth + 1]:
            end += 1
        inner = members[i:end]
        deeper = depth + 1
        while all(len(band.path) > deeper and band.path[: deeper + 1] == inner[0].path[: deeper + 1] for band in inner):  # one frame for "net.h.0"
            deeper += 1
        name = inner[0].path[:deeper]
        at, top = len(chart.frames), chart.height
        chart.height += LABEL
        _arrange(inner, deeper, chart)
        chart.frames.insert(at, Frame(".".join(name), depth, top, chart.height - GAP / 2))
        chart.height += GAP / 2
        i = end


def _arrange_nodes(band: Band, chart: Arrangement) -> None:
    """Place the nodes of a band: the backward lane from bottom to top."""
    top = chart.height
    for phase, nodes in band.nodes.items():
        y = top
        for node in reversed(nodes) if phase == "backward" else nodes:
            height = PILL if isinstance(node.op, Reroute) else HEIGHT
            chart.spots[node] = Spot(_middle(LANES[phase]), y + height / 2, height)
            y += height + GAP
        chart.height = max(chart.height, y)


def _middle(lane: int) -> float:
    return MARGIN + lane * COLUMN + COLUMN / 2


def arrow(a: Spot, b: Spot) -> str:
    """Return the SVG path from a node to one of its readers; the arrowhead is at the reader."""
    if a.x != b.x:
        side = WIDTH / 2 if b.x > a.x else -WIDTH / 2
        middle = (a.x + b.x) / 2
        return f"M{a.x + side:.0f},{a.y:.0f} C{middle:.0f},{a.y:.0f} {middle:.0f},{b.y:.0f} {b.x - side:.0f},{b.y:.0f}"
    if b.y > a.y and b.top - a.bottom < GAP + LABEL * 2:
        return f"M{a.x:.0f},{a.bottom:.0f} L{b.x:.0f},{b.top:.0f}"
    if b.y < a.y and a.top - b.bottom < GAP + LABEL * 2:
        return f"M{a.x:.0f},{a.top:.0f} L{b.x:.0f},{b.bottom:.0f}"
    side, bend = WIDTH / 2, WIDTH / 2 + 28  # around the nodes between
    return f"M{a.x + side:.0f},{a.y:.0f} C{a.x + bend:.0f},{a.y:.0f} {a.x + bend:.0f},{b.y:.0f} {b.x + side:.0f},{b.y:.0f}"


def _kind(node: Node) -> str:
    if isinstance(node.op, Reroute):
        return "reroute"
    return "variable" if isinstance(node.op, ReadVariable) else "argument" if isinstance(node.op, Input) else node.phase


def _text(node: Node, physical: Physical) -> Text:
    value = node.outputs[0] if node.outputs else None
    word = {"variable": "variable", "argument": "argument"}.get(_kind(node), node.op.word())
    if isinstance(node.op, Reroute):
        sent = node.op.bytes_per_rank(*(value.tensor_type for value in node.inputs))
        change = f"{_sbp(node.op.source)} -> {_sbp(node.op.target)}"
        return Text(node.op.name, node.name, change, f"{sent:,} bytes/rank")
    if value is None:
        return Text(word, node.name, "", "")
    return Text(word, node.name, str(value.tensor_type), _sbp(physical.layouts[value]))


def _sbp(layout: object) -> str:
    """Return a layout without its placement: "S(0),B"."""
    return ",".join(map(str, layout.sbp)) if isinstance(layout, Layout) else str(layout)


def _blocks(node: Node, physical: Physical) -> list[Block]:
    if not node.outputs or isinstance(node.op, Reroute):
        return []
    layout = physical.layouts[node.outputs[0]]
    if not isinstance(layout, Layout) or layout.placement.size == 1:
        return []
    return blocks(layout, node.outputs[0].shape)


def _legend() -> list[tuple[str, list[Block]]]:
    """Return names and blocks of the basic layouts of a matrix on two ranks."""
    placement = Placement("cpu", (0, 1))
    names: dict[Sbp, str] = {S(0): "S(0): rows split", S(1): "S(1): columns split", B: "B: copies", P: "P: summands"}
    return [(name, blocks(Layout(placement, (sbp,)), (4, 4))) for sbp, name in names.items()]


def _story(node: Node, physical: Physical) -> str:
    """Return the text of a selected node: outputs with types and layouts, the operation, inputs, and the user's line."""
    return "\n".join(_story_lines(node, physical))


def _story_lines(node: Node, physical: Physical) -> Iterator[str]:
    for value in node.outputs:
        yield f"{value}: {value.tensor_type} {physical.layouts[value]}"
    yield f"= {node.op}"
    for value in node.inputs:
        yield f"  reads {value}: {value.tensor_type} {physical.layouts[value]}"
    yield str(node.where)
