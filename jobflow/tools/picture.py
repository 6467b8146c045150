"""A job as one HTML page: a drawing of its physical graph, and the tables of `explain`.

The forward pass runs down the left lane. The backward pass runs up the middle lane, next to the values whose gradients it computes. The update
runs down the right lane. Redistributions are coloured pills labelled with their bytes. Pointing at a node shows its source line and highlights
its inputs and readers. This module computes positions; templates/graph.html draws.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from jobflow.compiler.layouts.box import Reroute
from jobflow.core.dataclass import dataclass
from jobflow.graph.ir import Node, Phase, Physical
from jobflow.tools.pages import page

WIDTH, HEIGHT = 270, 40
COLUMN, ROW = 360, 56
MARGIN = 24
LANES: Mapping[Phase, int] = {"forward": 0, "backward": 1, "update": 2}


@dataclass(frozen=True)
class Spot:
    """The centre of a node's box in the drawing, in pixels."""

    x: float
    y: float


def graph_page(physical: Physical, tables: Mapping[str, str]) -> str:
    """Return the HTML page; `tables` maps titles to texts below the drawing."""
    nodes = physical.graph.nodes
    number = {node: i for i, node in enumerate(nodes)}
    spots = arrange(nodes)
    return page(
        "graph.html",
        title=f"job {physical.graph.name} on {physical.graph.placement}",
        width=len(LANES) * COLUMN + 2 * MARGIN,
        height=max((spot.y for spot in spots.values()), default=0) + HEIGHT / 2 + MARGIN,
        box=(WIDTH, HEIGHT),
        lanes={phase: (_middle(lane), MARGIN) for phase, lane in LANES.items()},
        edges=[(number[v.node], number[node], _curve(spots[v.node], spots[node])) for node in nodes for v in dict.fromkeys(node.inputs)],
        boxes=[(_kind(node), spots[node], [*_label(node, physical)], _story(node, physical)) for node in nodes],
        tables=tables,
    )


def arrange(nodes: tuple[Node, ...]) -> dict[Node, Spot]:
    """Assign a position to each node: one lane per phase, the backward lane from bottom to top and as long as the forward lane."""
    lanes: dict[int, list[Node]] = {lane: [] for lane in LANES.values()}
    for node in nodes:
        lanes[LANES[node.phase]].append(node)
    lanes[1].reverse()
    longest = max(map(len, lanes.values()), default=0)
    spots = {}
    for lane, members in lanes.items():
        step = ROW * longest / len(members) if members and lane < 2 else ROW
        for i, node in enumerate(members):
            spots[node] = Spot(_middle(lane), MARGIN * 2 + step * (i + 0.5))
    return spots


def _middle(lane: int) -> float:
    return MARGIN + lane * COLUMN + COLUMN / 2


def _curve(a: Spot, b: Spot) -> str:
    """Return the SVG path from a node to one of its readers."""
    if a.x == b.x:  # within a lane: straight to the neighbour, around those in between
        bend, side = (0.0, 0.0) if abs(b.y - a.y) < ROW * 1.5 else (WIDTH / 2 + 30, WIDTH / 2)
        return f"M{a.x + side:.0f},{a.y:.0f} C{a.x + bend:.0f},{a.y:.0f} {b.x + bend:.0f},{b.y:.0f} {b.x + side:.0f},{b.y:.0f}"
    side = WIDTH / 2 if b.x > a.x else -WIDTH / 2
    middle = (a.x + b.x) / 2
    return f"M{a.x + side:.0f},{a.y:.0f} C{middle:.0f},{a.y:.0f} {middle:.0f},{b.y:.0f} {b.x - side:.0f},{b.y:.0f}"


def _kind(node: Node) -> str:
    return "reroute" if isinstance(node.op, Reroute) else node.op.word() if node.op.external else node.phase


def _label(node: Node, physical: Physical) -> Iterator[str]:
    if isinstance(node.op, Reroute):
        sent = node.op.bytes_per_rank(*(value.tensor_type for value in node.inputs))
        yield f"{node.op.name}  {sent:,.0f} bytes/rank"
        yield node.name
        return
    yield f"{node.op.word()}  {node.name}"
    yield f"{node.outputs[0].tensor_type}  {str(physical.layouts[node.outputs[0]]).rpartition(':')[2]}"


def _story(node: Node, physical: Physical) -> str:
    written = "\n".join(f"{value}: {value.tensor_type} {physical.layouts[value]}" for value in node.outputs)
    read = "\n".join(f"  reads {value}: {value.tensor_type} {physical.layouts[value]}" for value in node.inputs)
    return f"{written}\n= {node.op}\n{read}\n{node.where}"
