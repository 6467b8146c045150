"""Shapes of an SVG picture that is readable on light and dark pages and on a phone; ranks have colours."""

from __future__ import annotations

from xml.sax.saxutils import escape

#: width of all pictures, in units of about a pixel on a phone
WIDTH = 380
#: how many pixels a unit has on a large screen
SCALE = 1.6
#: classes of the style below, by rank
RANKS = ("r0", "r1", "r2", "r3")
STYLE = """\
text { font: 12px system-ui, sans-serif; fill: #1f2328; text-anchor: middle }
text.left { text-anchor: start } text.small { font-size: 10px }
text.in, text.on { font-size: 11px } text.in { fill: #fff } text.faint { fill: #57606a } text.head { font-weight: 600 }
.card { fill: #fff; stroke: #d0d7de } .box { fill: #f6f8fa; stroke: #8c959f } .empty { fill: none; stroke: #8c959f; stroke-dasharray: 2 2 }
.line { fill: none; stroke: #57606a; stroke-width: 1.4 } .tip { fill: #57606a }
.r0 { fill: #2f6fb3; stroke: #2f6fb3 } .r1 { fill: #b8561a; stroke: #b8561a } .r2 { fill: #2f7d46; stroke: #2f7d46 }
.r3 { fill: #7a4fa3; stroke: #7a4fa3 } .r0, .r1, .r2, .r3 { stroke-width: 0 }
.r0.light, .r1.light, .r2.light, .r3.light { fill-opacity: .22; stroke-width: 1 }
@media (prefers-color-scheme: dark) {
text { fill: #e6edf3 } text.faint { fill: #9ea7b3 } .card { fill: #161b22; stroke: #3d444d } .box { fill: #212830; stroke: #656c76 }
.line { stroke: #9ea7b3 } .tip { fill: #9ea7b3 }
.r0 { fill: #3d7fc4; stroke: #6ba6e6 } .r1 { fill: #c2631f; stroke: #e58a48 } .r2 { fill: #348a4e; stroke: #5dbb7a }
.r3 { fill: #8a5fb5; stroke: #b08be0 }
}"""


def text(x: float, y: float, words: object, kind: str = "") -> str:
    name = f' class="{kind}"' if kind else ""
    return f'<text x="{x:g}" y="{y:g}"{name}>{escape(str(words))}</text>'


def rectangle(x: float, y: float, width: float, height: float, kind: str, radius: float = 0) -> str:
    round_corners = f' rx="{radius:g}"' if radius else ""
    return f'<rect x="{x:g}" y="{y:g}" width="{width:g}" height="{height:g}" class="{kind}"{round_corners}/>'


def arrow(x: float, y: float, to_x: float, to_y: float, *, both: bool = False) -> str:
    """Return an arrow along an axis, with a second head at its start if `both`."""
    across = abs(to_x - x) > abs(to_y - y)
    heads = [(to_x, to_y, 1 if (to_x > x if across else to_y > y) else -1)]
    if both:
        heads.append((x, y, -heads[0][2]))
    tips = "".join(_tip(*head, across=across) for head in heads)
    return f'<path d="M{x:g} {y:g}L{to_x:g} {to_y:g}" class="line"/>{tips}'


def _tip(x: float, y: float, sign: int, *, across: bool) -> str:
    back = 6 * sign
    corners = f"L{x - back:g} {y - 3.5:g}L{x - back:g} {y + 3.5:g}" if across else f"L{x - 3.5:g} {y - back:g}L{x + 3.5:g} {y - back:g}"
    return f'<path d="M{x:g} {y:g}{corners}Z" class="tip"/>'


def picture(height: float, title: str, shapes: list[str], width: float = WIDTH) -> str:
    """Return the file of a picture; `title` describes it to readers who do not see it."""
    size = f'width="{width * SCALE:g}" height="{height * SCALE:g}" viewBox="0 0 {width:g} {height:g}"'
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" {size} role="img">',
        f"<title>{escape(title)}</title>",
        f"<style>\n{STYLE}\n</style>",
        rectangle(0.5, 0.5, width - 1, height - 1, "card", 8),
        *shapes,
        "</svg>",
    ]
    return "\n".join(lines) + "\n"
