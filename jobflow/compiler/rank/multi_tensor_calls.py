"""Ordered program -> the same program, with one call for operations of equal formula on different tensors (`kernels/multi_tensor.py`).

The pass runs if the target has such calls (`FusionLimits.tensors`), after regions are complete.  Operations are merged if they are elementwise,
independent, of one phase and microbatch, and without communication between them.  Those that read variables only may have communication between
them.  A call runs at the position of its last member, or of its first.  Neither position may raise peak memory.

Example: sixty weights are cast to half precision before their first use, by one call at the start of the step.  Their gradients are cast to float32
after the last one, by one call.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import field, replace

from jobflow.compiler.rank.joined_space import expressions_of, fits_in_loop, space_of_step
from jobflow.compiler.rank.live_bytes import LiveBytes
from jobflow.compiler.rank.local import Join, LocalInstruction, LocalValue
from jobflow.compiler.rank.order import Ordered, dependencies
from jobflow.core.dataclass import dataclass
from jobflow.kernels import registry
from jobflow.kernels.multi_tensor import MultiTensor, TensorMember
from jobflow.ops.op import Op, ViewOp
from jobflow.ops.runtime_assertions import RuntimeAssertion

#: most calls that an instruction is compared with; a bound on the time of compilation
TRIED = 16


def merge_calls(ordered: Ordered) -> Ordered:
    """Merge operations with equal formulas on different tensors."""
    bounds = ordered.program.target.fusion
    return ordered if bounds is None or bounds.tensors < 2 else _CallMerger(ordered, bounds.tensors).run()


@dataclass(eq=False)
class _Call:
    """Instructions, by index, that become one call at `position`."""

    steps: list[int]
    position: int


@dataclass
class _CallMerger:
    ordered: Ordered
    most: int
    calls: dict[Hashable, list[_Call]] = field(default_factory=dict)

    def run(self) -> Ordered:
        body = len(self.ordered.body)
        self.steps = (*self.ordered.body, *self.ordered.epilogue)
        keys = [self._key(step) for step in self.steps]
        counts: dict[Hashable, int] = {}
        for key in keys:
            counts[key] = counts.get(key, 0) + (key is not None)
        if all(count < 2 for count in counts.values()):
            return self.ordered
        self.before = dependencies(self.steps, self.ordered.program)
        self.after: dict[int, list[int]] = {i: [] for i in range(len(self.steps))}
        for i, needs in self.before.items():
            for j in needs:
                self.after[j].append(i)
        self.position = list(range(len(self.steps)))
        self.memory = LiveBytes(self.ordered, self.steps, self.position)
        merged: list[_Call] = []
        of_weights = {key for step, key in zip(self.steps, keys, strict=True) if all(value.slot is not None for value in step.inputs)}
        for i, (step, key) in enumerate(zip(self.steps, keys, strict=True)):
            if i == body:
                self.calls = {}
            elif not isinstance(step.action, Op | Join):
                self.calls = {other: calls for other, calls in self.calls.items() if other in of_weights}
            if counts[key] < 2:
                continue
            if not self._joined(self.calls.setdefault(key, []), i):
                merged.append(_Call([i], i))
                self.calls[key].append(merged[-1])
        return self._merged([call for call in merged if len(call.steps) > 1], body)

    def _key(self, step: LocalInstruction) -> Hashable:
        """Return the key that instructions of one call share; None for an instruction that is in no call."""
        op, target = step.action, self.ordered.program.target
        if not isinstance(op, Op) or isinstance(op, ViewOp | RuntimeAssertion) or not step.inputs or not fits_in_loop(step, target.kind):
            return None
        space = space_of_step(step)
        shape = step.outputs[0].type.shape
        places = [space.places[value] for value in (*step.inputs, *step.outputs) if value.type.shape == shape]
        single = tuple(value.type.shape != shape for value in step.inputs)
        elementwise = space.free and space.unique_axes and all(each == places[0] for each in places) and None not in places[0]
        if not elementwise or any(value.type.shape != shape and value.type.size != 1 for value in (*step.inputs, *step.outputs)):
            return None
        if any(value.type.shape != shape for value in step.outputs) or not step.outputs[0].type.size:
            return None
        if registry.unsupported_reason(op, target, [x.type for x in step.inputs], [y.type for y in step.outputs]) is not None:
            return None
        stored = tuple(value.slot is not None for value in step.inputs)  # weights, unlike activations, exist from the start
        return expressions_of(step), single, stored, tuple(x.type.dtype for x in step.inputs), step.phase, step.microbatch

    # ---------------------------------------------------------------- positions

    def _joined(self, calls: list[_Call], i: int) -> bool:
        """Add the instruction to one of the calls that were changed last; return False if it can join none."""
        for call in calls[: -TRIED - 1 : -1]:
            position = self._position(call, i) if len(call.steps) < self.most else None
            if position is not None:
                self.memory.move([*call.steps, i], position)
                call.steps.append(i)
                call.position = position
                calls.remove(call)
                calls.append(call)
                return True
        return False

    def _position(self, call: _Call, i: int) -> int | None:
        """Return a position at which all instructions can run, or None."""
        members = {*call.steps, i}
        if self.before[i] & members:
            return None
        if all(self.position[c] > i for m in call.steps for c in self.after[m]) and self.memory.rejection([*call.steps, i], i) is None:
            return i
        if all(self.position[d] < call.position for d in self.before[i]) and self.memory.rejection([*call.steps, i], call.position) is None:
            return call.position
        return None

    # ---------------------------------------------------------------- the program

    def _merged(self, calls: Sequence[_Call], body: int) -> Ordered:
        at = {call.position: call for call in calls}
        gone = {i for call in calls for i in call.steps}
        new: list[list[LocalInstruction]] = [[], []]
        for i, step in enumerate(self.steps):
            if i in at:
                new[i >= body].append(self._instruction([self.steps[k] for k in sorted(at[i].steps)]))
            elif i not in gone:
                new[i >= body].append(step)
        return replace(self.ordered, body=tuple(new[0]), epilogue=tuple(new[1]))

    def _instruction(self, steps: Sequence[LocalInstruction]) -> LocalInstruction:
        inputs = tuple(value for step in steps for value in step.inputs)
        read = [self.memory.allocation[value] for value in inputs]
        once = {allocation for allocation in read if read.count(allocation) == 1}
        members = tuple(
            TensorMember(step.action, len(step.inputs), len(step.outputs), self._over(step, once)) for step in steps if isinstance(step.action, Op)
        )
        outputs = tuple(value for step in steps for value in step.outputs)
        first, last = steps[0], steps[-1]
        return replace(first, action=MultiTensor(members), inputs=inputs, outputs=outputs, name=f"{first.name}..{last.name}")

    def _over(self, step: LocalInstruction, once: set[LocalValue]) -> tuple[tuple[int, tuple[int, ...]], ...]:
        """Return, per output, the inputs that it may overwrite: only inputs in memory that no other operand is in."""
        assert isinstance(step.action, Op)
        allowed = {k: tuple(s for s in sources if self.memory.allocation[step.inputs[s]] in once) for k, sources in step.action.in_place.items()}
        return tuple((k, sources) for k, sources in allowed.items() if sources)
