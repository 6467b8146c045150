"""RankProgram -> the same program with gradient clipping in few launches, on GPUs.

`scale_in_updates` multiplies gradients by the factor of clipping inside their updates, instead of before them:

    before      d = Multiply(g, factor)   w', m', v' = AdamUpdate(w, m, v, d)
    after       w', m', v' = ScaledUpdate(AdamUpdate)(w, m, v, g, factor)

`join_square_sums` adds the squares of adjacent gradients in one operation.  Updates that `join_updates` has merged read flat gradients, whose
parts the backward pass computes in place.  The squares of the parts are summed for the norm.  Alignment gaps between parts are not read, because
their bytes have no value.

    before      n = Add(Add(SquareSum(g0), SquareSum(g1)), SquareSum(g2))   ...   flat = Join(g0, g1, g2)
    after       flat = Join(g0, g1, g2)   n = SquareSum(flat)

This changes the order of the sum, so targets that compute as CPUs do ("exact") keep the old one.  So do programs that communicate: ranks must
compute equal norms, but may store different variables.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import field, replace

from jobflow.compiler.rank.joined_space import fits_in_loop
from jobflow.compiler.rank.local import Builder, Join, LocalInstruction, LocalValue, RankProgram
from jobflow.compiler.rank.views import is_dense, views_of, windows, written_over
from jobflow.core.dataclass import dataclass
from jobflow.core.types import float32
from jobflow.ops.arithmetic import Add, Multiply
from jobflow.ops.layout_ops import PackPieces, SliceBox
from jobflow.ops.pointwise import Pointwise
from jobflow.ops.reduce import SquareSum
from jobflow.ops.scaled_update import ScaledUpdate
from jobflow.ops.update import Updated


def scale_in_updates(program: RankProgram) -> RankProgram:
    """Multiply gradients by one number inside their updates, except values of variables, which another update may overwrite first."""
    if program.target.kind != "cuda" or program.target.fusion is None:
        return program
    readers = _readers(program)
    changing = {*views_of(program.steps, set(program.reads.values())), *written_over(program.steps)}
    products = {
        step.outputs[0]: step
        for step in program.steps
        if type(step.action) is Multiply and len(readers[step.outputs[0]]) == 1 and changing.isdisjoint(step.inputs)
    }
    if not products:
        return program
    factors: dict[LocalValue, LocalValue] = {}
    steps: list[LocalInstruction] = []
    for step in program.steps:
        op = step.action
        if isinstance(op, Updated) and isinstance(op, Pointwise) and op.like == 1 and step.inputs[op.count] in products:
            product = products[step.inputs[op.count]]
            gradient, factor = sorted(product.inputs, key=lambda value: -value.type.size)
            if factor.type.size == 1 and gradient.type == product.outputs[0].type and factor.type.dtype is float32:
                build = Builder(program.rank, name=factor.name, where=step.where, phase=step.phase)
                number = factors.get(factor) or build.flatten(factor)
                scaled = replace(
                    step,
                    action=ScaledUpdate(op),
                    inputs=(*step.inputs[: op.count], gradient, *step.inputs[op.count + 1 :], number),
                )
                if fits_in_loop(scaled, program.target.kind):
                    factors[factor] = number
                    steps.remove(product)
                    steps += [*build.steps, scaled]
                    continue
        steps.append(step)
    return replace(program, steps=tuple(steps))


def _readers(program: RankProgram) -> dict[LocalValue, list[LocalInstruction | None]]:
    """Return the readers of each value; None stands for the caller of the program."""
    result: dict[LocalValue, list[LocalInstruction | None]] = {value: [] for step in program.steps for value in step.outputs}
    for step in program.steps:
        for value in step.inputs:
            result.setdefault(value, []).append(step)
    for value in (*(value for _, value in program.fetches), *program.results, *program.updates.values()):
        result.setdefault(value, []).append(None)
    return result


def join_square_sums(program: RankProgram) -> RankProgram:
    """Add the squares of adjacent gradients in one operation."""
    target = program.target
    if target.kind != "cuda" or target.fusion is None or target.tier == "exact" or program.schedule:
        return program
    squares = [step for step in program.steps if isinstance(step.action, SquareSum) and step.inputs[0].type.dtype is float32]
    return _SquareSums(program).run(squares) if len(squares) > 1 else program


@dataclass(frozen=True, eq=False)
class _Part:
    """A term of a sum of squares, with the flat memory that contains the squared values; `join` places them there."""

    square: LocalInstruction
    flat: LocalValue
    offset: int
    join: LocalInstruction | None = None

    @property
    def stop(self) -> int:
        return self.offset + self.square.inputs[0].type.nbytes


@dataclass
class _SquareSums:
    program: RankProgram
    dropped: set[LocalInstruction] = field(default_factory=set)
    #: steps to insert before a step
    inserted: dict[LocalInstruction, list[LocalInstruction]] = field(default_factory=dict)

    def run(self, squares: Sequence[LocalInstruction]) -> RankProgram:
        program = self.program
        self.makers = {value: step for step in program.steps for value in step.outputs}
        self.readers = _readers(program)
        arguments = [argument.value for argument in program.arguments]
        self.window_of = windows(program.steps, [*program.reads.values(), *arguments], {})
        #: value -> the join that contains it, and its offset there
        self.joined: dict[LocalValue, tuple[LocalInstruction, int]] = {}
        for step in program.steps:
            if isinstance(step.action, Join) and step.phase == "update":
                self.joined |= {self._unflattened(x): (step, at) for x, at in zip(step.inputs, step.action.offsets, strict=True)}
        for root in dict.fromkeys(filter(None, map(self._root, squares))):
            self._merge(root)
        steps: list[LocalInstruction] = []
        for step in program.steps:
            steps += self.inserted.get(step, [])
            if step not in self.dropped:
                steps.append(step)
        return replace(program, steps=tuple(steps))

    def _unflattened(self, x: LocalValue) -> LocalValue:
        maker = self.makers.get(x)
        return maker.inputs[0] if maker is not None and isinstance(maker.action, PackPieces) else x

    def _root(self, square: LocalInstruction) -> LocalInstruction | None:
        """Return the last addition of the sum that contains this sum of squares, or None."""
        root, step = None, self._only_addition(square)
        while step is not None:
            root, step = step, self._only_addition(step)
        return root

    def _only_addition(self, step: LocalInstruction) -> LocalInstruction | None:
        (value,) = step.outputs
        (reader, *others) = self.readers[value] or [None]
        adds = reader is not None and not others and type(reader.action) is Add and all(x.type == value.type for x in reader.inputs)
        return reader if adds else None

    def _terms(self, root: LocalInstruction, additions: list[LocalInstruction]) -> Iterator[LocalValue]:
        """Iterate over the terms of a sum, and collect its additions."""
        additions.append(root)
        for value in root.inputs:
            maker = self.makers.get(value)
            if maker is not None and self._only_addition(maker) is root and type(maker.action) is Add and len(maker.outputs) == 1:
                yield from self._terms(maker, additions)
            else:
                yield value

    def _merge(self, root: LocalInstruction) -> None:
        """Replace the additions of a sum and its sums of adjacent squares."""
        additions: list[LocalInstruction] = []
        terms = list(self._terms(root, additions))
        makers = [maker for value in terms if (maker := self.makers.get(value)) is not None]
        squares = [maker for maker in makers if isinstance(maker.action, SquareSum) and self._only_addition(maker) is not None]
        runs = list(_runs(self._parts(squares)))
        if not runs:
            return
        build = Builder(self.program.rank, name=root.name, where=root.where, phase=root.phase, microbatch=root.microbatch)
        moved = dict.fromkeys(step for run in runs if run[0].join is not None for step in self._steps_of(run[0].join))
        build.steps += moved
        merged = {part.square.outputs[0] for run in runs for part in run}
        values = [build.compute(SquareSum(), _slice(build, run)) for run in runs]
        values += [value for value in terms if value not in merged]
        total = values[0]
        for value in values[1:]:
            total = build.compute(Add(), total, value)
        build.steps[-1] = replace(build.steps[-1], outputs=root.outputs)
        self.inserted[root] = build.steps
        self.dropped.update(additions, moved, (part.square for run in runs for part in run))

    def _parts(self, squares: Sequence[LocalInstruction]) -> Iterator[_Part]:
        """Iterate over the squared values in flat memory.

        A join is only used if the sum has all its inputs, because they are then complete before the sum.
        """
        values = {step.inputs[0] for step in squares}
        complete = {join for join, _ in self.joined.values() if values.issuperset(map(self._unflattened, join.inputs))}
        for step in squares:
            (value,) = step.inputs
            join, offset = self.joined.get(value, (None, 0))
            window = self.window_of[value]
            if join in complete and join is not None:
                yield _Part(step, join.outputs[0], offset, join)
            elif window.root is not value and _is_flat(window.root) and is_dense(value.type, window):
                yield _Part(step, window.root, window.offset)

    def _steps_of(self, join: LocalInstruction) -> Iterator[LocalInstruction]:
        """Iterate over the views of the parts of a join, and the join."""
        for x in join.inputs:
            if self._unflattened(x) is not x:
                yield self.makers[x]
        yield join


def _is_flat(value: LocalValue) -> bool:
    return value.type.ndim == 1 and value.type.dtype is float32


def _runs(parts: Iterator[_Part]) -> Iterator[list[_Part]]:
    """Iterate over runs of at least two parts of one flat memory without gaps."""
    run: list[_Part] = []
    by_memory: dict[LocalValue, list[_Part]] = {}
    for part in parts:
        by_memory.setdefault(part.flat, []).append(part)
    for known in by_memory.values():
        for part in sorted(known, key=lambda each: each.offset):
            if run and (run[-1].flat is not part.flat or run[-1].stop != part.offset):
                if len(run) > 1:
                    yield run
                run = []
            run.append(part)
    if len(run) > 1:
        yield run


def _slice(build: Builder, run: Sequence[_Part]) -> LocalValue:
    flat = run[0].flat
    begin, end = (offset // flat.type.dtype.itemsize for offset in (run[0].offset, run[-1].stop))
    return flat if (begin, end) == (0, flat.type.shape[0]) else build.compute(SliceBox((begin,), (end,)), flat)
