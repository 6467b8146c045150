"""The ranks of a program, numbered from 0, and the comparison of the programs that they traced."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple
from zlib import crc32

from jobflow.compiler.layouts.box import Reroute
from jobflow.core.errors import JobError
from jobflow.core.layout import Layout, Placement
from jobflow.graph.graph_text import bare, first_difference
from jobflow.graph.ir import Graph, Node, Physical, Value
from jobflow.graph.rewrite import Rewriter


class RankGroup:
    """The ranks of some placements, numbered from 0."""

    def __init__(self, placements: Iterable[Placement]) -> None:
        used = dict.fromkeys(placements)
        self.ranks = tuple(sorted({rank for placement in used for rank in placement.ranks}))
        self.within = {each: Placement(each.tag, tuple(map(self.ranks.index, each.ranks)), each.mesh) for each in used}
        self.outside = {within: placement for placement, within in self.within.items()}

    @classmethod
    def of(cls, graph: Graph) -> RankGroup:
        """Return the ranks in the placements of a graph, of its nodes and of its variables."""
        nodes, variables = (node.placement for node in graph.nodes), (variable.placement for variable in graph.variables.values())
        return cls((graph.placement, *nodes, *variables))

    def graph(self, graph: Graph) -> Graph:
        """Return the graph with placements on ranks of the group, in place of ranks of the world."""
        variables = {name: replace(variable, placement=self.within[variable.placement]) for name, variable in graph.variables.items()}
        return replace(_Replacing(graph, self.within).run(), placement=self.within[graph.placement], variables=variables)

    def layout(self, layout: Layout) -> Layout:
        """Return the layout with a placement on ranks of the group, in place of ranks of the world."""
        return Layout(self.within[layout.placement], layout.sbp)

    def world_layout(self, layout: Any) -> Layout:
        """Return the layout with a placement on ranks of the world, in place of ranks of the group."""
        assert isinstance(layout, Layout)
        return Layout(self.outside[layout.placement], layout.sbp)


class _Replacing(Rewriter):
    """A rewriter that replaces the placement of every node."""

    def __init__(self, graph: Graph, placements: Mapping[Placement, Placement]) -> None:
        super().__init__(graph)
        self.placements = placements

    def take(self, node: Node, inputs: tuple[Value, ...]) -> tuple[Value, ...]:
        return self.keep(node, inputs, placement=self.placements[node.placement])


class ProgramDifference(NamedTuple):
    """Two ranks that have traced different programs, and the first difference."""

    ranks: tuple[int, int]
    lines: tuple[str, str]

    def __str__(self) -> str:
        return "The first difference:" + "".join(f"\n  rank {rank}: {line}" for rank, line in zip(self.ranks, self.lines, strict=True))


def program_digest(lines: Sequence[str]) -> int:
    """Return a digest of a program's text, without the user's lines."""
    return crc32("\n".join(map(bare, lines)).encode())


def compare_programs(lines: Sequence[str], ranks: Sequence[int], exchange: Callable[[Any], list[Any]]) -> ProgramDifference | None:
    """Return the first difference between the texts of the programs that these ranks traced; None if they are equal.  Collective."""
    if len(set(exchange(program_digest(lines)))) == 1:
        return None
    programs = exchange(list(lines))
    first = list(map(bare, programs[0]))
    other = next(i for i, program in enumerate(programs) if list(map(bare, program)) != first)
    return ProgramDifference((ranks[0], ranks[other]), first_difference(programs[0], programs[other]))


def compare_devices(job: str, programs: Sequence[Physical]) -> None:
    """Raise JobError if devices with arguments of different lengths use different variables, results or exchanged tensors."""
    first = programs[0]
    for device, other in enumerate(programs):
        if other is first:
            continue
        ours, theirs = _device_properties(first), _device_properties(other)
        word = next((word for word in ours if ours[word] != theirs[word]), None)
        if word is not None:
            here, there = ([x for x in a if x not in b] or a for a, b in ((ours[word], theirs[word]), (theirs[word], ours[word])))
            raise JobError(
                f"job {job}: the lengths of arguments on the devices are {list(first.graph.rows)}, and the body records different {word} for "
                f"them: {', '.join(here) or 'none'} on device 0, {', '.join(there) or 'none'} on device {device}; use the same modules and "
                f"variables for every length, or pass arrays of equal length"
            )


def _device_properties(program: Physical) -> dict[str, list[str]]:
    """Return the properties that must be equal on all devices: names of variables, types of results, and communicated tensors."""
    graph = program.graph
    sent = [f"{value.tensor_type} ({node.op.name}, {node.where})" for node in graph.nodes if isinstance(node.op, Reroute) for value in node.outputs]
    outputs = [f"{value.dtype}[{value.tensor_type.ndim} axes]" for value in graph.outputs]
    return {"variables": sorted(graph.variables), "results": outputs, "communication": sent}
