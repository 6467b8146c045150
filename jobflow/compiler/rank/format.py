"""Memory orders that the target's table of formats prefers: around convolutions and pooling, and for products with few rows.

Policy for images on CPUs: operands [n, c, h, w] of convolutions and pooling ops are stored in the order c, h, w, n.  Tensors of their shape that
elementwise ops connect to them have the same order.  Then transforms, pooling, bias and activations are vector loops over the batch.  Padding
and im2col copy contiguous runs.  Flattening before a dense layer costs nothing: [n, c h w] in that order is a transposed
matrix, which a GEMM accepts.  Logical types do not change.  A kernel receives an array [n, c, h, w] with unusual strides.  With few
samples, such vectors are too short to save time (`Formats.fewest_samples`).

Policy for images on GPUs (`channels_last.py`): the order is n, h, w, c, whatever the number of samples.

Policy for matrices: a product that is computed faster in column-major order (`Formats.columns`) is stored in that order.  All matrices that
elementwise ops connect to it get the same order.  Every op that reads or writes these matrices must accept both orders (`Formats.any_order`).
Example: activations of a dense layer on 100 samples, their gradients, and the results of bias and activation function.

Values rematerialized for the backward pass (`recompute`) have the order of the originals.  Products in another order would round
differently.
"""

from __future__ import annotations

from collections.abc import Iterable

from jobflow.compiler.rank.channels_last import channels_last
from jobflow.compiler.rank.local import LocalValue, RankProgram
from jobflow.compiler.rank.value_groups import ValueGroups, batches, rematerialized_pairs
from jobflow.kernels.patterns import Formats
from jobflow.ops.op import Op, ViewOp


def memory_orders(program: RankProgram) -> dict[LocalValue, tuple[int, ...]]:
    """Return the memory orders that the target prefers, for values that are not C-ordered."""
    formats = program.target.patterns.formats
    if formats.channels_last:
        return channels_last(program)
    images = _batch_innermost(program, formats) if formats.images else {}
    return images | (dict.fromkeys(_columns_first(program, formats), (1, 0)) if formats.columns else {})


def _batch_innermost(program: RankProgram, formats: Formats) -> dict[LocalValue, tuple[int, ...]]:
    """Return the memory orders of images that are stored with the batch innermost."""
    smallest = formats.fewest_samples
    joined = ValueGroups(rematerialized_pairs(program))
    wants: list[LocalValue] = []
    for step in program.steps:
        if not isinstance(step.action, Op) or isinstance(step.action, ViewOp):
            continue
        if isinstance(step.action, formats.images):
            wants.extend(value for value in batches(step.action, step) if _is_image(value, smallest))
        else:
            joined.join_equal_shapes([value for value in (*step.inputs, *step.outputs) if _is_image(value, smallest)])
    chosen = {joined.find(value) for value in wants}
    images = (value for value in _allocated_values(program) if _is_image(value, smallest) and joined.find(value) in chosen)
    return {value: (*range(1, value.type.ndim), 0) for value in images}


def _columns_first(program: RankProgram, formats: Formats) -> Iterable[LocalValue]:
    """Return the matrices that are stored column by column."""
    joined = ValueGroups(rematerialized_pairs(program))
    wants: list[LocalValue] = []
    fixed = [argument.value for argument in program.arguments] + [value for _, value in program.fetches]
    for step in program.steps:
        matrices = [value for value in (*step.inputs, *step.outputs) if value.type.ndim == 2]
        fixed += [value for value in matrices if value.slot is not None]
        if not isinstance(step.action, Op) or not formats.accepts_any_order(step.action):
            fixed += matrices
        elif formats.prefers_columns(step.action, [value.type for value in step.inputs]):
            wants += step.outputs
        else:
            joined.join_equal_shapes(matrices)
    chosen = {joined.find(value) for value in wants} - {joined.find(value) for value in fixed}
    return [value for step in program.steps for value in step.outputs if value.type.ndim == 2 and joined.find(value) in chosen]


def _is_image(value: LocalValue, smallest: int) -> bool:
    return value.type.ndim >= 3 and value.type.shape[0] >= smallest


def _allocated_values(program: RankProgram) -> Iterable[LocalValue]:
    """Yield every value whose memory the plan allocates."""
    for argument in program.arguments:
        yield argument.value
    for step in program.steps:
        yield from step.outputs
