"""Images with the channels innermost in memory, as convolutions of GPUs prefer (`Formats.channels_last`).

Operands [n, c, h, w] of convolutions and pooling ops are stored in the order n, h, w, c.  Tensors with as many axes that other ops connect to them
have the same order: sums, normalization, activations, concatenations and gradients.  Filters [o, c, h, w] are stored in the order o, h, w, c if the
plan allocates their memory.  Example: filters cast to half precision.

Arguments, variables, values that ranks communicate and values that the caller reads keep C order.  An elementwise op that reads or writes them
changes the order at no cost.  `convert_images` inserts a copy for each other value in C order that an op on images reads.

Example: images [n, h, w, c] of type uint8 that a program transposes, casts and convolves have the order already, so no element moves.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from jobflow.compiler.rank.local import LocalInstruction, LocalValue, RankProgram
from jobflow.compiler.rank.value_groups import ValueGroups, batches, rematerialized_pairs
from jobflow.compiler.rank.views import StridedWindow, ordered_strides, windows
from jobflow.core.types import TensorType, unread
from jobflow.kernels.patterns import Formats
from jobflow.ops.layout_ops import Copy
from jobflow.ops.op import Op, ViewOp

#: image or filter -> its axes from outermost to innermost
ImageOrders = dict[LocalValue, tuple[int, ...]]


def channels_last(program: RankProgram) -> ImageOrders:
    """Return the memory orders of the values that are stored with the channels innermost."""
    formats = program.target.patterns.formats
    produced = {value for step in _on_images(program, formats) for value in step.outputs}
    orders = _connected(program, formats)
    copied, read = _uses(program, orders)
    # if every reader needs C order, the op that computes the value writes it in C order
    orders = {value: order for value, order in orders.items() if value in produced or value in read or value not in copied}
    possible = {value: _order(value.type.ndim) for step in program.steps for value in _results(step, orders) if value in copied - read}
    if possible:  # gradients of filters that the program declares as [o, h, w, c]
        still_copied, _ = _uses(program, {**orders, **possible})
        orders.update((value, order) for value, order in possible.items() if value not in still_copied)
    return orders


def _uses(program: RankProgram, orders: ImageOrders) -> tuple[set[LocalValue], set[LocalValue]]:
    """Return the values that views copy or that the caller reads, and the values that other instructions read."""
    window_of = _windows(program, orders)
    copied, read = {window_of[value].root for _, value in program.fetches}, set[LocalValue]()
    for step in program.steps:
        if not isinstance(step.action, ViewOp):
            read.update(window_of[value].root for value in step.inputs)
        elif step.inputs and window_of[step.outputs[0]].root is step.outputs[0]:
            copied.add(window_of[step.inputs[0]].root)
    return copied, read


def _results(step: LocalInstruction, orders: ImageOrders) -> Iterator[LocalValue]:
    """Yield the results without an order of an elementwise op on a value with an order."""
    if isinstance(step.action, Op) and not isinstance(step.action, ViewOp | Copy):
        shapes = {value.type.shape for value in step.inputs if value in orders}
        yield from (value for value in step.outputs if value not in orders and value.slot is None and value.type.shape in shapes)


def convert_images(program: RankProgram) -> RankProgram:
    """Insert copies of values whose memory order differs from the order that an op on images, or the caller, requires."""
    formats = program.target.patterns.formats
    if not formats.channels_last or next(_on_images(program, formats), None) is None:
        return program
    orders = channels_last(program)
    window_of = _windows(program, orders)
    steps: list[LocalInstruction] = []
    copies: dict[LocalValue, LocalValue] = {}

    def copied(value: LocalValue, why: str, reader: LocalInstruction | None) -> LocalValue:
        if value not in copies:
            copies[value] = LocalValue(value.type, f"{value.name}:{why}")
            near = reader or next(step for step in program.steps if value in step.outputs)
            steps.append(replace(near, action=Copy(), inputs=(value,), outputs=(copies[value],), name=copies[value].name))
        return copies[value]

    for step in program.steps:
        if isinstance(step.action, formats.images):
            inputs = [value if _is_channels_last(value.type, window_of[value]) else copied(value, "channels last", step) for value in step.inputs]
            step = replace(step, inputs=tuple(inputs))
        steps.append(step)
    fetches = tuple((i, copied(value, "returned", None) if window_of[value].root in orders else value) for i, value in program.fetches)
    return replace(program, steps=tuple(steps), fetches=fetches)


def _connected(program: RankProgram, formats: Formats) -> ImageOrders:
    """Return the orders of the operands of ops on images, and of the values that other ops connect to images."""
    groups = ValueGroups(rematerialized_pairs(program))
    images: list[LocalValue] = []
    filters: set[LocalValue] = set()
    for step in program.steps:
        op = step.action
        operands = [value for value in (*step.inputs, *step.outputs) if value.type.ndim >= 3]
        if not isinstance(op, Op) or isinstance(op, Copy) or (isinstance(op, ViewOp) and not _keeps_channels(step)):
            continue
        if isinstance(op, formats.images):
            batched = batches(op, step)
            images += batched
            filters |= {value for value in operands if value not in batched}
        elif not isinstance(op, formats.products):
            groups.join_equal_axes(operands)
    chosen = {groups.find(value) for value in images}
    outputs = (value for step in program.steps for value in step.outputs if value.type.ndim >= 3 and value.slot is None)
    return {value: _order(value.type.ndim) for value in outputs if value in filters or groups.find(value) in chosen}


def _keeps_channels(step: LocalInstruction) -> bool:
    """Return True if a view of an image has the same axes, as a slice has."""
    assert isinstance(step.action, ViewOp)
    (image, *others), (output,) = step.inputs or step.outputs, step.outputs
    if others or min(image.type.ndim, output.type.ndim) < 3 or image.type.shape[1] < 2 or output.type.shape[1] < 2:
        return False
    try:
        view = step.action.view(unread(image.type, ordered_strides(image.type, _order(image.type.ndim))))
    except ValueError:
        return False
    return view.ndim == image.type.ndim and view.strides[1] == view.itemsize


def _on_images(program: RankProgram, formats: Formats) -> Iterator[LocalInstruction]:
    return (step for step in program.steps if isinstance(step.action, formats.images))


def _order(ndim: int) -> tuple[int, ...]:
    return (0, *range(2, ndim), 1)


def _is_channels_last(type: TensorType, window: StridedWindow) -> bool:
    """Return True if an image or filter is dense with the channels innermost; strides of axes of one element do not matter."""
    expected = ordered_strides(type, _order(type.ndim))
    return not type.size or all(n == 1 or a == b for n, a, b in zip(type.shape, window.strides, expected, strict=True))


def _windows(program: RankProgram, orders: ImageOrders) -> dict[LocalValue, StridedWindow]:
    return windows(program.steps, [*program.reads.values(), *(argument.value for argument in program.arguments)], orders)
