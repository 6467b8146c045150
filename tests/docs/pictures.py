"""The pictures of README and docs as SVG: layouts, changes of layout, products, meshes, strategies and pipelines, from jobflow's own objects."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import numpy as np
from drawings import FOUR, NAMES, TWO, A, W, X
from svg import RANKS, arrow, picture, rectangle, text

from jobflow.compiler.front.schedule import SCHEDULES, Form, Row, simulate
from jobflow.compiler.layouts import paths
from jobflow.core.layout import B, Layout, P, S, Sbp, layout
from jobflow.core.types import TensorType, float32

#: edge of a cell with a number
CELL = 20
#: edge of a quarter of the batch, or of the part of a layer that a rank may store
QUARTER = 13


def stored(where: Layout, rank: int) -> np.ndarray:
    """Return a mask of the elements of X that a rank stores."""
    mask = np.zeros(X.shape, bool)
    mask[where.box(X.shape, rank).slices] = True
    return mask


def cells(x: float, y: float, where: Layout, rank: int, edge: float = CELL, *, values: bool = True) -> Iterator[str]:
    """Yield the cells of one rank: coloured if the rank stores the element, dashed otherwise."""
    elements = np.outer(A[:, rank], W[rank]) if where.is_partial else X
    for (row, column), there in np.ndenumerate(stored(where, rank)):
        left, top = x + column * edge, y + row * edge
        colour = f"{RANKS[rank]}{' light' if where.is_partial else ''}"
        yield rectangle(left + 0.5, top + 0.5, edge - 1, edge - 1, colour if there else "empty", 2)
        if there and values:
            yield text(left + edge / 2, top + edge / 2 + 4, elements[row, column], "on" if where.is_partial else "in")


def layouts() -> str:
    """A 4 x 4 tensor in four layouts on two ranks."""
    shapes: list[str] = []
    for index, (sbp, name) in enumerate(NAMES.items()):
        left, top = 10 + 188 * (index % 2), 10 + 134 * (index // 2)
        shapes.append(text(left + 86, top + 12, name, "head"))
        for rank in TWO.ranks:
            x = left + rank * (4 * CELL + 12)
            shapes += [*cells(x, top + 20, layout(TWO, sbp), rank), text(x + 2 * CELL, top + 116, f"rank {rank}", "small faint")]
        if sbp == P:
            shapes.append(text(left + 86, top + 64, "+", "head"))
    return picture(274, "A tensor of 4 x 4 numbers on two ranks, in the layouts " + ", ".join(NAMES.values()), shapes)


def mesh() -> str:
    """The tensor on a mesh of two by two ranks, in two layouts."""
    shapes: list[str] = []
    for index, sbp in enumerate(((S(0), S(1)), (S(0), B))):
        left = 10 + 188 * index
        shapes.append(text(left + 86, 22, f"[{', '.join(NAMES[each] for each in sbp)}]", "head"))
        for rank in FOUR.ranks:
            x, y = left + rank % 2 * (4 * CELL + 12), 32 + rank // 2 * (4 * CELL + 22)
            shapes += [*cells(x, y, layout(FOUR, *sbp), rank), text(x + 2 * CELL, y + 4 * CELL + 12, f"rank {rank}", "small faint")]
    return picture(238, "A tensor of 4 x 4 numbers on a mesh of two by two ranks, in two layouts", shapes)


def boxing() -> str:
    """Changes of layout on two ranks, with the bytes that each rank sends."""
    kind, shapes = TensorType(X.shape, float32), list[str]()
    for index, (source, target) in enumerate(((S(0), B), (P, B), (P, S(0)), (S(0), S(1)), (B, S(0)))):
        top = 10 + 72 * index
        before, after = layout(TWO, source), layout(TWO, target)
        route = paths.direct(before, after)
        (sent,) = {paths.sent(route, before, after, kind).get(rank, 0) for rank in TWO.ranks}
        for where, sbp, left in ((before, source, 12), (after, target, 272)):
            shapes.append(text(left + 48, top + 10, NAMES[sbp], "small head"))
            for rank in TWO.ranks:
                shapes += cells(left + 50 * rank, top + 16, where, rank, 11, values=False)
        shapes += [arrow(122, top + 38, 262, top + 38), text(192, top + 31, route.replace("_", "-"))]
        shapes.append(text(192, top + 53, f"{sent} bytes" if sent else "nothing is sent", "small faint"))
    return picture(370, "Five changes of layout of a 4 x 4 tensor on two ranks", shapes)


def glyph(x: float, y: float, sbp: Sbp, edge: float = 44) -> Iterator[str]:
    """Yield a matrix on two ranks as one small square: two halves, two copies, or two addends."""
    if sbp in (S(0), S(1)):
        for rank in (0, 1):
            across = sbp == S(1)
            half = edge / 2 - 1
            left, top = (x + rank * edge / 2, y) if across else (x, y + rank * edge / 2)
            yield rectangle(left, top, half if across else edge, edge if across else half, RANKS[rank], 2)
        return
    offset, small = 9, edge - 9
    for rank in (1, 0):
        yield rectangle(x + rank * offset, y + rank * offset, small, small, f"{RANKS[rank]}{' light' if sbp == P else ''}", 2)
    if sbp == P:
        yield text(x + edge / 2, y + edge / 2 + 5, "+", "head")


#: layouts of x, w and y = x @ w, with the name of the method and what a rank computes
PRODUCTS = (
    (S(0), B, S(0), "data parallel", "each rank: some samples"),
    (B, S(1), S(1), "tensor parallel, columns", "each rank: some units"),
    (S(1), S(0), P, "tensor parallel, rows", "each rank: some addends"),
    (B, B, B, "replicated", "each rank: everything"),
)


def products() -> str:
    """Layouts of a matrix product that need no communication."""
    shapes = [text(x, 20, name, "head") for x, name in ((36, "x"), (106, "w"), (176, "y"))]
    for index, (x, w, y, name, meaning) in enumerate(PRODUCTS):
        top = 30 + 60 * index
        for left, sbp in ((14, x), (84, w), (154, y)):
            shapes += glyph(left, top, sbp)
        shapes += [text(71, top + 27, "@"), text(141, top + 27, "=")]
        shapes += [text(210, top + 20, name, "left head"), text(210, top + 35, meaning, "left small faint")]
    return picture(276, "Four ways to compute y = x @ w on two ranks without communication", shapes)


# -------------------------------------------------------------------- strategies

#: fractions of the batch and of the weights: (rank, index of a quarter, layer) -> 2 stored, 1 gathered for use, 0 never there
Share = Callable[[int, int, int], int]
ALL: Share = lambda rank, part, layer: 2  # noqa: E731
PART: Share = lambda rank, part, layer: 2 * (part == rank)  # noqa: E731
GATHERED: Share = lambda rank, part, layer: 2 if part == rank else 1  # noqa: E731
LAYER: Share = lambda rank, part, layer: 2 * (layer == rank)  # noqa: E731
HALF: Share = lambda rank, part, layer: 2 * (part // 2 == rank % 2)  # noqa: E731
GROUP: Share = lambda rank, part, layer: 2 * (part // 2 == rank // 2)  # noqa: E731


def quarters(x: float, y: float, rank: int, share: Share, rows: int, edge: float = QUARTER) -> Iterator[str]:
    """Yield a batch (one row of quarters) or weights (a row per layer) as a rank has them."""
    for row in range(rows):
        for part in range(4):
            kind = ("empty", f"{RANKS[rank]} light", RANKS[rank])[share(rank, part, row)]
            yield rectangle(x + part * edge + 0.5, y + row * edge + 0.5, edge - 1, edge - 1, kind, 1)


def ranks_with(title: str, rows: Sequence[tuple[str, Share, int]], transfers: Sequence[str]) -> str:
    """Return a picture of four ranks, with a line per kind of tensor, and lines about the transfers between the ranks."""
    shapes, top = [text(114 + 70 * rank, 20, f"rank {rank}", "small head") for rank in range(4)], 32.0
    for name, share, count in rows:
        height = QUARTER * count
        shapes.append(text(10, top + height / 2 + 4, name, "left small"))
        for rank in range(4):
            shapes += quarters(88 + 70 * rank, top, rank, share, count)
        top += height + 10
    if transfers:
        shapes.append(arrow(90, top + 4, 350, top + 4, both=True))
    for line in transfers:
        top += 18
        shapes.append(text(217, top, line, "small faint"))
    return picture(top + 14, title, shapes)


def data() -> str:
    rows = (("batch", PART, 1), ("weights", ALL, 4), ("optimizer", ALL, 4))
    return ranks_with("Data parallelism on four ranks", rows, ["all-reduce of the gradients, once per step"])


def tensor() -> str:
    rows = (("batch", ALL, 1), ("weights", PART, 4), ("optimizer", PART, 4))
    return ranks_with("Tensor parallelism on four ranks", rows, ["all-reduce of outputs, in each pair of layers"])


def hybrid() -> str:
    rows = (("batch", GROUP, 1), ("weights", HALF, 4), ("optimizer", HALF, 4))
    transfers = ["outputs: between 0 and 1, between 2 and 3", "gradients: between 0 and 2, between 1 and 3"]
    return ranks_with("Data and tensor parallelism on a mesh of two by two ranks", rows, transfers)


def zero() -> str:
    rows = (("batch", PART, 1), ("1: weights", GATHERED, 4), ("3: weights", lambda rank, part, layer: 2 if part == rank else int(layer == 1), 4))
    more = (("optimizer", PART, 4),)
    transfers = ["all-gather of weights, reduce-scatter of gradients"]
    return ranks_with("ZeRO on four ranks: weights in stages 1 and 3, and optimizer state", (*rows, *more), transfers)


def pipeline() -> str:
    rows = (("batch", ALL, 1), ("weights", LAYER, 4), ("optimizer", LAYER, 4))
    return ranks_with("A pipeline of four ranks", rows, ["outputs forward, gradients back, for each microbatch"])


def timelines() -> str:
    """Two schedules of four stages and four microbatches."""
    form, shapes, top = Form((0, 1, 2, 3), 4), list[str](), 10.0
    for name in ("gpipe", "1f1b"):
        shapes.append(text(10, top + 12, name, "left head"))
        shapes += timeline(SCHEDULES[name].rows(form), form, top + 20)
        top += 122
    shapes.append(text(190, top + 4, "numbers: microbatches; filled: forward, light: backward", "small faint"))
    return picture(top + 16, "Schedules of a pipeline of four stages with four microbatches, over time", shapes)


def timeline(rows: Sequence[Row], form: Form, top: float) -> Iterator[str]:
    simulation = simulate(rows, form.needs)
    unit = 308 / max(simulation.end.values())
    for group, row in enumerate(rows):
        y = top + 24 * group
        yield text(10, y + 14, f"stage {group}", "left small")
        for task in row:
            end = simulation.end[task]
            back = task.direction == "backward"
            kind = f"{RANKS[group]}{' light' if back else ''}"
            yield rectangle(60 + (end - 1) * unit + 0.5, y, unit - 1, 20, kind, 2)
            yield text(60 + (end - 0.5) * unit, y + 14, task.microbatch, "on" if back else "in")


# -------------------------------------------------------------------- how jobflow works

#: the stages of the compiler: what happens, and the value between this stage and the next
FLOW = (
    ("your program", "whole tensors, no ranks"),
    ("trace", "a graph: one node per operation"),
    ("differentiate, simplify", "with gradients and updates"),
    ("shard", "a layout for each tensor"),
    ("box", "communication where layouts differ"),
    ("divide", "one program per rank"),
    ("lower, fuse, order", "kernels, and their order"),
    ("plan memory", "an address for each buffer"),
    ("bind, run", "prepared calls, for each step"),
)


def flow() -> str:
    """The way from a call of a job to its execution."""
    shapes: list[str] = []
    for index, (name, meaning) in enumerate(FLOW):
        y, several = 10 + 48 * index, index >= 5
        for rank in reversed(range(4 if several else 1)):
            shapes.append(rectangle(10 + 4 * rank, y + 2 * rank, 156, 28, RANKS[rank] if several else "box", 5))
        shapes.append(text(88, y + 18, name, "in" if several else "head"))
        shapes.append(text(186, y + 18, meaning, "left small"))
        if index + 1 < len(FLOW):
            shapes.append(arrow(88, y + (35 if several else 28), 88, y + 47))
    return picture(10 + 48 * len(FLOW), "The stages from a program to the calls that ranks execute", shapes)


PICTURES: dict[str, Callable[[], str]] = {
    "layouts": layouts,
    "mesh": mesh,
    "boxing": boxing,
    "products": products,
    "data": data,
    "tensor": tensor,
    "hybrid": hybrid,
    "zero": zero,
    "pipeline": pipeline,
    "timelines": timelines,
    "flow": flow,
}
