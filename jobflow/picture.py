"""A job as a page to look at: its physical graph drawn, and the tables of `explain`; one HTML file that needs nothing else.

The forward pass runs down the left lane, the backward pass up the middle one, beside what it is the gradient of, the update
down the right one.  Changes of layout are coloured pills that carry their bytes; pointing at a node shows its line in the
program and lights up what it reads and who reads it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from html import escape

from jobflow.compiler.box import Reroute
from jobflow.graph.ir import Node, Phase, Physical, Value

WIDTH, HEIGHT = 270, 40
COLUMN, ROW = 360, 56
MARGIN = 24
LANES: Mapping[Phase, int] = {"forward": 0, "backward": 1, "update": 2}
TITLES = ("forward", "backward", "update")


@dataclass(frozen=True)
class Spot:
    """Where a node is drawn: the middle of its box."""

    x: float
    y: float


def page(physical: Physical, tables: Mapping[str, str]) -> str:
    """The whole HTML file; `tables` are titles and texts that follow the picture."""
    title = escape(f"job {physical.graph.name} on {physical.graph.placement}")
    sections = "".join(f"<h2>{escape(name)}</h2><pre>{escape(text)}</pre>" for name, text in tables.items())
    return (
        f'<!DOCTYPE html><html lang="en"><head><meta charset="utf-8"><title>{title}</title><style>{STYLE}</style></head>'
        f'<body><h1>{title}</h1><div id="picture">{svg(physical)}</div>{sections}<script>{SCRIPT}</script></body></html>\n'
    )


def svg(physical: Physical) -> str:
    """The physical graph as one SVG element."""
    nodes = physical.graph.nodes
    number = {node: i for i, node in enumerate(nodes)}
    spots = arrange(nodes)
    height = max((spot.y for spot in spots.values()), default=0) + HEIGHT / 2 + MARGIN
    width = len(LANES) * COLUMN + 2 * MARGIN
    heads = "".join(f'<text class="lane" x="{_middle(lane)}" y="{MARGIN}">{name}</text>' for lane, name in enumerate(TITLES))
    edges = "".join(_edge(value, node, number, spots) for node in nodes for value in dict.fromkeys(node.inputs))
    boxes = "".join(_box(node, number[node], spots[node], physical) for node in nodes)
    return f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height:.0f}" width="{width}">{heads}<g>{edges}</g>{boxes}</svg>'


def arrange(nodes: tuple[Node, ...]) -> dict[Node, Spot]:
    """A lane for each phase; the backward lane is read from below, and the lanes are stretched to one length."""
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


def _edge(value: Value, reader: Node, number: Mapping[Node, int], spots: Mapping[Node, Spot]) -> str:
    a, b = spots[value.node], spots[reader]
    if a.x == b.x:  # within a lane: straight to the neighbour, around those in between
        bend = 0 if abs(b.y - a.y) < ROW * 1.5 else WIDTH / 2 + 30
        start, end = ((a.x, a.y), (b.x, b.y)) if not bend else ((a.x + WIDTH / 2, a.y), (b.x + WIDTH / 2, b.y))
        path = f"M{start[0]:.0f},{start[1]:.0f} C{a.x + bend:.0f},{a.y:.0f} {b.x + bend:.0f},{b.y:.0f} {end[0]:.0f},{end[1]:.0f}"
    else:
        side = WIDTH / 2 if b.x > a.x else -WIDTH / 2
        middle = (a.x + b.x) / 2
        path = f"M{a.x + side:.0f},{a.y:.0f} C{middle:.0f},{a.y:.0f} {middle:.0f},{b.y:.0f} {b.x - side:.0f},{b.y:.0f}"
    return f'<path class="from{number[value.node]} to{number[reader]}" d="{path}"/>'


def _box(node: Node, number: int, spot: Spot, physical: Physical) -> str:
    lines = list(_label(node, physical))
    kind = "reroute" if isinstance(node.op, Reroute) else node.op.word() if node.op.external else node.phase
    round_ = HEIGHT / 2 if kind == "reroute" else 5
    texts = "".join(f'<text x="{spot.x:.0f}" y="{spot.y - 4 + 15 * i:.0f}">{escape(_shortened(line))}</text>' for i, line in enumerate(lines))
    return (
        f'<g class="node {kind}" id="n{number}"><title>{escape(_story(node, physical))}</title>'
        f'<rect x="{spot.x - WIDTH / 2:.0f}" y="{spot.y - HEIGHT / 2:.0f}" width="{WIDTH}" height="{HEIGHT}" rx="{round_:.0f}"/>{texts}</g>'
    )


def _label(node: Node, physical: Physical) -> Iterator[str]:
    if isinstance(node.op, Reroute):
        sent = node.op.bytes_per_rank(*(value.type for value in node.inputs))
        yield f"{node.op.name}  {sent:,.0f} bytes/rank"
        yield node.name
        return
    yield f"{node.op.word()}  {node.name}"
    yield f"{node.outputs[0].type}  {_sbp(physical, node.outputs[0])}"


def _sbp(physical: Physical, value: Value) -> str:
    return str(physical.layouts[value]).rpartition(":")[2]


def _story(node: Node, physical: Physical) -> str:
    made = "\n".join(f"{value}: {value.type} {physical.layouts[value]}" for value in node.outputs)
    read = "\n".join(f"  reads {value}: {value.type} {physical.layouts[value]}" for value in node.inputs)
    return f"{made}\n= {node.op}\n{read}\n{node.where}"


def _shortened(text: str, most: int = 44) -> str:
    return text if len(text) <= most else f"{text[: most - 1]}…"


STYLE = """
body{font:14px system-ui,sans-serif;margin:2em;color:#222} h1{font-size:1.3em} h2{font-size:1.1em}
#picture{border:1px solid #ccc;overflow:auto;height:70vh;resize:vertical}
pre{font:12px ui-monospace,monospace;background:#f6f6f6;padding:1em;overflow:auto}
svg{font:11px ui-monospace,monospace} text{text-anchor:middle;pointer-events:none} .lane{font-size:14px;font-weight:bold}
path{fill:none;stroke:#999;stroke-opacity:.45} path.lit{stroke:#d22;stroke-opacity:1;stroke-width:2}
rect{fill:#e8f0fe;stroke:#5b7fc7} .backward rect{fill:#fdeee4;stroke:#c98a4b} .update rect{fill:#e9f6e9;stroke:#5fa05f}
.input rect,.readvariable rect{fill:#fff;stroke-dasharray:4 2} .reroute rect{fill:#ffd9e6;stroke:#c2185b} .node:hover rect{stroke-width:2.5}
"""

SCRIPT = """
const light = (id, on) => document.querySelectorAll(`.from${id}, .to${id}`).forEach(path => path.classList.toggle('lit', on));
document.querySelectorAll('.node').forEach(node => {
  const id = node.id.slice(1);
  node.addEventListener('mouseenter', () => light(id, true));
  node.addEventListener('mouseleave', () => light(id, false));
});
const picture = document.getElementById('picture'), drawing = picture.querySelector('svg');
picture.addEventListener('wheel', event => {
  if (!event.ctrlKey) return;
  event.preventDefault();
  drawing.setAttribute('width', drawing.getAttribute('width') * (event.deltaY < 0 ? 1.15 : 1 / 1.15));
}, {passive: false});
"""
