"""The memory order of values where the target's table of formats prefers one: around convolutions and pooling, and products with few rows.

Policy for images: a tensor [n, c, h, w] that a convolution or a pooling op reads or writes, and every tensor of its shape that is joined
to it by elementwise ops, is stored in the order c, h, w, n.  Then transforms, pooling, bias and activations are vector loops
over the batch, padding and im2col are copies of contiguous runs, and flattening before a dense layer costs nothing, because
[n, c h w] in that order is a transposed matrix that a GEMM takes as it is.  Logical types do not change: a kernel sees an array
[n, c, h, w] with unusual strides.  With few samples the vectors are too short to pay (`Formats.fewest_samples`).

Policy for matrices: a matrix whose product says it is made faster column by column (`Formats.columns`) is stored so, together
with all that elementwise ops join to it, if every op that touches any of these takes both orders alike (`Formats.any_order`).
Example: activations of a dense layer on 100 samples, their gradients, and what bias and activation function make of them.

What is made again for the backward pass (`recompute`) is stored like what it repeats: products of other orders round otherwise.
"""

from __future__ import annotations

from collections.abc import Iterable

from jobflow.compiler.front.recompute import AGAIN
from jobflow.compiler.rank.local import Item, RankProgram, Step
from jobflow.kernels.patterns import Formats
from jobflow.ops.op import Op, ViewOp


def format_items(program: RankProgram) -> dict[Item, tuple[int, ...]]:
    """The memory order of every item that is not C-ordered, as the target prefers it."""
    formats = program.target.patterns.formats
    images = _batch_innermost(program, formats) if formats.images else {}
    return images | (dict.fromkeys(_columns_first(program, formats), (1, 0)) if formats.columns else {})


def _batch_innermost(program: RankProgram, formats: Formats) -> dict[Item, tuple[int, ...]]:
    """The images that are stored with the batch innermost."""
    smallest = formats.fewest_samples
    joined = _Groups(_repeated(program))
    wants: list[Item] = []
    for step in program.steps:
        if not isinstance(step.action, Op) or isinstance(step.action, ViewOp):
            continue
        if isinstance(step.action, formats.images):
            wants.extend(item for item in _batches(step.action, step) if _is_image(item, smallest))
        else:
            joined.join_equal_shapes([item for item in (*step.inputs, *step.outputs) if _is_image(item, smallest)])
    chosen = {joined.find(item) for item in wants}
    images = (item for item in _own_items(program) if _is_image(item, smallest) and joined.find(item) in chosen)
    return {item: (*range(1, item.type.ndim), 0) for item in images}


def _columns_first(program: RankProgram, formats: Formats) -> Iterable[Item]:
    """The matrices that are stored column by column."""
    joined = _Groups(_repeated(program))
    wants: list[Item] = []
    fixed = [argument.item for argument in program.arguments] + [item for _, item in program.fetches]
    for step in program.steps:
        matrices = [item for item in (*step.inputs, *step.outputs) if item.type.ndim == 2]
        fixed += [item for item in matrices if item.slot is not None]
        if not isinstance(step.action, Op) or not formats.takes_any_order(step.action):
            fixed += matrices
        elif formats.wants_columns(step.action, [item.type for item in step.inputs]):
            wants += step.outputs
        else:
            joined.join_equal_shapes(matrices)
    chosen = {joined.find(item) for item in wants} - {joined.find(item) for item in fixed}
    return [item for step in program.steps for item in step.outputs if item.type.ndim == 2 and joined.find(item) in chosen]


def _repeated(program: RankProgram) -> Iterable[list[Item]]:
    """Items with what they repeat."""
    made = {item.name: item for step in program.steps for item in step.outputs}
    for name, item in made.items():
        if name.startswith(AGAIN) and name.removeprefix(AGAIN) in made:
            yield [item, made[name.removeprefix(AGAIN)]]


def _batches(op: Op, step: Step) -> list[Item]:
    """The operands that carry the batch, letter n of the rule; the others are weights."""
    words = op.rule(*(item.type for item in step.inputs)).spec.replace("->", ",").split(",")
    return [item for item, word in zip((*step.inputs, *step.outputs), words, strict=True) if word.startswith("n")]


class _Groups:
    """Sets of items that share a memory order (union-find)."""

    def __init__(self, joined: Iterable[list[Item]] = ()) -> None:
        self.parent: dict[Item, Item] = {}
        for items in joined:
            self.join_equal_shapes(items)

    def find(self, item: Item) -> Item:
        while item in self.parent:
            item = self.parent[item]
        return item

    def join_equal_shapes(self, items: list[Item]) -> None:
        first: dict[tuple[int, ...], Item] = {}
        for item in items:
            a, b = self.find(item), self.find(first.setdefault(item.type.shape, item))
            if a is not b:
                self.parent[a] = b


def _is_image(item: Item, smallest: int) -> bool:
    return item.type.ndim >= 3 and item.type.shape[0] >= smallest


def _own_items(program: RankProgram) -> Iterable[Item]:
    """Every item whose memory the plan gives out."""
    for argument in program.arguments:
        yield argument.item
    for step in program.steps:
        yield from step.outputs
