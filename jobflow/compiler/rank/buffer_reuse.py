"""Buffer assignments that avoid copies.

`placements`: an op that only combines or reorders its inputs (`Op.places`) is free for inputs that are computed at their
position in the output.  A chain of views is followed back to the op that computes the values.  The product of an attention head
thus writes directly into the rows that the next product reads.  Gradients of parts of a tensor go directly into the tensor's gradient.

`reuse_buffers`: an op with `Op.in_place` writes its output into an input without later readers.  Such reuse needs less memory, and the
written memory is in cache already.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence, Set

from jobflow.compiler.rank.local import Collect, LocalInstruction, LocalValue, Receive, Send
from jobflow.compiler.rank.views import Orders, StridedWindow, inner_windows, own_window
from jobflow.kernels.patterns import Formats
from jobflow.ops.op import Op, ViewOp


def placements(
    steps: Sequence[LocalInstruction], default_windows: Mapping[LocalValue, StridedWindow], pinned: Set[LocalValue], orders: Orders, formats: Formats
) -> dict[LocalValue, StridedWindow]:
    """Return windows on outputs of later instructions, for values that can be computed there.

    Only ops that write strided memory as fast as dense memory (`Formats.strided`) are placed, and only if no view outside
    the chain reads their output.  `default_windows` contains the window that each value has before any placement.
    """
    makers = {value: step for step in steps for value in step.outputs}
    readers: dict[LocalValue, list[LocalInstruction]] = {}
    for step in steps:
        for value in dict.fromkeys(step.inputs):
            readers.setdefault(value, []).append(step)
    assigned: dict[LocalValue, StridedWindow] = {}
    for step in reversed(steps):
        if not isinstance(step.action, Op) or step.action.alias or len(step.outputs) != 1 or not step.inputs:
            continue
        (output,) = step.outputs
        if isinstance(step.action, ViewOp) and default_windows[output].root is not output:
            continue  # a view already
        base = assigned.get(output) or own_window(output, orders)
        for part, window in zip(step.inputs, inner_windows(step, base), strict=True):
            if window is not None and step.inputs.count(part) == 1:
                _compute_in_window(part, window, step, makers, readers, pinned, assigned, formats)
    return assigned


def _compute_in_window(
    value: LocalValue,
    window: StridedWindow,
    reader: LocalInstruction,
    makers: Mapping[LocalValue, LocalInstruction],
    readers: Mapping[LocalValue, list[LocalInstruction]],
    pinned: Set[LocalValue],
    assigned: dict[LocalValue, StridedWindow],
    formats: Formats,
) -> None:
    """Assign `window` to `value`, and matching windows to the values that it views, if their producer can write there."""
    chain: list[tuple[LocalValue, StridedWindow]] = []
    while True:
        others = [step for step in readers[value] if step is not reader]
        if value in pinned or value.slot is not None or value not in makers or any(isinstance(step.action, ViewOp) for step in others):
            return
        chain.append((value, window))
        maker = makers[value]
        if not isinstance(maker.action, Op) or maker.action.alias:
            return
        if not isinstance(maker.action, ViewOp):
            break
        inner = inner_windows(maker, window)
        if len(maker.inputs) != 1 or inner[0] is None:
            return
        value, window, reader = maker.inputs[0], inner[0], maker
    if formats.writes_strided(maker.action) and not any(output in assigned for output, _ in chain):
        assigned.update(chain)


def reuse_buffers(
    steps: Sequence[LocalInstruction],
    windows: Mapping[LocalValue, StridedWindow],
    allocation: Callable[[LocalValue], LocalValue],
    pinned: Set[LocalValue],
    inside: dict[LocalValue, tuple[LocalValue, int]],
) -> None:
    """Record in `inside` (value -> root, byte offset) the outputs that reuse the memory of an input of their instruction."""
    uses = _uses(steps, allocation)
    for at, step in enumerate(steps):
        if not isinstance(step.action, Op) or isinstance(step.action, ViewOp):
            continue
        for index, sources in step.action.in_place.items():
            output = step.outputs[index]
            if output in pinned or output.slot is not None or windows[output].root is not output:
                continue
            if allocation(output) is not output:
                _accumulate_in_join(step, at, output, [allocation(step.inputs[i]) for i in sources], windows, allocation, pinned, inside, uses)
                continue
            for source in (step.inputs[i] for i in sources):
                old = allocation(source)
                if _may_reuse(output, source, old, windows, pinned) and uses[old][-1] == at and step.inputs.count(source) == 1:
                    inside[output] = (windows[source].root, 0)
                    uses[old].extend(uses.pop(output))
                    break


def _accumulate_in_join(
    step: LocalInstruction,
    at: int,
    output: LocalValue,
    sources: Sequence[LocalValue],
    windows: Mapping[LocalValue, StridedWindow],
    allocation: Callable[[LocalValue], LocalValue],
    pinned: Set[LocalValue],
    inside: dict[LocalValue, tuple[LocalValue, int]],
    uses: dict[LocalValue, list[int]],
) -> None:
    """Place the input that `output` may overwrite at the output's offset in a join; a sum over microbatches then accumulates in its bucket."""
    for old in sources:
        alike = old.type == output.type and windows[old].root is old and windows[old].strides == windows[output].strides
        once = [allocation(value) for value in step.inputs].count(old) == 1
        if alike and once and old.slot is None and old not in pinned and output in inside and uses[old][-1] == at:
            uses[allocation(output)][:0] = uses.pop(old)
            inside[old] = inside[output]
            return


def _may_reuse(output: LocalValue, source: LocalValue, old: LocalValue, windows: Mapping[LocalValue, StridedWindow], pinned: Set[LocalValue]) -> bool:
    """Return True if `source` has the type and strides of `output`, and covers the allocation `old`, which is neither fixed nor pinned."""
    window = windows[source]
    alone = old.slot is None and old not in pinned and window.offset == 0 and old.type.nbytes == source.type.nbytes
    return alone and output.type == source.type and window.strides == windows[output].strides


def _uses(steps: Sequence[LocalInstruction], allocation: Callable[[LocalValue], LocalValue]) -> dict[LocalValue, list[int]]:
    """Return, per allocation, the ordered positions of the instructions that read or write it."""
    uses: dict[LocalValue, list[int]] = {}
    for at, step in enumerate(steps):
        for value in (*step.inputs, *step.outputs):
            uses.setdefault(allocation(value), []).append(at)
    return uses


def communicated(steps: Sequence[LocalInstruction]) -> set[LocalValue]:
    """Return the values that ranks communicate; their memory is not shared with other values."""
    return {value for step in steps if isinstance(step.action, Collect | Send | Receive) for value in (*step.inputs, *step.outputs)}
