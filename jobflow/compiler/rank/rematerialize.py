"""Ordered program with regions -> the same program, in which regions recompute shared values if that costs less than reading them.

    h = x w                                                h = x w
    z = h + b; y = gelu(z)       stores z and y            z = h + b; y = gelu(z)        stores y
    dz = gelu'(z) dy             reads z, dy               z = h + b; dz = gelu'(z) dy   reads h, b, dy

Recomputing z costs one addition per element and saves a store.  Recomputation needs no more memory, because h is in memory anyway.
`expressions.cost` defines the costs.  Only values of the body without sums are recomputed, from values that are in memory at that time.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence

from jobflow.compiler.rank.joined_space import JoinedSpace, expressions_of, joined_space
from jobflow.compiler.rank.live_bytes import LiveBytes
from jobflow.compiler.rank.local import LocalInstruction, LocalValue
from jobflow.compiler.rank.order import Rematerialized
from jobflow.compiler.rank.region_group import RegionGroup, StepFacts
from jobflow.core.dataclass import dataclass
from jobflow.expressions.cost import cost
from jobflow.kernels.target import FusionLimits


@dataclass(frozen=True)
class _Plan:
    """The instructions that a group recomputes instead of reading a value, their inputs, the joint index space, and the bytes saved."""

    steps: tuple[int, ...]
    reads: tuple[LocalValue, ...]
    space: JoinedSpace
    #: bytes saved, compared to reading the value
    gain: int


@dataclass(frozen=True)
class Rematerialization:
    steps: Sequence[LocalInstruction]
    #: index of an instruction -> its group
    groups: Mapping[int, RegionGroup]
    facts: Mapping[int, StepFacts]
    #: indices of the readers; a region that recomputes values counts as its first instruction
    readers: dict[LocalValue, list[int]]
    #: values that are needed in memory
    stored: set[LocalValue]
    memory: LiveBytes
    bounds: FusionLimits

    def run(self) -> tuple[Rematerialized, ...]:
        """Change the groups to recompute values where that saves time; return the recomputed values."""
        producers = {value: i for i, step in enumerate(self.steps) for value in step.outputs}
        free = [i for i in range(len(self.steps)) if i in self.groups and self.facts[i].space.free]
        return tuple(
            rematerialized for i in free for value in self.steps[i].outputs for rematerialized in self._value(value, self.groups[i], producers)
        )

    def _value(self, value: LocalValue, maker: RegionGroup, producers: Mapping[LocalValue, int]) -> Iterator[Rematerialized]:
        readers = [i for i in self.readers.get(value, ()) if i not in maker.steps]
        if not readers:
            return
        hosts = list({id(group): group for group in map(self.groups.get, readers) if group is not None}.values())
        plans = [(host, plan) for host in hosts if (plan := self._plan(value, host, producers)) is not None]
        everywhere = value not in self.stored and len(plans) == len(hosts) and all(i in self.groups for i in readers)
        if everywhere and sum(plan.gain for _, plan in plans) + value.type.nbytes > 0:
            why = f"not stored; saves {sum(plan.gain for _, plan in plans) + value.type.nbytes} bytes"
        else:
            plans = [(host, plan) for host, plan in plans if plan.gain > 0]
            why = f"saves {sum(plan.gain for _, plan in plans)} bytes"
        gone = {i for host, _ in plans for i in host.steps}
        if not plans or self.memory.replace_read(value, gone, [(read, host.steps[0]) for host, plan in plans for read in plan.reads]) is not None:
            return
        self.readers[value] = [i for i in self.readers[value] if i not in gone]
        for host, plan in plans:
            host.rematerialized |= set(plan.steps)
            host.space = plan.space
            del host.inputs[value]
            host.inputs |= dict.fromkeys(plan.reads)
            for read in plan.reads:
                self.readers.setdefault(read, []).append(host.steps[0])
            yield Rematerialized(value.name, self.steps[min(host.steps)].name, why)

    def _plan(self, value: LocalValue, host: RegionGroup, producers: Mapping[LocalValue, int]) -> _Plan | None:
        """Return the plan by which `host` recomputes a value; None if recomputation is impossible or exceeds the limits of a region."""
        recomputed = self._makers(value, host, producers)
        if recomputed is None or min(host.steps) >= len(self.steps):
            return None
        space: JoinedSpace | None = host.space
        for i in recomputed:
            space = None if space is None else joined_space(space, self.facts[i].space)
        inside = {x for i in recomputed for x in self.steps[i].outputs}
        read = dict.fromkeys(x for i in recomputed for x in self.steps[i].inputs if x not in inside)
        reads = tuple(x for x in read if x not in host.inputs and x not in host.produced)
        fits = len(host.indices()) + len(recomputed) <= self.bounds.members and len(host.inputs) - 1 + len(reads) <= self.bounds.inputs
        if space is None or space.sizes != host.space.sizes or not space.computed_once(tuple(inside)) or not fits:
            return None
        expressions = [x for i in recomputed for x in expressions_of(self.steps[i])]
        spent = cost(expressions, math.prod(space.sizes), [x.type for x in reads])
        return _Plan(recomputed, reads, space, value.type.nbytes - spent.as_bytes)

    def _makers(self, value: LocalValue, host: RegionGroup, producers: Mapping[LocalValue, int]) -> tuple[int, ...] | None:
        """Return the instructions that compute a value from inputs of `host` or values in memory; None if there are no such instructions."""
        i = producers.get(value)
        if i is None or i not in self.groups or not self.facts[i].space.free or not self.facts[i].space.unique_axes or self.facts[i].sums:
            return None
        result = [i]
        for x in self.steps[i].inputs:
            if x in host.inputs or self._in_memory(x, producers):
                continue
            before = self._makers(x, host, producers)
            if before is None:
                return None
            result += before
        return tuple(sorted(set(result)))

    def _in_memory(self, value: LocalValue, producers: Mapping[LocalValue, int]) -> bool:
        """Return True for variables, arguments, outputs of instructions outside regions, and values that a region computes for other readers."""
        group = self.groups.get(producers[value]) if value in producers else None
        return group is None or value in self.stored or not set(group.steps).issuperset(self.readers.get(value, ()))
