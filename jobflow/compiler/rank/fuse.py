"""RankProgram -> fewer, larger steps.

`use_triangles`: what reads values that are known to be zero above a diagonal is replaced by what skips these.

`absorb_makers`: an op that can make its own input does, if nobody else reads that.  An update along a product subtracts
that from the variable while it is computed; what is added to a product is laid down first, and the product adds itself to it.  What
one microbatch makes is not put off to another: all it is made of would stay alive.  Where the target fuses, what has an expression and
is made or read by what has one as well becomes part of a region instead.

Both go by tables of the target (`kernels/patterns.py`): rows say what becomes one operation.

`join_updates`: elementwise updates of variables that lie end to end become one update of the whole run.  State keeps the
variables of one group end to end, buckets keep their gradients in the same places, and where there is no bucket (one rank) the
gradients are asked to lie like the variables they belong to.  So a step of AdamW over fifty variables is one pass over flat
arrays, in blocks that stay in cache.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Iterator
from dataclasses import replace

from jobflow.compiler.rank.local import Builder, Item, Join, RankProgram, Step
from jobflow.compiler.rank.views import StridedWindow, is_dense, views_of, windows, written_over
from jobflow.core.types import TensorType, contiguous_strides
from jobflow.kernels.patterns import Fold
from jobflow.kernels.region import expression_on
from jobflow.ops.layout_ops import SliceBox
from jobflow.ops.op import Op
from jobflow.ops.update import Updated
from jobflow.plan.plan import Slot, aligned


def fuse(program: RankProgram) -> RankProgram:
    """Join what can be joined."""
    return join_updates(absorb_makers(use_triangles(program)))


def use_triangles(program: RankProgram) -> RankProgram:
    """Have every op that can skip the zeros above the diagonal of an input do so."""
    patterns = program.target.patterns
    if not patterns.triangles:
        return program
    rows = {row.reader: row for row in patterns.triangles}
    hits = list(program.hits)
    lower: set[Item] = set()
    steps: list[Step] = []
    for step in program.steps:
        if isinstance(step.action, Op):
            known = tuple(item in lower for item in step.inputs)
            keeps, row = patterns.lower.get(type(step.action)), rows.get(type(step.action))
            if keeps is not None and keeps(step.action, *known):
                lower.update(step.outputs)
            if row is not None and known[row.index]:
                step = replace(step, action=row.replacement(step.action))
                hits.append(row.name)
        steps.append(step)
    return replace(program, steps=tuple(steps), hits=tuple(hits))


def absorb_makers(program: RankProgram) -> RankProgram:
    """Let ops make the inputs that only they read; updates, and what runs among them, only from values that no update overwrites."""
    folds, hits = program.target.patterns.folds, list(program.hits)
    if not folds:
        return program
    stored = views_of(program.steps, set(program.reads.values()))
    over = written_over(program.steps)
    readers = Counter(item for step in program.steps for item in step.inputs)
    readers.update(item for _, item in program.fetches)
    after: dict[Item, list[Step]] = {item: [] for step in program.steps for item in step.outputs}
    for step in program.steps:
        for item in step.inputs:
            after.get(item, []).append(step)
    steps: list[Step] = []
    makers: dict[Item, Step] = {}
    late: set[Item] = set()
    for step in program.steps:
        among_updates = (isinstance(step.action, Op) and bool(step.action.alias)) or not late.isdisjoint(step.inputs)
        if among_updates:
            late.update(step.outputs)
        for index, item in enumerate(step.inputs):
            maker = makers.get(item)
            if (
                maker is None
                or readers[item] != 1
                or maker.microbatch != step.microbatch
                or (among_updates and any(i in stored or i in over for i in maker.inputs))
            ):
                continue
            in_loop = program.target.fusion and _fits_in_loop(step) and any(map(_fits_in_loop, (maker, *after[step.outputs[0]])))
            both, name = (None, "") if in_loop else _absorbed(folds, step, index, maker)
            if both is not None:
                steps.remove(maker)
                hits.append(name)
                step = both
                break
        steps.append(step)
        if len(step.outputs) == 1:
            makers[step.outputs[0]] = step
    return replace(program, steps=tuple(steps), hits=tuple(hits))


def _fits_in_loop(step: Step) -> bool:
    """True for what a region takes, with more around it."""
    return isinstance(step.action, Op) and expression_on(step.action, *(item.type for item in step.inputs)) is not None


def _absorbed(folds: Iterable[Fold], step: Step, index: int, maker: Step) -> tuple[Step | None, str]:
    """The step that also does what the maker of its input `index` does, by which row."""
    if isinstance(step.action, Op) and isinstance(maker.action, Op):
        for row in folds:
            both = row.folded(step.action, index, maker.action, [item.type for item in step.inputs])
            if both is not None:
                return replace(step, action=both, inputs=(*step.inputs[:index], *maker.inputs, *step.inputs[index + 1 :])), row.name
    return None, ""


def join_updates(program: RankProgram) -> RankProgram:
    """One update op per run of variables that lie end to end and are updated alike."""
    arguments = [argument.item for argument in program.arguments]
    found = windows(program.steps, [*program.reads.values(), *arguments], {})
    position = {id(step): i for i, step in enumerate(program.steps)}
    instead: dict[int, list[Step]] = {}
    for run in _runs(program, found):
        for step in run:
            instead[position[id(step)]] = []
        instead[max(position[id(step)] for step in run)] = _joined(program.rank, run, found)
    steps = [new for i, step in enumerate(program.steps) for new in instead.get(i, [step])]
    return replace(program, steps=tuple(steps))


def _runs(program: RankProgram, found: dict[Item, StridedWindow]) -> Iterator[list[Step]]:
    """Groups of at least two updates with one op and the same scalars, whose variables and gradients follow each other in memory."""
    groups: dict[object, list[Step]] = {}
    read = {item for step in program.steps for item in step.inputs} | {item for _, item in program.fetches}
    ends = {(_slot(item).buffer, _slot(item).stop) for item in program.reads.values()}
    for step in program.steps:
        op = step.action
        if not isinstance(op, Updated) or not op.flat or read & set(step.outputs):
            continue
        if all(item.slot is not None for item in step.inputs[: op.count]):
            slots = [_slot(item) for item in step.inputs[: op.count]]
            scalars = step.inputs[op.count + op.like :]
            key = (op, scalars, step.inputs[0].type.dtype, tuple(slot.buffer for slot in slots))
            groups.setdefault(key, []).append(step)
    for group in groups.values():
        run: list[Step] = []
        for step in sorted(group, key=lambda s: _slot(s.inputs[0]).offset):
            if run and not (_follows(run[-1], step, ends) and _gradients_follow(run[-1], step, found)):
                if len(run) > 1:
                    yield run
                run = []
            run.append(step)
        if len(run) > 1:
            yield run


def _slot(item: Item) -> Slot:
    assert item.slot is not None
    return item.slot


def _follows(a: Step, b: Step, ends: Collection[tuple[str, int]]) -> bool:
    """True if variables lie one after another; what is between two of them belongs to neither, but behind a part of one is the rest of it."""
    assert isinstance(a.action, Updated)
    pairs = zip(a.inputs[: a.action.count], b.inputs[: a.action.count], strict=True)
    slots = [(_slot(x), _slot(y)) for x, y in pairs]
    return all(x.stop == y.offset or (aligned(x.stop) == y.offset and (x.buffer, x.stop) in ends) for x, y in slots)


def _gradients_follow(a: Step, b: Step, found: dict[Item, StridedWindow]) -> bool:
    """True if the gradients lie like the variables already (in a bucket), or can be made to (each has memory of its own)."""
    assert isinstance(a.action, Updated)
    apart = _slot(b.inputs[0]).offset - _slot(a.inputs[0]).offset
    for x, y in zip(a.inputs[a.action.count :], b.inputs[a.action.count : a.action.count + a.action.like], strict=False):
        v, w = found[x], found[y]
        if v.root is w.root:
            if w.offset - v.offset != apart:
                return False
        elif not (_has_own_memory(x, v) and _has_own_memory(y, w)):
            return False
    return True


def _has_own_memory(item: Item, window: StridedWindow) -> bool:
    return window.root.slot is None and window.root.type.nbytes == item.type.nbytes


def _joined(rank: int, run: list[Step], found: dict[Item, StridedWindow]) -> list[Step]:
    """The steps that replace a run: bring the gradients together if they are not, and update all at once."""
    op = run[0].action
    assert isinstance(op, Updated)
    first, last = _slot(run[0].inputs[0]), _slot(run[-1].inputs[0])
    dtype = first.type.dtype
    flat = TensorType(((last.stop - first.offset) // dtype.itemsize,), dtype)
    name = f"{run[0].name}..{run[-1].name}"
    build = Builder(rank, name=name, where=run[0].where, phase="update")
    offsets = [_slot(step.inputs[0]).offset - first.offset for step in run]
    variables = tuple(_span(step_item, flat) for step_item in run[0].inputs[: op.count])
    tensors = []
    for position in range(op.count, op.count + op.like):
        tensors.append(_together(build, [step.inputs[position] for step in run], offsets, flat, found))
    inputs = (*variables, *tensors, *run[0].inputs[op.count + op.like :])
    build.computes(op, inputs, name, (flat,) * op.count)
    return build.steps


def _span(item: Item, flat: TensorType) -> Item:
    slot = _slot(item)
    return Item(flat, f"{item.name}..", slot=Slot(slot.buffer, slot.offset, flat, contiguous_strides(flat.shape, flat.dtype.itemsize)))


def _together(build: Builder, items: list[Item], offsets: list[int], flat: TensorType, found: dict[Item, StridedWindow]) -> Item:
    """One flat item in which items[i] lies offsets[i] bytes from the start."""
    where = [found[item] for item in items]
    root, start = where[0].root, where[0].offset
    lie_so = all(
        w.root is root and w.offset - start == offset and is_dense(item.type, w) for w, offset, item in zip(where, offsets, items, strict=True)
    )
    if lie_so and root.type.ndim == 1 and root.type.dtype is flat.dtype:
        begin = start // flat.dtype.itemsize
        if begin + flat.shape[0] <= root.type.shape[0]:
            return build.compute(SliceBox((begin,), (begin + flat.shape[0],)), root)
    joined = Item(flat, f"{build.name}:gradients")
    parts = tuple(build.flatten(item) for item in items)
    build.append(Join(tuple(offsets)), parts, (joined,))
    return joined
