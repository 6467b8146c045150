"""Padding of rows that matrix products read or write, so that each row starts at a multiple of a number of elements.

Libraries multiply matrices with aligned rows faster, and support their fastest algorithms only for them (`Formats.rows`).  Example: the scores of
50,257 words are stored in rows of 50,304.  Logical types do not change; kernels receive arrays with larger strides.

A value is padded if the plan allocates its memory alone, and if all views of it remain views.  Values that ranks communicate or that the caller
reads are not padded.  Values that an operation may overwrite with padded values of the same type are padded too, so that memory is still reused.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence, Set

from jobflow.compiler.rank.local import Join, LocalInstruction, LocalValue
from jobflow.compiler.rank.views import Orders, PaddedRows, StridedWindow, windows, written_over
from jobflow.core.types import TensorType
from jobflow.kernels.patterns import Formats
from jobflow.ops.op import Op, ViewOp


def padded_rows(
    steps: Sequence[LocalInstruction],
    roots: Sequence[LocalValue],
    orders: Orders,
    default_windows: Mapping[LocalValue, StridedWindow],
    pinned: Set[LocalValue],
    formats: Formats,
) -> dict[LocalValue, PaddedRows]:
    """Return the padded values.  `default_windows` contains the window of each value without padding; `pinned` values are not padded."""
    if not formats.rows:
        return {}
    allowed = _allowed(steps, orders, default_windows, pinned, formats)
    chosen = {default_windows[value].root for value in _operands(steps, formats)} & allowed
    pairs = [pair for pair in _reuses(steps) if chosen and allowed.issuperset(pair)]
    while grown := {value for pair in pairs if len(chosen.intersection(pair)) == 1 for value in pair} - chosen:
        chosen |= grown
    while chosen:
        padded = {value: PaddedRows(row_length(value.type, formats)) for value in chosen}
        padded_windows = windows(steps, roots, {**orders, **padded})
        copied = {default_windows[value].root for value, window in padded_windows.items() if window.root is value is not default_windows[value].root}
        if copied.isdisjoint(chosen):
            return padded
        chosen -= copied
    return {}


def row_length(type: TensorType, formats: Formats) -> int:
    """Return the number of elements from one row to the next, for rows of the last axis."""
    length = type.shape[-1]
    multiple = next((multiple for least, multiple in formats.rows if length >= least), 1)
    return -(-length // multiple) * multiple


def _allowed(
    steps: Sequence[LocalInstruction],
    orders: Orders,
    window_of: Mapping[LocalValue, StridedWindow],
    pinned: Set[LocalValue],
    formats: Formats,
) -> set[LocalValue]:
    """Return the values that may be padded."""
    fixed = {window_of[value].root for value in pinned if value in window_of} | set(orders)
    fixed |= {window_of[value].root for step in steps if isinstance(step.action, Join) for value in (*step.inputs, *step.outputs)}
    for new, old in written_over(tuple(steps)).items():
        fixed |= {window_of[new].root, window_of[old].root}
    return {
        value
        for step in steps
        if isinstance(step.action, Op) and not isinstance(step.action, ViewOp)
        for value in step.outputs
        if value not in fixed
        and window_of[value].root is value
        and value.slot is None
        and value.type.ndim > 1
        and value.type.size
        and row_length(value.type, formats) != value.type.shape[-1]
    }


def _operands(steps: Sequence[LocalInstruction], formats: Formats) -> Iterator[LocalValue]:
    for step in steps:
        if isinstance(step.action, formats.products):
            yield from step.inputs
            yield from step.outputs


def _reuses(steps: Sequence[LocalInstruction]) -> Iterator[tuple[LocalValue, LocalValue]]:
    """Yield the pairs of an output and an input of the same type that the output may overwrite."""
    for step in steps:
        if isinstance(step.action, Op) and not isinstance(step.action, ViewOp):
            for index, sources in step.action.in_place.items():
                yield from ((step.outputs[index], step.inputs[i]) for i in sources if step.inputs[i].type == step.outputs[index].type)
