"""Ordered program -> the same program with regions: fused operations whose intermediate values have no memory.

The pass runs if the target fuses (`Target.fusion`).  Operations with expressions are added to regions in program order.  An operation
joins the compatible region with which it shares most bytes.  The members get one index space.  Shared values determine which axes
are the same (`joined_space`), so a vector with one number per row fuses with operations on the rows.  A region runs at the position
of its last member, or of its first, so that other operations keep their positions.  Neither position is possible if an operation in
between depends on the region and the new member depends on an operation in between.  Operations are not fused

* across communication, between body and epilogue, or across phases and microbatches, because this would delay or advance work (reductions of
  gradients on a communication stream are no such boundary);
* if another window reads memory that is updated in place;
* if peak memory would exceed the peak without regions by more than a thousandth of it;
* if the region would exceed the limits of the target.

A value that is read outside of its region is an output of the region and stored once.  `explain` shows why an operation was not fused.

Example: relu(x + b) followed by a product is one region x, b -> relu(x + b); x + b is never stored.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import field, replace

from jobflow.compiler.rank.concurrent_collectives import has_communication_stream
from jobflow.compiler.rank.joined_space import JoinedSpace, fits_in_loop, joined_space
from jobflow.compiler.rank.live_bytes import LiveBytes
from jobflow.compiler.rank.local import Collect, Join, LocalInstruction, LocalValue
from jobflow.compiler.rank.order import NotFused, Ordered, dependencies
from jobflow.compiler.rank.region_group import RegionGroup, StepFacts, facts_of
from jobflow.compiler.rank.rematerialize import Rematerialization
from jobflow.compiler.rank.split_casts import widens
from jobflow.compiler.rank.views import written_over
from jobflow.core.dataclass import dataclass
from jobflow.expressions.index_space import LOOKED_UP, IndexSpace, broadcasting
from jobflow.kernels import registry
from jobflow.kernels.region import MemberOutput, Region, RegionMember
from jobflow.kernels.target import FusionLimits
from jobflow.ops.op import Op, ViewOp
from jobflow.ops.runtime_assertions import RuntimeAssertion

#: maximum number of attempts, each without the regions that raised peak memory before
ATTEMPTS = 8


def form_regions(ordered: Ordered) -> Ordered:
    """Fuse operations that share data."""
    bounds = ordered.program.target.fusion
    if bounds is None:
        return ordered
    alone: dict[LocalInstruction, str] = {}
    for _ in range(ATTEMPTS):
        builder = _RegionBuilder(ordered, bounds, alone)
        result = builder.run()
        worst = builder.too_large(result)
        if worst is None:
            return result
        alone |= worst
    return replace(ordered, not_fused=tuple(NotFused(step.name, "", why) for step, why in alone.items()))


@dataclass
class _RegionBuilder:
    ordered: Ordered
    bounds: FusionLimits
    #: instructions excluded from all regions -> the reason
    alone: Mapping[LocalInstruction, str]
    not_fused: list[NotFused] = field(default_factory=list)
    facts: dict[int, StepFacts] = field(default_factory=dict)

    def run(self) -> Ordered:
        program, body = self.ordered.program, len(self.ordered.body)
        self.steps: list[LocalInstruction] = [*self.ordered.body, *self.ordered.epilogue]
        self.before = dependencies(tuple(self.steps), program)
        self.after: dict[int, list[int]] = {i: [] for i in range(len(self.steps))}
        for i, needs in self.before.items():
            for j in needs:
                self.after[j].append(i)
        self.readers: dict[LocalValue, list[int]] = {}
        for i, step in enumerate(self.steps):
            for value in dict.fromkeys(step.inputs):
                self.readers.setdefault(value, []).append(i)
        self.outside = {value for _, value in program.fetches} | set(program.results) | set(program.updates.values())
        self.over = written_over(tuple(self.steps))
        self.position = list(range(len(self.steps)))
        self.groups: dict[int, RegionGroup] = {}
        self.memory = LiveBytes(self.ordered, self.steps, self.position)
        for stretch in self._stretches(body):
            self._grow(stretch)
        stored = {*self.outside, *self.over}
        rematerialized = Rematerialization(self.steps[:body], self.groups, self.facts, self.readers, stored, self.memory, self.bounds).run()
        return replace(self._fused(body), rematerialized=rematerialized)

    def _stretches(self, body: int) -> Iterator[list[int]]:
        """Yield runs of instructions without communication, within the body or within the epilogue."""
        concurrent = has_communication_stream(self.ordered.program.target)
        run: list[int] = []
        for i, step in enumerate(self.steps):
            if i == body or not (isinstance(step.action, Op | Join) or (concurrent and isinstance(step.action, Collect) and step.phase == "update")):
                yield run
                run = []
            run.append(i)
        yield run

    # ---------------------------------------------------------------- growing

    def _grow(self, stretch: Sequence[int]) -> None:
        groups: list[RegionGroup] = []
        touching: dict[LocalValue, set[int]] = {}  # indices in `groups`
        widened: set[LocalValue] = set()
        for i in stretch:
            step = self.steps[i]
            if isinstance(step.action, ViewOp) or not fits_in_loop(step, self.ordered.program.target.kind):
                continue
            facts = self.facts[i] = facts_of(step)
            why = self.alone.get(step) or _unsuited(step, facts, self)
            if why is not None:
                self._note(i, None, why)
                continue
            group = RegionGroup([i], i, facts.space, dict.fromkeys(step.inputs), set(step.outputs), set(facts.sums))
            best: tuple[int, int, int] | None = None
            near = sorted(set().union(*(touching.get(value, ()) for value in step.inputs)))
            if widens(step):  # a repeated cast joins its reader (`split_casts`)
                near = [] if step.inputs[0] in widened else near
                widened.add(step.inputs[0])
            for number in near:
                other = groups[number]
                shared = _shared(other, group, self.bounds.tensors > 0)
                if not shared:
                    continue
                position = self._joint_position(other, group)
                if isinstance(position, str):
                    self._note(i, other, position)
                elif best is None or shared > best[0]:
                    best = shared, number, position
            if best is None:
                groups.append(group)
                self.groups[i] = group
            else:
                self._join(groups[best[1]], group, best[2])
            for value in (*step.inputs, *step.outputs):
                touching.setdefault(value, set()).add(len(groups) - 1 if best is None else best[1])

    def _note(self, i: int, group: RegionGroup | None, why: str) -> None:
        self.not_fused.append(NotFused(self.steps[i].name, "" if group is None else self.steps[group.steps[0]].name, why))

    def _joint_position(self, group: RegionGroup, new: RegionGroup) -> int | str:
        """Return the position at which both groups can run as one, or the reason why they cannot."""
        (i,) = new.steps
        first = self.steps[group.steps[0]]
        space = joined_space(group.space, new.space)
        if space is None:
            rows = ", rows of several axes" if new.space.sizes == group.space.sizes else ""
            return f"its index space is {list(new.space.sizes)}, but the region has {list(group.space.sizes)}{rows}"
        repeated = self._repeated([*group.steps, *new.steps], space)
        if repeated:
            return f"every row would recompute {repeated}"
        if not group.sums.isdisjoint(new.inputs):
            return "it reads sums of columns, which are complete only after the last row"
        if (first.phase, first.microbatch) != (self.steps[i].phase, self.steps[i].microbatch):
            return "it belongs to another phase or microbatch"
        return self._out_of_bounds(group, new, space) or self._in_place_conflict(group, new) or self._position(group, i)

    def _repeated(self, steps: Sequence[int], space: JoinedSpace) -> str:
        """Return the name of an expensive operation that several rows would recompute; "" if there is no such operation."""
        return next((self.steps[i].name for i in steps if self.facts[i].expensive and not space.computed_once(self.facts[i].others)), "")

    def _out_of_bounds(self, group: RegionGroup, new: RegionGroup, space: JoinedSpace) -> str | None:
        produced = group.produced | new.produced
        inputs = {value for value in (*group.inputs, *new.inputs) if value not in produced}
        steps = {*group.steps, *new.steps}
        outgoing: dict[LocalValue, LocalValue] = {}
        for value in produced:
            if self._is_output(value, steps):
                other = outgoing.setdefault(self.memory.part[value], value)
                if other is not value:
                    return f"{value} can reuse the memory of {other} only if it is computed later"
                if value not in group.sums | new.sums and not space.holds(value):
                    return f"{value} does not have one element per row of the region"
        outputs = len(outgoing)
        for count, most, what in (
            (len(steps), self.bounds.members, "members"),
            (len(inputs), self.bounds.inputs, "inputs"),
            (outputs, self.bounds.outputs, "outputs"),
        ):
            if count > most:
                return f"it would have {count} {what}, but a region has at most {most}"
        return None

    def _is_output(self, value: LocalValue, steps: set[int]) -> bool:
        return value in self.outside or value in self.over or not steps.issuperset(self.readers.get(value, ()))

    def _in_place_conflict(self, group: RegionGroup, new: RegionGroup) -> str | None:
        """Return the reason if a value updated in place is also read by index or through another window, or written twice; otherwise None."""
        written = [value for g in (group, new) for k in g.steps for value in self._writes(self.steps[k])]
        reads = dict.fromkeys((*group.inputs, *new.inputs))
        tables = [value for g in (group, new) for value in g.inputs if LOOKED_UP in g.space.places[value]]
        for n, variable in enumerate(written):
            if any(self.memory.touch(variable, value) for value in tables):
                return f"{variable} is updated in place and read by index"
            if any(self.memory.touch(variable, value) for value in written[n + 1 :]):
                return f"both update {variable} in place"
            if any(value is not variable and value not in self.over and self.memory.touch(variable, value) for value in reads):
                return f"{variable} is updated in place and read through another window"
        return None

    def _writes(self, step: LocalInstruction) -> list[LocalValue]:
        return [step.inputs[source] for source in step.action.alias.values()] if isinstance(step.action, Op) else []

    def _position(self, group: RegionGroup, i: int) -> int | str:
        members = {*group.steps, i}
        later = [c for m in group.steps for c in self.after[m] if c not in members and self.position[c] < i]
        if not later:
            position, why = i, self.memory.rejection([*group.steps, i], i)
            if why is None:
                return position
        needs = [d for d in self.before[i] if d not in members and self.position[d] > group.position]
        if not needs:
            return self.memory.rejection([*group.steps, i], group.position) or group.position
        if not later:
            return why or "no position fits"
        return f"in between, {self.steps[min(later)].name} must follow the region and {self.steps[max(needs)].name} must precede the operation"

    def _join(self, group: RegionGroup, new: RegionGroup, position: int) -> None:
        (i,) = new.steps
        self.memory.move([*group.steps, i], position)
        group.steps.append(i)
        group.position = position
        space = joined_space(group.space, new.space)
        assert space is not None
        group.space, group.produced, group.sums = space, group.produced | new.produced, group.sums | new.sums
        group.inputs = {value: None for value in (*group.inputs, *new.inputs) if value not in group.produced}
        self.groups[i] = group

    def too_large(self, result: Ordered) -> dict[LocalInstruction, str] | None:
        """Return the members of the region nearest to the memory peak, with the reason; None if no region raises the peak."""
        steps = [*result.body, *result.epilogue]
        memory = LiveBytes(result, steps, list(range(len(steps))))
        regions = {step.outputs[0]: i for i, step in enumerate(steps) if isinstance(step.action, Region)}
        why = self.memory.excess(memory.live)
        if why is None or not regions:
            return None
        peak = int((memory.live - self.memory.most).max(axis=0).argmax())
        nearest = min(regions, key=lambda value: abs(regions[value] - peak))
        group = next(group for group in self.groups.values() if nearest in group.produced)
        return dict.fromkeys((self.steps[i] for i in group.steps), why)

    # ---------------------------------------------------------------- the program

    def _fused(self, body: int) -> Ordered:
        at = {group.position: group for group in self.groups.values() if len(group.indices()) > 1 or not self._is_read(group)}
        gone = {i for group in at.values() for i in group.steps}
        new: list[list[LocalInstruction]] = [[], []]
        for i, step in enumerate(self.steps):
            if i in at:
                region = self._region(at[i], at[i].space)
                if region.outputs:  # otherwise no output is read on this rank
                    new[i >= body].append(region)
            elif i not in gone:
                new[i >= body].append(step)
        return replace(self.ordered, body=tuple(new[0]), epilogue=tuple(new[1]), not_fused=tuple(self.not_fused))

    def _is_read(self, group: RegionGroup) -> bool:
        """Return True if all values of the group are read elsewhere; a region does not store unread values."""
        return all(self._is_output(value, set(group.steps)) for value in group.produced)

    def _region(self, group: RegionGroup, space: JoinedSpace) -> LocalInstruction:
        steps = [self.steps[i] for i in group.indices()]
        produced: dict[LocalValue, MemberOutput] = {value: (i, j) for i, step in enumerate(steps) for j, value in enumerate(step.outputs)}
        inputs = {value: k for k, value in enumerate(dict.fromkeys(x for step in steps for x in step.inputs if x not in produced))}
        outputs = [value for value in produced if value in group.produced and self._is_output(value, set(group.steps))]
        members: list[RegionMember] = []
        for step in steps:
            assert isinstance(step.action, Op)
            members.append(RegionMember(step.action, tuple(inputs[x] if x in inputs else produced[x] for x in step.inputs)))
        over = tuple(_over(members, [produced[x] for x in outputs]))
        places = IndexSpace(space.sizes, tuple(space.places[x] for x in (*inputs, *outputs)), space.row)
        operands = [x.type for x in (*inputs, *outputs)]
        as_in_numpy = bool(outputs) and operands[-1].shape == space.sizes and all(type.ndim <= len(space.sizes) for type in operands)
        broadcasts = as_in_numpy and places == broadcasting(*operands)
        op = Region(tuple(members), tuple(produced[x] for x in outputs), over, None if broadcasts else places)
        first, last = (self.steps[edge(group.steps)] for edge in (min, max))
        return LocalInstruction(
            op,
            tuple(inputs),
            tuple(outputs),
            first.name if first is last else f"{first.name}..{last.name}",
            first.where,
            first.phase,
            first.microbatch,
        )


def _over(members: Sequence[RegionMember], outputs: Sequence[MemberOutput]) -> Iterator[tuple[int, tuple[int, ...]]]:
    """Yield, per output, the inputs whose memory it may reuse: inputs that its member may overwrite, directly or through other members."""
    sources: dict[MemberOutput, tuple[int, ...]] = {}
    for i, member in enumerate(members):
        for j, reads in member.op.in_place.items():
            inputs = [(r,) if isinstance(r, int) else sources.get(r, ()) for r in (member.reads[k] for k in reads)]
            sources[i, j] = tuple(dict.fromkeys(k for several in inputs for k in several))
    yield from ((k, sources[out]) for k, out in enumerate(outputs) if sources.get(out))


def _unsuited(step: LocalInstruction, facts: StepFacts, builder: _RegionBuilder) -> str | None:
    """Return the reason why an instruction cannot be in any region; None for a suitable instruction."""
    op = step.action
    assert isinstance(op, Op)
    if isinstance(op, RuntimeAssertion):
        return "it is a runtime assertion"
    space = facts.space
    if not space.unique_axes:
        return "it reads one operand at two sets of positions"
    for value in facts.others:
        if not space.holds(value):
            return f"{value} of shape {list(value.type.shape)} does not match its index space {list(space.sizes)}"
    if op.alias and not space.free:
        return "it updates in place a value that its row sums read"
    return registry.unsupported_reason(op, builder.ordered.program.target, [x.type for x in step.inputs], [y.type for y in step.outputs])


def _shared(group: RegionGroup, new: RegionGroup, multi_tensor: bool) -> int:
    """Return the bytes saved by fusion: values no longer written and read, and inputs read once instead of twice.

    Operations on different tensors that share only an element, such as the learning rate, are one call on targets with multi-tensor calls.
    """
    read_directly = sum(2 * value.type.nbytes for value in new.inputs if value in group.produced)
    least = 2 if multi_tensor and any(value.type.size > 1 for value in new.produced) else 1
    return read_directly + sum(value.type.nbytes for value in new.inputs if value in group.inputs and value.type.size >= least)
