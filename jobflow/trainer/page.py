"""HTML from parts: a page that needs nothing else, in the colours of the reader's system, for wide screens and narrow ones."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape


@dataclass(frozen=True)
class Html:
    """Text that is markup already; everything else is escaped."""

    text: str


Cell = str | Html


def markup(cell: Cell) -> str:
    return cell.text if isinstance(cell, Html) else escape(cell)


def table(head: Sequence[Cell], rows: Sequence[Sequence[Cell]], numbers: Sequence[int] = ()) -> Html:
    """Columns whose positions are in `numbers` stand to the right.  Wide ones scroll by themselves."""
    kinds = ['class="number"' if i in numbers else "" for i in range(len(head))]
    first = "".join(f"<th {kind}>{markup(cell)}</th>" for cell, kind in zip(head, kinds, strict=True))
    lines = "".join(f"<tr>{''.join(f'<td {kind}>{markup(cell)}</td>' for cell, kind in zip(row, kinds, strict=True))}</tr>" for row in rows)
    return Html(f'<div class="wide"><table><thead><tr>{first}</tr></thead><tbody>{lines}</tbody></table></div>')


def pairs(rows: Mapping[str, Cell]) -> Html:
    """Names and what they are."""
    return Html(f"<dl>{''.join(f'<dt>{escape(name)}</dt><dd>{markup(value)}</dd>' for name, value in rows.items())}</dl>")


def cards(rows: Sequence[tuple[str, str, str]]) -> Html:
    """Figures that are seen first: what, how much, and a remark."""
    each = "".join(
        f'<div class="card"><p>{escape(what)}</p><b>{escape(much)}</b><small>{escape(remark)}</small></div>' for what, much, remark in rows
    )
    return Html(f'<div class="cards">{each}</div>')


def stacked(rows: Sequence[tuple[str, Sequence[tuple[str, float, str]]]]) -> Html:
    """Bars of parts: (label, [(part, size, text)]), all on one scale; every part has the colour of its position."""
    whole = max((sum(size for _, size, _ in parts) for _, parts in rows), default=0.0) or 1.0
    names = list(dict.fromkeys(name for _, parts in rows for name, _, _ in parts))
    legend = "".join(f'<span><i class="part{i}"></i>{escape(name)}</span>' for i, name in enumerate(names))
    return Html(f'<div class="legend">{legend}</div>{"".join(_bar(label, parts, names, whole) for label, parts in rows)}')


def _bar(label: str, parts: Sequence[tuple[str, float, str]], names: Sequence[str], whole: float) -> str:
    pieces = "".join(
        f'<i class="part{names.index(name)}" style="width:{100 * size / whole:.3f}%" title="{escape(name)}: {escape(text)}"></i>'
        for name, size, text in parts
        if size > 0
    )
    return f'<div class="bar"><span>{escape(label)}</span><div>{pieces}</div></div>'


def figures(parts: Sequence[tuple[str, Html, str]]) -> Html:
    """Charts beside each other: title, picture, legend."""
    each = "".join(
        f"<figure><figcaption>{escape(title)}</figcaption>{picture.text}{legend}</figure>" for title, picture, legend in parts if picture.text
    )
    return Html(f'<div class="figures">{each}</div>')


def folded(title: str, content: Html, open_: bool = False) -> Html:
    """Something that is opened by a click."""
    return Html(f"<details{' open' if open_ else ''}><summary>{escape(title)}</summary>{content.text}</details>")


def paragraph(text: Cell) -> Html:
    return Html(f"<p>{markup(text)}</p>")


def together(*parts: Html) -> Html:
    return Html("".join(part.text for part in parts))


def page(title: str, badge: tuple[str, str], under: str, sections: Mapping[str, Html]) -> str:
    """The whole file; `badge` is a word and its kind: good, bad or plain."""
    links = "".join(f'<a href="#{_anchor(name)}">{escape(name)}</a>' for name in sections)
    body = "".join(
        f'<section id="{_anchor(name)}"><h2>{escape(name)}</h2>{content.text}</section>' for name, content in sections.items() if content.text
    )
    return (
        f'<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width, initial-scale=1">'
        f'<meta name="color-scheme" content="light dark"><title>{escape(title)}</title><style>{STYLE}</style></head><body>'
        f'<header><h1>{escape(title)} <span class="badge {badge[1]}">{escape(badge[0])}</span></h1><p>{escape(under)}</p><nav>{links}</nav></header>'
        f"<main>{body}</main></body></html>\n"
    )


def _anchor(name: str) -> str:
    return escape("-".join(name.lower().split()))


STYLE = """
:root{--ink:#1d2329;--faint:#5d6873;--paper:#fff;--raised:#f5f7f9;--rule:#dde2e7;--link:#0060a0;--good:#00724d;--bad:#b3261e;
--train:#0072b2;--validation:#d55e00;--test:#009e73;--other:#b0578d;
--p0:#0072b2;--p1:#56b4e9;--p2:#009e73;--p3:#e69f00;--p4:#cc79a7;--p5:#8a929a}
@media(prefers-color-scheme:dark){:root{--ink:#e4e8ec;--faint:#9aa5b0;--paper:#14181c;--raised:#1d2328;--rule:#323a42;--link:#6cb8f0;
--good:#4cc79c;--bad:#ff8a80;
--train:#56b4e9;--validation:#ff9a4d;--test:#3fcf9f;--other:#e39cc6;
--p0:#3a94d4;--p1:#8fd0f5;--p2:#2fb98d;--p3:#f0b53a;--p4:#dd93bb;--p5:#7d868e}}
*{box-sizing:border-box}
body{margin:0;background:var(--paper);color:var(--ink);font:16px/1.5 system-ui,-apple-system,"Segoe UI",Roboto,sans-serif}
header,main{max-width:1080px;margin:0 auto;padding:0 20px}
header{padding-top:28px} h1{font-size:1.7rem;margin:0;overflow-wrap:anywhere} header p{margin:.2em 0 .8em;color:var(--faint)}
h2{font-size:1.2rem;margin:2.2em 0 .7em;padding-bottom:.25em;border-bottom:1px solid var(--rule)}
h3{font-size:1rem;margin:1.5em 0 .5em}
nav{display:flex;flex-wrap:wrap;gap:.3em 1.1em;font-size:.92rem} a{color:var(--link);text-decoration:none} a:hover{text-decoration:underline}
main{padding-bottom:60px} p{margin:.5em 0} small{color:var(--faint)}
.badge{font-size:.8rem;font-weight:600;padding:.2em .7em;border-radius:1em;vertical-align:middle;border:1px solid currentColor;white-space:nowrap}
.good{color:var(--good)} .bad{color:var(--bad)} .plain{color:var(--faint)}
.cards{display:grid;grid-template-columns:repeat(auto-fill,minmax(150px,1fr));gap:12px;margin-top:1.2em}
.card{background:var(--raised);border-radius:8px;padding:10px 14px} .card p{margin:0;color:var(--faint);font-size:.86rem}
.card b{display:block;font-size:1.28rem;font-weight:600;overflow-wrap:anywhere} .card small{font-size:.8rem}
.figures{display:grid;grid-template-columns:repeat(auto-fill,minmax(min(100%,400px),1fr));gap:18px 24px}
figure{margin:0} figcaption{font-weight:600;font-size:.95rem;margin-bottom:.2em}
svg{display:block;width:100%;height:auto;font:12.5px system-ui,-apple-system,"Segoe UI",Roboto,sans-serif} svg text{fill:var(--faint)}
svg .end{text-anchor:end} svg .mid{text-anchor:middle}
.grid{stroke:var(--rule)} .axis{stroke:var(--faint)} .mark{stroke:var(--ink);stroke-dasharray:4 3}
.line{fill:none;stroke:var(--other);stroke-width:2;stroke-linejoin:round} .line.noise{stroke-width:1;opacity:.35}
.line.train{stroke:var(--train)} .line.validation{stroke:var(--validation)} .line.test{stroke:var(--test)}
circle{fill:var(--other)} circle.train,rect.train{fill:var(--train)} circle.validation{fill:var(--validation)} circle.test{fill:var(--test)}
.legend{display:flex;flex-wrap:wrap;gap:.2em 1.1em;font-size:.86rem;color:var(--faint);margin:.3em 0 .6em}
.legend i{display:inline-block;width:.85em;height:.85em;border-radius:2px;margin-right:.4em;vertical-align:-.08em;background:var(--other)}
.legend i.train{background:var(--train)} .legend i.validation{background:var(--validation)} .legend i.test{background:var(--test)}
.bar{display:flex;align-items:center;gap:.7em;margin:.35em 0;font-size:.88rem} .bar>span{flex:0 0 5.5em;color:var(--faint)}
.bar>div{flex:1;display:flex;height:1.35em;background:var(--raised);border-radius:4px;overflow:hidden} .bar i{display:block;height:100%}
.part0{background:var(--p0)!important}.part1{background:var(--p1)!important}.part2{background:var(--p2)!important}
.part3{background:var(--p3)!important}.part4{background:var(--p4)!important}.part5{background:var(--p5)!important}
.wide{overflow-x:auto;-webkit-overflow-scrolling:touch;margin:.6em 0}
table{border-collapse:collapse;font-size:.88rem;width:100%}
th,td{text-align:left;padding:.38em .9em .38em 0;border-bottom:1px solid var(--rule);vertical-align:top}
td:first-child{max-width:24em;overflow-wrap:anywhere}
th{color:var(--faint);font-weight:600;white-space:nowrap} .number{text-align:right;font-variant-numeric:tabular-nums;white-space:nowrap}
code{font-family:ui-monospace,SFMono-Regular,Menlo,Consolas,monospace;font-size:.92em;white-space:nowrap}
code.long{white-space:normal;overflow-wrap:anywhere}
dl{display:grid;grid-template-columns:minmax(7em,max-content) 1fr;gap:.3em 1.2em;margin:.6em 0;font-size:.92rem}
dt{color:var(--faint)} dd{margin:0;overflow-wrap:anywhere}
details{margin:.5em 0} summary{cursor:pointer;font-weight:600;font-size:.95rem}
@media(max-width:560px){header,main{padding-left:14px;padding-right:14px} dl{grid-template-columns:1fr;gap:0}
dd{margin-bottom:.55em} .bar>span{flex-basis:3.6em}}
@media print{nav{display:none} body{font-size:12px}}
"""
