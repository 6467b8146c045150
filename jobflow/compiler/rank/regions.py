"""Ordered program -> the same with regions: operations that share data become one, whose intermediate values have no memory.

Runs where the target fuses (`Target.fusion`).  Operations with expressions are grown together, in the order of the program: each goes to
the region with which it shares most bytes, of those that may take it.  Their index spaces become one: what they share says which axes are
the same (`joined_space`), so a vector of numbers per row joins what is done with the rows.  A region runs where its last member stood,
or its first, so that all else keeps its place; if neither is possible, because somebody between them reads what the one makes or makes
what the other reads, they stay apart.  They stay apart as well

* across communication, between body and epilogue, across phases and microbatches: there nothing is delayed or brought forward;
* where memory that is written over is also read by another window;
* where more memory would be needed at the fullest moment than without regions;
* where the target's limits are reached.

What is read outside is an output of the region and stored once.  Why an operation was not taken in is kept for `explain`.

Example: relu(x + b) followed by a product is one region x, b -> relu(x + b); x + b is nowhere in memory.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import field, replace

from jobflow.compiler.rank.computed_again import Recomputing
from jobflow.compiler.rank.joined_space import JoinedSpace, expressions_of, joined_space
from jobflow.compiler.rank.live_bytes import LiveBytes
from jobflow.compiler.rank.local import Item, Join, Step
from jobflow.compiler.rank.order import Apart, Ordered, dependencies
from jobflow.compiler.rank.region_group import RegionGroup, StepFacts, facts_of
from jobflow.compiler.rank.views import written_over
from jobflow.core.dataclass import dataclass
from jobflow.expressions.index_space import LOOKED_UP, IndexSpace, broadcasting
from jobflow.kernels import registry
from jobflow.kernels.region import MemberOutput, Region, RegionMember
from jobflow.kernels.target import FusionLimits
from jobflow.ops.op import Op, ViewOp
from jobflow.ops.runtime_assertions import RuntimeAssertion

#: how often regions are formed anew, without the one that needs more memory than its parts
ATTEMPTS = 8


def form_regions(ordered: Ordered) -> Ordered:
    """Join what shares data."""
    limits = ordered.program.target.fusion
    if limits is None:
        return ordered
    alone: dict[Step, str] = {}
    for _ in range(ATTEMPTS):
        growing = _Growing(ordered, limits, alone)
        found = growing.run()
        worst = growing.too_large(found)
        if worst is None:
            return found
        alone |= worst
    return replace(ordered, apart=tuple(Apart(step.name, "", why) for step, why in alone.items()))


@dataclass
class _Growing:
    ordered: Ordered
    limits: FusionLimits
    #: steps that stay alone, and why
    alone: Mapping[Step, str]
    apart: list[Apart] = field(default_factory=list)
    facts: dict[int, StepFacts] = field(default_factory=dict)

    def run(self) -> Ordered:
        program, body = self.ordered.program, len(self.ordered.body)
        self.steps: list[Step] = [*self.ordered.body, *self.ordered.epilogue]
        self.before = dependencies(tuple(self.steps), program)
        self.after: dict[int, list[int]] = {i: [] for i in range(len(self.steps))}
        for i, needs in self.before.items():
            for j in needs:
                self.after[j].append(i)
        self.readers: dict[Item, list[int]] = {}
        for i, step in enumerate(self.steps):
            for item in dict.fromkeys(step.inputs):
                self.readers.setdefault(item, []).append(i)
        self.outside = {item for _, item in program.fetches} | set(program.results) | set(program.updates.values())
        self.over = written_over(tuple(self.steps))
        self.position = list(range(len(self.steps)))
        self.groups: dict[int, RegionGroup] = {}
        self.memory = LiveBytes(self.ordered, self.steps, self.position)
        for stretch in self._stretches(body):
            self._grow(stretch)
        kept = {*self.outside, *self.over}
        again = Recomputing(self.steps[:body], self.groups, self.facts, self.readers, kept, self.memory, self.limits).run()
        return replace(self._written(body), again=again)

    def _stretches(self, body: int) -> Iterator[list[int]]:
        """Runs of steps without communication, on one side of the border of body and epilogue."""
        run: list[int] = []
        for i, step in enumerate(self.steps):
            if i == body or not isinstance(step.action, Op | Join):
                yield run
                run = []
            run.append(i)
        yield run

    # ---------------------------------------------------------------- growing

    def _grow(self, stretch: Sequence[int]) -> None:
        found: list[RegionGroup] = []
        touching: dict[Item, set[int]] = {}  # by number in `found`
        for i in stretch:
            step = self.steps[i]
            if not isinstance(step.action, Op) or isinstance(step.action, ViewOp) or not expressions_of(step):
                continue
            facts = self.facts[i] = facts_of(step)
            why = self.alone.get(step) or _unfit(step, facts, self)
            if why is not None:
                self._note(i, None, why)
                continue
            group = RegionGroup([i], i, facts.space, dict.fromkeys(step.inputs), set(step.outputs), set(facts.sums))
            best: tuple[int, int, int] | None = None
            for number in sorted(set().union(*(touching.get(item, ()) for item in step.inputs))):
                other = found[number]
                shared = _shared(other, group)
                if not shared:
                    continue
                place = self._place(other, group)
                if isinstance(place, str):
                    self._note(i, other, place)
                elif best is None or shared > best[0]:
                    best = shared, number, place
            if best is None:
                found.append(group)
                self.groups[i] = group
            else:
                self._join(found[best[1]], group, best[2])
            for item in (*step.inputs, *step.outputs):
                touching.setdefault(item, set()).add(len(found) - 1 if best is None else best[1])

    def _note(self, i: int, group: RegionGroup | None, why: str) -> None:
        self.apart.append(Apart(self.steps[i].name, "" if group is None else self.steps[group.steps[0]].name, why))

    def _place(self, group: RegionGroup, new: RegionGroup) -> int | str:
        """Where both can run as one, or why they cannot."""
        (i,) = new.steps
        first = self.steps[group.steps[0]]
        space = joined_space(group.space, new.space)
        if space is None:
            rows = ", rows of several axes" if new.space.sizes == group.space.sizes else ""
            return f"its index space is {list(new.space.sizes)}, that of the region {list(group.space.sizes)}{rows}"
        again = self._again([*group.steps, *new.steps], space)
        if again:
            return f"{again} would be computed anew in every row"
        if not group.sums.isdisjoint(new.inputs):
            return "it reads sums of columns, which are known after the last row"
        if (first.phase, first.microbatch) != (self.steps[i].phase, self.steps[i].microbatch):
            return "it belongs to another phase or microbatch"
        return self._limited(group, new, space) or self._overwritten(group, new) or self._position(group, i)

    def _again(self, steps: Sequence[int], space: JoinedSpace) -> str:
        """What has one result for several rows, and costs more than to read it in each of them; "" if nothing does."""
        return next((self.steps[i].name for i in steps if self.facts[i].dear and not space.made_once(self.facts[i].others)), "")

    def _limited(self, group: RegionGroup, new: RegionGroup, space: JoinedSpace) -> str | None:
        made = group.made | new.made
        inputs = {item for item in (*group.inputs, *new.inputs) if item not in made}
        steps = {*group.steps, *new.steps}
        outgoing: dict[Item, Item] = {}
        for item in made:
            if self._goes_out(item, steps):
                other = outgoing.setdefault(self.memory.part[item], item)
                if other is not item:
                    return f"{item} can take the memory of {other} only if it is made later"
                if item not in group.sums | new.sums and not space.holds(item):
                    return f"{item} has not one element for each row of the region"
        outputs = len(outgoing)
        for count, most, what in (
            (len(steps), self.limits.members, "members"),
            (len(inputs), self.limits.inputs, "inputs"),
            (outputs, self.limits.outputs, "outputs"),
        ):
            if count > most:
                return f"{count} {what}, and a region has at most {most}"
        return None

    def _goes_out(self, item: Item, steps: set[int]) -> bool:
        return item in self.outside or item in self.over or not steps.issuperset(self.readers.get(item, ()))

    def _overwritten(self, group: RegionGroup, new: RegionGroup) -> str | None:
        """What is written over is read at the same places only, by the same window, and written once."""
        written = [item for g in (group, new) for k in g.steps for item in self._writes(self.steps[k])]
        reads = dict.fromkeys((*group.inputs, *new.inputs))
        tables = [item for g in (group, new) for item in g.inputs if LOOKED_UP in g.space.places[item]]
        for n, variable in enumerate(written):
            if any(self.memory.touch(variable, item) for item in tables):
                return f"{variable} is written over, and looked up in"
            if any(self.memory.touch(variable, item) for item in written[n + 1 :]):
                return f"both write over {variable}"
            if any(item is not variable and item not in self.over and self.memory.touch(variable, item) for item in reads):
                return f"{variable} is written over, and read there by another window"
        return None

    def _writes(self, step: Step) -> list[Item]:
        return [step.inputs[source] for source in step.action.alias.values()] if isinstance(step.action, Op) else []

    def _position(self, group: RegionGroup, i: int) -> int | str:
        members = {*group.steps, i}
        later = [c for m in group.steps for c in self.after[m] if c not in members and self.position[c] < i]
        if not later:
            place, why = i, self.memory.refuses([*group.steps, i], i)
            if why is None:
                return place
        needs = [d for d in self.before[i] if d not in members and self.position[d] > group.position]
        if not needs:
            return self.memory.refuses([*group.steps, i], group.position) or group.position
        if not later:
            return why or "nothing"
        return f"{self.steps[min(later)].name} runs between them after the one, {self.steps[max(needs)].name} before the other"

    def _join(self, group: RegionGroup, new: RegionGroup, place: int) -> None:
        (i,) = new.steps
        self.memory.move([*group.steps, i], place)
        group.steps.append(i)
        group.position = place
        space = joined_space(group.space, new.space)
        assert space is not None
        group.space, group.made, group.sums = space, group.made | new.made, group.sums | new.sums
        group.inputs = {item: None for item in (*group.inputs, *new.inputs) if item not in group.made}
        self.groups[i] = group

    def too_large(self, found: Ordered) -> dict[Step, str] | None:
        """The members of the region nearest to where more memory is needed than without regions, if it is, and the reason to leave them alone."""
        steps = [*found.body, *found.epilogue]
        memory = LiveBytes(found, steps, list(range(len(steps))))
        regions = {step.outputs[0]: i for i, step in enumerate(steps) if isinstance(step.action, Region)}
        why = self.memory.excess(memory.live)
        if why is None or not regions:
            return None
        peak = int((memory.live - self.memory.most).max(axis=0).argmax())
        nearest = min(regions, key=lambda item: abs(regions[item] - peak))
        group = next(group for group in self.groups.values() if nearest in group.made)
        return dict.fromkeys((self.steps[i] for i in group.steps), why)

    # ---------------------------------------------------------------- the program

    def _written(self, body: int) -> Ordered:
        at = {group.position: group for group in self.groups.values() if len(group.numbers()) > 1 or not self._all_read(group)}
        gone = {i for group in at.values() for i in group.steps}
        new: list[list[Step]] = [[], []]
        for i, step in enumerate(self.steps):
            if i in at:
                region = self._region(at[i], at[i].space)
                if region.outputs:  # nobody on this rank reads what the others make
                    new[i >= body].append(region)
            elif i not in gone:
                new[i >= body].append(step)
        return replace(self.ordered, body=tuple(new[0]), epilogue=tuple(new[1]), apart=tuple(self.apart))

    def _all_read(self, group: RegionGroup) -> bool:
        """A region leaves out what nobody reads."""
        return all(self._goes_out(item, set(group.steps)) for item in group.made)

    def _region(self, group: RegionGroup, space: JoinedSpace) -> Step:
        steps = [self.steps[i] for i in group.numbers()]
        made: dict[Item, MemberOutput] = {item: (i, j) for i, step in enumerate(steps) for j, item in enumerate(step.outputs)}
        inputs = {item: k for k, item in enumerate(dict.fromkeys(x for step in steps for x in step.inputs if x not in made))}
        outputs = [item for item in made if item in group.made and self._goes_out(item, set(group.steps))]
        members: list[RegionMember] = []
        for step in steps:
            assert isinstance(step.action, Op)
            members.append(RegionMember(step.action, tuple(inputs[x] if x in inputs else made[x] for x in step.inputs)))
        over = tuple(_over(members, [made[x] for x in outputs]))
        places = IndexSpace(space.sizes, tuple(space.places[x] for x in (*inputs, *outputs)), space.row)
        operands = [x.type for x in (*inputs, *outputs)]
        as_in_numpy = bool(outputs) and operands[-1].shape == space.sizes and all(type.ndim <= len(space.sizes) for type in operands)
        broadcasts = as_in_numpy and places == broadcasting(*operands)
        op = Region(tuple(members), tuple(made[x] for x in outputs), over, None if broadcasts else places)
        first, last = (self.steps[edge(group.steps)] for edge in (min, max))
        return Step(
            op,
            tuple(inputs),
            tuple(outputs),
            first.name if first is last else f"{first.name}..{last.name}",
            first.where,
            first.phase,
            first.microbatch,
        )


def _over(members: Sequence[RegionMember], outputs: Sequence[MemberOutput]) -> Iterator[tuple[int, tuple[int, ...]]]:
    """The inputs that an output may be written over: those that its member may write over, or the makers of what that may write over."""
    sources: dict[MemberOutput, tuple[int, ...]] = {}
    for i, member in enumerate(members):
        for j, reads in member.op.in_place.items():
            found = [(r,) if isinstance(r, int) else sources.get(r, ()) for r in (member.reads[k] for k in reads)]
            sources[i, j] = tuple(dict.fromkeys(k for several in found for k in several))
    yield from ((k, sources[out]) for k, out in enumerate(outputs) if sources.get(out))


def _unfit(step: Step, facts: StepFacts, growing: _Growing) -> str | None:
    """Why a step can be in no region."""
    op = step.action
    assert isinstance(op, Op)
    if isinstance(op, RuntimeAssertion):
        return "it checks what it is given"
    space = facts.space
    if not space.one_place:
        return "it reads one operand in two ways"
    for item in facts.others:
        if not space.holds(item):
            return f"{item} of shape {list(item.type.shape)} is not on its index space {list(space.sizes)}"
    if op.alias and not space.free:
        return "it writes over what sums of rows read"
    return registry.unsupported_reason(op, growing.ordered.program.target, [x.type for x in step.inputs], [y.type for y in step.outputs])


def _shared(group: RegionGroup, new: RegionGroup) -> int:
    """Bytes that need not be written and read again, or be read once instead of twice."""
    made = sum(2 * item.type.nbytes for item in new.inputs if item in group.made)
    return made + sum(item.type.nbytes for item in new.inputs if item in group.inputs)
