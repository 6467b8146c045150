"""Regions, grown -> the same, where what several of them read is computed again in each, if that costs less than to read it.

    h = x w                                                h = x w
    z = h + b; y = gelu(z)       stores z and y            z = h + b; y = gelu(z)        stores y
    dz = gelu'(z) dy             reads z, dy               z = h + b; dz = gelu'(z) dy   reads h, b, dy

z costs an addition for each element, and h is there anyway: one store less for the same memory.  Costs are those that `expressions.cost`
states.  Only values without sums are computed again, in the body, from what lies in memory at that time.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence

from jobflow.compiler.rank.joined_space import JoinedSpace, expressions_of, joined_space
from jobflow.compiler.rank.live_bytes import LiveBytes
from jobflow.compiler.rank.local import Item, Step
from jobflow.compiler.rank.order import Again
from jobflow.compiler.rank.region_group import RegionGroup, StepFacts
from jobflow.core.dataclass import dataclass
from jobflow.expressions.cost import cost
from jobflow.kernels.target import FusionLimits


@dataclass(frozen=True)
class _Plan:
    """What a group computes again instead of reading a value, what it reads for that, and in which space it then is."""

    steps: tuple[int, ...]
    reads: tuple[Item, ...]
    space: JoinedSpace
    #: bytes less than with the value
    gain: int


@dataclass(frozen=True)
class Recomputing:
    steps: Sequence[Step]
    #: by the number of each of their steps
    groups: Mapping[int, RegionGroup]
    facts: Mapping[int, StepFacts]
    #: by number of step; those of a region that computes something again are entered as its first
    readers: dict[Item, list[int]]
    #: what is needed in memory
    kept: set[Item]
    memory: LiveBytes
    limits: FusionLimits

    def run(self) -> tuple[Again, ...]:
        """Change the groups, and say what was changed."""
        made = {item: i for i, step in enumerate(self.steps) for item in step.outputs}
        free = [i for i in range(len(self.steps)) if i in self.groups and self.facts[i].space.free]
        return tuple(again for i in free for item in self.steps[i].outputs for again in self._value(item, self.groups[i], made))

    def _value(self, item: Item, maker: RegionGroup, made: Mapping[Item, int]) -> Iterator[Again]:
        readers = [i for i in self.readers.get(item, ()) if i not in maker.steps]
        if not readers:
            return
        hosts = list({id(group): group for group in map(self.groups.get, readers) if group is not None}.values())
        plans = [(host, plan) for host in hosts if (plan := self._plan(item, host, made)) is not None]
        everywhere = item not in self.kept and len(plans) == len(hosts) and all(i in self.groups for i in readers)
        if everywhere and sum(plan.gain for _, plan in plans) + item.type.nbytes > 0:
            why = f"not stored, {sum(plan.gain for _, plan in plans) + item.type.nbytes} bytes less"
        else:
            plans = [(host, plan) for host, plan in plans if plan.gain > 0]
            why = f"{sum(plan.gain for _, plan in plans)} bytes less"
        gone = {i for host, _ in plans for i in host.steps}
        if not plans or self.memory.reads_instead(item, gone, [(read, host.steps[0]) for host, plan in plans for read in plan.reads]) is not None:
            return
        self.readers[item] = [i for i in self.readers[item] if i not in gone]
        for host, plan in plans:
            host.again |= set(plan.steps)
            host.space = plan.space
            del host.inputs[item]
            host.inputs |= dict.fromkeys(plan.reads)
            for read in plan.reads:
                self.readers.setdefault(read, []).append(host.steps[0])
            yield Again(item.name, self.steps[min(host.steps)].name, why)

    def _plan(self, item: Item, host: RegionGroup, made: Mapping[Item, int]) -> _Plan | None:
        """How a group can do without reading a value; None if it cannot."""
        again = self._makers(item, host, made)
        if again is None or min(host.steps) >= len(self.steps):
            return None
        space: JoinedSpace | None = host.space
        for i in again:
            space = None if space is None else joined_space(space, self.facts[i].space)
        inside = {x for i in again for x in self.steps[i].outputs}
        read = dict.fromkeys(x for i in again for x in self.steps[i].inputs if x not in inside)
        reads = tuple(x for x in read if x not in host.inputs and x not in host.made)
        fits = len(host.numbers()) + len(again) <= self.limits.members and len(host.inputs) - 1 + len(reads) <= self.limits.inputs
        if space is None or space.sizes != host.space.sizes or not space.made_once(tuple(inside)) or not fits:
            return None
        expressions = [x for i in again for x in expressions_of(self.steps[i])]
        spent = cost(expressions, math.prod(space.sizes), [x.type for x in reads])
        return _Plan(again, reads, space, item.type.nbytes - spent.as_bytes)

    def _makers(self, item: Item, host: RegionGroup, made: Mapping[Item, int]) -> tuple[int, ...] | None:
        """The steps that make a value of what the host makes itself or lies in memory; None if there is no such way."""
        i = made.get(item)
        if i is None or i not in self.groups or not self.facts[i].space.free or not self.facts[i].space.one_place or self.facts[i].sums:
            return None
        found = [i]
        for x in self.steps[i].inputs:
            if x in host.inputs or self._in_memory(x, made):
                continue
            before = self._makers(x, host, made)
            if before is None:
                return None
            found += before
        return tuple(sorted(set(found)))

    def _in_memory(self, item: Item, made: Mapping[Item, int]) -> bool:
        """Variables, arguments, what other steps than regions make, and what regions make for others."""
        group = self.groups.get(made[item]) if item in made else None
        return group is None or item in self.kept or not set(group.steps).issuperset(self.readers.get(item, ()))
