"""Where values are made so that nothing need be moved.

`placements`: an op that only brings its inputs together or into another order (`Op.places`) does nothing for an input that was
made where it has to lie in the output; a chain of views is followed back to the op that makes the numbers.  So heads of
attention are written by their product straight into the rows that the next product reads, and the gradients of the parts of a
tensor straight into the gradient of the tensor.

`overwritten`: an op that says so (`Op.in_place`) writes its output over an input that nobody reads afterwards: less memory, and
what is written is in the cache already.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence, Set

from jobflow.compiler.rank.local import Collect, Item, Receive, Send, Step
from jobflow.compiler.rank.views import Orders, StridedWindow, inner_windows, own_window
from jobflow.kernels.patterns import Formats
from jobflow.ops.op import Op, ViewOp


def placements(
    steps: Sequence[Step], found: Mapping[Item, StridedWindow], kept: Set[Item], orders: Orders, formats: Formats
) -> dict[Item, StridedWindow]:
    """Windows on outputs of later steps, for items that can be made there; `found` says where all would lie by themselves.

    Only ops that write into strided memory as fast as into dense (`Formats.strided`) are sent elsewhere, and only if no view
    besides the chain looks at what they make.
    """
    makers = {item: step for step in steps for item in step.outputs}
    readers: dict[Item, list[Step]] = {}
    for step in steps:
        for item in dict.fromkeys(step.inputs):
            readers.setdefault(item, []).append(step)
    placed: dict[Item, StridedWindow] = {}
    for step in reversed(steps):
        if not isinstance(step.action, Op) or step.action.alias or len(step.outputs) != 1 or not step.inputs:
            continue
        (output,) = step.outputs
        if isinstance(step.action, ViewOp) and found[output].root is not output:
            continue  # a view already
        base = placed.get(output) or own_window(output, orders)
        for part, window in zip(step.inputs, inner_windows(step, base), strict=True):
            if window is not None and step.inputs.count(part) == 1:
                _send_back(part, window, step, makers, readers, kept, placed, formats)
    return placed


def _send_back(
    item: Item,
    window: StridedWindow,
    reader: Step,
    makers: Mapping[Item, Step],
    readers: Mapping[Item, list[Step]],
    kept: Set[Item],
    placed: dict[Item, StridedWindow],
    formats: Formats,
) -> None:
    """Place `item`, which lies well in `window` for `reader`, and what it is a view of, if their maker can write there."""
    chain: list[tuple[Item, StridedWindow]] = []
    while True:
        others = [step for step in readers[item] if step is not reader]
        if item in kept or item.slot is not None or item not in makers or any(isinstance(step.action, ViewOp) for step in others):
            return
        chain.append((item, window))
        maker = makers[item]
        if not isinstance(maker.action, Op) or maker.action.alias:
            return
        if not isinstance(maker.action, ViewOp):
            break
        inner = inner_windows(maker, window)
        if len(maker.inputs) != 1 or inner[0] is None:
            return
        item, window, reader = maker.inputs[0], inner[0], maker
    if formats.writes_strided(maker.action) and not any(made in placed for made, _ in chain):
        placed.update(chain)


def overwritten(
    steps: Sequence[Step], windows: Mapping[Item, StridedWindow], home: Callable[[Item], Item], kept: Set[Item], inside: dict[Item, tuple[Item, int]]
) -> None:
    """Enter into `inside` every output that takes the memory of an input of its step."""
    uses = _uses(steps, home)
    for at, step in enumerate(steps):
        if not isinstance(step.action, Op) or isinstance(step.action, ViewOp):
            continue
        for index, sources in step.action.in_place.items():
            output = step.outputs[index]
            if output in kept or output.slot is not None or windows[output].root is not output:
                continue
            if home(output) is not output:
                _sum_up(step, at, output, [home(step.inputs[i]) for i in sources], windows, home, kept, inside, uses)
                continue
            for source in (step.inputs[i] for i in sources):
                old = home(source)
                if _may_take(output, source, old, windows, kept) and uses[old][-1] == at and step.inputs.count(source) == 1:
                    inside[output] = (windows[source].root, 0)
                    uses[old].extend(uses.pop(output))
                    break


def _sum_up(
    step: Step,
    at: int,
    output: Item,
    sources: Sequence[Item],
    windows: Mapping[Item, StridedWindow],
    home: Callable[[Item], Item],
    kept: Set[Item],
    inside: dict[Item, tuple[Item, int]],
    uses: dict[Item, list[int]],
) -> None:
    """Make what is written over where the output is joined to others: a sum over microbatches grows in the bucket it travels in."""
    for old in sources:
        alike = old.type == output.type and windows[old].root is old and windows[old].strides == windows[output].strides
        once = [home(item) for item in step.inputs].count(old) == 1
        if alike and once and old.slot is None and old not in kept and output in inside and uses[old][-1] == at:
            uses[home(output)][:0] = uses.pop(old)
            inside[old] = inside[output]
            return


def _may_take(output: Item, source: Item, old: Item, windows: Mapping[Item, StridedWindow], kept: Set[Item]) -> bool:
    """True if `source` is all there is in its memory, and lies as `output` would."""
    window = windows[source]
    alone = old.slot is None and old not in kept and window.offset == 0 and old.type.nbytes == source.type.nbytes
    return alone and output.type == source.type and window.strides == windows[output].strides


def _uses(steps: Sequence[Step], home: Callable[[Item], Item]) -> dict[Item, list[int]]:
    """At which steps anything in a home is touched, in order."""
    uses: dict[Item, list[int]] = {}
    for at, step in enumerate(steps):
        for item in (*step.inputs, *step.outputs):
            uses.setdefault(home(item), []).append(at)
    return uses


def communicated(steps: Sequence[Step]) -> set[Item]:
    """What ranks send each other: its memory is not shared with anything else."""
    return {item for step in steps if isinstance(step.action, Collect | Send | Receive) for item in (*step.inputs, *step.outputs)}
