"""Layouts as HTML for notebooks: one square per rank, whose coloured area is the shard of the rank, with its shape and bytes.

The colours are legible on light and dark pages, and all texts have the colour of the page.
"""

from __future__ import annotations

from collections.abc import Iterator
from html import escape

from jobflow.core.layout import Broadcast, Layout, Partial, Sbp, Split
from jobflow.core.layout_blocks import Block, blocks
from jobflow.core.palette import AMBER, BLUE, GREEN, GREY, PURPLE, SKY
from jobflow.core.types import TensorType

#: colours of ranks in turn
COLOURS = (BLUE, SKY, GREEN, AMBER, PURPLE, GREY)
#: maximum number of ranks that are drawn, and of nested lists that the text of a placement shows
MOST_RANKS = 16
#: side of a square in pixels
SIDE = 56


def layout_html(type: TensorType, layout: Layout, text: str) -> str:
    """Return `text` and a drawing of a tensor's layout: placement, SBP, and the part of each rank."""
    size = layout.placement.size
    shown = blocks(layout, type.shape)[:MOST_RANKS]
    rest = f"<div>and {size - len(shown)} more ranks</div>" if size > len(shown) else ""
    columns = min(layout.placement.mesh[-1], MOST_RANKS)
    ranks = "".join(_rank(block, i, type, layout) for i, block in enumerate(shown))
    return (
        f'<div style="font-size:13px;line-height:1.4"><pre style="margin:0 0 6px;overflow-x:auto">{escape(text)}</pre>'
        f"<div>{escape(str(type))}, {type.nbytes:,} bytes, on {escape(str(layout.placement))}: {escape(_sbp_text(layout))}</div>"
        f'<div style="display:inline-grid;grid-template-columns:repeat({columns},auto);gap:8px 14px;margin:6px 0;max-width:100%;overflow-x:auto">'
        f"{ranks}</div>{rest}</div>"
    )


def _sbp_text(layout: Layout) -> str:
    """Return the SBP in words, one per dimension of the mesh."""
    return ", then ".join(map(_word, layout.sbp))


def _word(sbp: Sbp) -> str:
    if isinstance(sbp, Split):
        return f"split along axis {sbp.axis}"
    if isinstance(sbp, Partial):
        return f"partial: the tensor is the {sbp.reduce.value} of all ranks"
    assert isinstance(sbp, Broadcast)
    return "broadcast: a copy on each rank"


def _rank(block: Block, position: int, type: TensorType, layout: Layout) -> str:
    """Return the square of a rank, with the number of the rank, and shape and bytes of its part."""
    local = layout.local_type(type, block.rank)
    return (
        f'<div style="text-align:center"><div>rank {block.rank}</div>'
        f'<svg width="{SIDE}" height="{SIDE}" viewBox="0 0 {SIDE} {SIDE}" role="img" aria-label="{escape(_spoken(block, local, layout))}">'
        f'<rect x=".5" y=".5" width="{SIDE - 1}" height="{SIDE - 1}" fill="none" stroke="currentColor" stroke-opacity=".35"/>'
        f"{''.join(_shard(block, COLOURS[position % len(COLOURS)]))}</svg>"
        f'<div style="font-size:11px">{list(local.shape)}<br>{local.nbytes:,} bytes</div></div>'
    )


def _spoken(block: Block, local: TensorType, layout: Layout) -> str:
    return f"rank {block.rank} stores {'a summand' if layout.is_partial else 'a part'} of shape {list(local.shape)}"


def _shard(block: Block, colour: str) -> Iterator[str]:
    """Yield the coloured area, hatched for a summand."""
    x, y, width, height = (round(side * SIDE, 1) for side in (block.x, block.y, block.width, block.height))
    if not width or not height:
        return
    if not block.partial:
        yield f'<rect x="{x:g}" y="{y:g}" width="{width:g}" height="{height:g}" fill="{colour}" fill-opacity=".75"/>'
        return
    lines = "".join(f"M{at} {SIDE}L{at + SIDE} 0" for at in range(-SIDE, SIDE, 8))
    yield f'<svg x="{x:g}" y="{y:g}" width="{width:g}" height="{height:g}"><rect width="100%" height="100%" fill="{colour}" fill-opacity=".25"/>'
    yield f'<path d="{lines}" stroke="{colour}" stroke-width="2"/></svg>'
