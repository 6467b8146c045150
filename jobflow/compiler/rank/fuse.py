"""RankProgram -> fewer, larger instructions.

`use_triangles` replaces readers of values with known zeros above a diagonal by ops that skip the zeros.

`absorb_makers` folds a producer into its only reader.  An update that subtracts a product does so while the product is computed.
An addend of a product is written first, and the product accumulates into it.  Producers are not folded into another
microbatch, because all their inputs would stay alive.  If the target fuses, operations with expressions become part of a region
instead, provided that a neighbour has an expression too.

Both passes use tables of the target (`kernels/patterns.py`), whose rows list the combined operations.

`join_updates` merges elementwise updates of contiguous variables into one update.  Variables of a group are stored
contiguously, and buckets give their gradients the same offsets.  Without a bucket (one rank), the gradients are placed like their
variables.  A step of AdamW over fifty variables is therefore one pass over flat arrays, in blocks that stay in cache.

On GPUs, `scale_in_updates` and `join_square_sums` (`compiler/rank/clipped_updates.py`) clip gradients in few launches, and `add_shadows`
(`compiler/rank/shadowed_updates.py`) removes casts of variables.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Iterator
from dataclasses import replace

from jobflow.compiler.rank.clipped_updates import join_square_sums, scale_in_updates
from jobflow.compiler.rank.joined_space import fits_in_loop
from jobflow.compiler.rank.local import Builder, Join, LocalInstruction, LocalValue, RankProgram
from jobflow.compiler.rank.product_epilogues import merge_epilogues
from jobflow.compiler.rank.shadowed_updates import add_shadows
from jobflow.compiler.rank.views import StridedWindow, is_dense, views_of, windows, written_over
from jobflow.core.types import TensorType, contiguous_strides
from jobflow.kernels.patterns import Fold
from jobflow.ops.layout_ops import SliceBox
from jobflow.ops.op import Op
from jobflow.ops.update import Updated
from jobflow.plan.plan import Slot, aligned


def fuse(program: RankProgram) -> RankProgram:
    """Apply the passes of this module in order."""
    merged = absorb_makers(merge_epilogues(use_triangles(program)))
    return add_shadows(join_square_sums(join_updates(scale_in_updates(merged))))


def use_triangles(program: RankProgram) -> RankProgram:
    """Replace ops whose input has zeros above the diagonal by ops that skip these zeros."""
    patterns = program.target.patterns
    if not patterns.triangles:
        return program
    rows = {row.reader: row for row in patterns.triangles}
    hits = list(program.hits)
    lower: set[LocalValue] = set()
    steps: list[LocalInstruction] = []
    for step in program.steps:
        if isinstance(step.action, Op):
            known = tuple(value in lower for value in step.inputs)
            keeps, row = patterns.lower.get(type(step.action)), rows.get(type(step.action))
            if keeps is not None and keeps(step.action, *known):
                lower.update(step.outputs)
            if row is not None and known[row.index]:
                step = replace(step, action=row.replacement(step.action))
                hits.append(row.name)
        steps.append(step)
    return replace(program, steps=tuple(steps), hits=tuple(hits))


def absorb_makers(program: RankProgram) -> RankProgram:
    """Fold producers into their only readers.

    Updates, and ops that depend on updates, absorb only producers whose inputs no update overwrites.
    """
    folds, hits = program.target.patterns.folds, list(program.hits)
    if not folds:
        return program
    stored = views_of(program.steps, set(program.reads.values()))
    over = written_over(program.steps)
    readers = Counter(value for step in program.steps for value in step.inputs)
    readers.update(value for _, value in program.fetches)
    after: dict[LocalValue, list[LocalInstruction]] = {value: [] for step in program.steps for value in step.outputs}
    for step in program.steps:
        for value in step.inputs:
            after.get(value, []).append(step)
    steps: list[LocalInstruction] = []
    makers: dict[LocalValue, LocalInstruction] = {}
    late: set[LocalValue] = set()
    for step in program.steps:
        among_updates = (isinstance(step.action, Op) and bool(step.action.alias)) or not late.isdisjoint(step.inputs)
        if among_updates:
            late.update(step.outputs)
        for index, value in enumerate(step.inputs):
            maker = makers.get(value)
            if (
                maker is None
                or readers[value] != 1
                or maker.microbatch != step.microbatch
                or (among_updates and any(i in stored or i in over for i in maker.inputs))
            ):
                continue
            kind = program.target.kind
            in_loop = program.target.fusion and fits_in_loop(step, kind) and any(fits_in_loop(x, kind) for x in (maker, *after[step.outputs[0]]))
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


def _absorbed(folds: Iterable[Fold], step: LocalInstruction, index: int, maker: LocalInstruction) -> tuple[LocalInstruction | None, str]:
    """Return the instruction that includes the producer of its input `index`, and the name of the applied row; (None, "") if no row applies."""
    if isinstance(step.action, Op) and isinstance(maker.action, Op):
        for row in folds:
            both = row.folded(step.action, index, maker.action, [value.type for value in step.inputs])
            if both is not None:
                return replace(step, action=both, inputs=(*step.inputs[:index], *maker.inputs, *step.inputs[index + 1 :])), row.name
    return None, ""


def join_updates(program: RankProgram) -> RankProgram:
    """Merge updates of contiguous variables with the same op and scalars."""
    arguments = [argument.value for argument in program.arguments]
    window_of = windows(program.steps, [*program.reads.values(), *arguments], {})
    position = {id(step): i for i, step in enumerate(program.steps)}
    instead: dict[int, list[LocalInstruction]] = {}
    for run in _runs(program, window_of):
        for step in run:
            instead[position[id(step)]] = []
        instead[max(position[id(step)] for step in run)] = _joined(program.rank, run, window_of)
    steps = [new for i, step in enumerate(program.steps) for new in instead.get(i, [step])]
    return replace(program, steps=tuple(steps))


def _runs(program: RankProgram, window_of: dict[LocalValue, StridedWindow]) -> Iterator[list[LocalInstruction]]:
    """Yield runs of at least two updates with one op and the same scalars, whose variables and gradients are contiguous."""
    groups: dict[object, list[LocalInstruction]] = {}
    read = {value for step in program.steps for value in step.inputs} | {value for _, value in program.fetches}
    ends = {(_slot(value).buffer, _slot(value).stop) for value in program.reads.values()}
    for step in program.steps:
        op = step.action
        if not isinstance(op, Updated) or not op.flat or read & set(step.outputs):
            continue
        if all(value.slot is not None for value in step.inputs[: op.count]):
            slots = [_slot(value) for value in step.inputs[: op.count]]
            scalars = step.inputs[op.count + op.like :]
            key = (op, scalars, step.inputs[0].type.dtype, tuple(slot.buffer for slot in slots))
            groups.setdefault(key, []).append(step)
    for group in groups.values():
        run: list[LocalInstruction] = []
        for step in sorted(group, key=lambda s: _slot(s.inputs[0]).offset):
            if run and not (_follows(run[-1], step, ends) and _gradients_follow(run[-1], step, window_of)):
                if len(run) > 1:
                    yield run
                run = []
            run.append(step)
        if len(run) > 1:
            yield run


def _slot(value: LocalValue) -> Slot:
    assert value.slot is not None
    return value.slot


def _follows(a: LocalInstruction, b: LocalInstruction, ends: Collection[tuple[str, int]]) -> bool:
    """Return True if the variables of `b` directly follow the variables of `a` in memory.

    An alignment gap may separate two variables, but not two parts of one variable.
    """
    assert isinstance(a.action, Updated)
    pairs = zip(a.inputs[: a.action.count], b.inputs[: a.action.count], strict=True)
    slots = [(_slot(x), _slot(y)) for x, y in pairs]
    return all(x.stop == y.offset or (aligned(x.stop) == y.offset and (x.buffer, x.stop) in ends) for x, y in slots)


def _gradients_follow(a: LocalInstruction, b: LocalInstruction, window_of: dict[LocalValue, StridedWindow]) -> bool:
    """Return True if the gradients have the variables' relative offsets in a bucket, or have separate memory and can move to these offsets."""
    assert isinstance(a.action, Updated)
    distance = _slot(b.inputs[0]).offset - _slot(a.inputs[0]).offset
    for x, y in zip(a.inputs[a.action.count :], b.inputs[a.action.count : a.action.count + a.action.like], strict=False):
        v, w = window_of[x], window_of[y]
        if v.root is w.root:
            if w.offset - v.offset != distance:
                return False
        elif not (_has_own_memory(x, v) and _has_own_memory(y, w)):
            return False
    return True


def _has_own_memory(value: LocalValue, window: StridedWindow) -> bool:
    return window.root.slot is None and window.root.type.nbytes == value.type.nbytes


def _joined(rank: int, run: list[LocalInstruction], window_of: dict[LocalValue, StridedWindow]) -> list[LocalInstruction]:
    """Return the instructions that replace a run: a join of the gradients if needed, and one update."""
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
        tensors.append(_together(build, [step.inputs[position] for step in run], offsets, flat, window_of))
    inputs = (*variables, *tensors, *run[0].inputs[op.count + op.like :])
    build.computes(op, inputs, name, (flat,) * op.count)
    return build.steps


def _span(value: LocalValue, flat: TensorType) -> LocalValue:
    slot = _slot(value)
    return LocalValue(flat, f"{value.name}..", slot=Slot(slot.buffer, slot.offset, flat, contiguous_strides(flat.shape, flat.dtype.itemsize)))


def _together(
    build: Builder, values: list[LocalValue], offsets: list[int], flat: TensorType, window_of: dict[LocalValue, StridedWindow]
) -> LocalValue:
    """Return one flat value that contains values[i] at byte offsets[i]."""
    where = [window_of[value] for value in values]
    root, start = where[0].root, where[0].offset
    placed_so = all(
        w.root is root and w.offset - start == offset and is_dense(value.type, w) for w, offset, value in zip(where, offsets, values, strict=True)
    )
    if placed_so and root.type.ndim == 1 and root.type.dtype is flat.dtype:
        begin = start // flat.dtype.itemsize
        if begin + flat.shape[0] <= root.type.shape[0]:
            return build.compute(SliceBox((begin,), (begin + flat.shape[0],)), root)
    joined = LocalValue(flat, f"{build.name}:gradients")
    parts = tuple(build.flatten(value) for value in values)
    build.append(Join(tuple(offsets)), parts, (joined,))
    return joined
