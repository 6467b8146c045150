"""Strategies of graphs, such as `graph.config.strategy(flow.strategies.zero())`.

Inputs and parameters of `build` are replicated on some ranks. The computation on these ranks is first placed on the device mesh of the
strategy. Then the strategy distributes the program, as for a job. Values in other layouts are redistributed to the device mesh.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from jobflow.compiler.front.trace import Tracer
from jobflow.core.dataclass import dataclass
from jobflow.core.errors import ConfigError, JobError, SourceLine
from jobflow.core.layout import B, Broadcast, Layout, Placement
from jobflow.graph.ir import Node, Value, Variable
from jobflow.graph.rewrite import outputs_of
from jobflow.graph.strategy import Strategy
from jobflow.graph.traced import Traced
from jobflow.ops.layout_ops import GradientLayout, Identity, ToLayout, ViewConversion
from jobflow.ops.source import Input, ReadVariable


@dataclass(frozen=True)
class Spread:
    """A strategy and the placement `ranks` of the tensors in the program that it distributes."""

    strategy: Strategy
    ranks: Placement
    #: layouts of variables that an earlier graph has redistributed, by name; these layouts do not change
    redistributed: Mapping[str, Layout]

    def distribute(self, program: Traced, outputs: Sequence[Value]) -> tuple[Traced, Sequence[Value]]:
        return self.strategy.distribute(*_Arranging(self, program).run(outputs))


class _Arranging:
    """A graph rewrite that moves nodes from the program's ranks to the strategy's device mesh."""

    def __init__(self, spread: Spread, program: Traced) -> None:
        self.ranks, self.grid = spread.ranks, spread.strategy.placement(spread.ranks)
        redistributed = {
            name: replace(program.variables[name], placement=lies.placement, sbp=lies.sbp)
            for name, lies in spread.redistributed.items()
            if name in program.variables
        }
        variables = {name: redistributed.get(name) or self.arranged(variable) for name, variable in program.variables.items()}
        self.program = replace(program, placement=self.grid, variables=variables, known={**program.known, **redistributed})
        self.tracer = Tracer.onward(self.program)
        #: the inputs in their original layouts
        self.come: dict[str, Value] = {}

    def run(self, outputs: Sequence[Value]) -> tuple[Traced, Sequence[Value]]:
        program, results = self.tracer.rewritten(self.program, outputs, self.take)
        return replace(program, inputs={**program.inputs, **self.come}), results

    def arranged(self, variable: Variable) -> Variable:
        """Return a variable that is replicated on the program's ranks as a variable on the device mesh, and other variables unchanged."""
        if variable.placement != self.ranks or not all(isinstance(sbp, Broadcast) for sbp in variable.sbp):
            return variable
        return replace(variable, placement=self.grid, sbp=(B,) * len(self.grid.mesh))

    def take(self, node: Node, inputs: tuple[Value, ...]) -> Sequence[Value]:
        """Record the replacement of `node`, on the device mesh where possible, and return its outputs."""
        if isinstance(node.op, ReadVariable):
            return self.tracer.again(node, inputs, placement=self.program.variables[node.op.key].placement)
        if node.placement != self.ranks:
            return self.tracer.again(node, inputs)
        if isinstance(node.op, Input):
            (value,) = self.tracer.again(node, inputs)
            self.come[node.op.key] = value
            entered = Node(Identity(), node.inputs, outputs_of(node), f"{node.name}.entered", self.grid, node.provenance)
            return self.tracer.again(entered, (value,))
        if isinstance(node.op, ViewConversion | ToLayout | GradientLayout) and self.grid.mesh != self.ranks.mesh:
            return self.tracer.again(node, inputs)
        return self.tracer.again(node, inputs, placement=self.grid)


def spread(
    strategy: Strategy, what: str, where: SourceLine, ranks: int, lies: Iterable[tuple[str, Layout | None]], redistributed: Mapping[str, Layout]
) -> Spread:
    """Return the strategy with the placement of the tensors, whose names and layouts are `lies`; the user set the strategy at `where`.

    Raises: JobError for several placements, or local tensors on several ranks; ConfigError for a strategy that only supports jobs.
    """
    described = f"{what}: the strategy set at {where}"
    if strategy.view == "mirrored":
        raise ConfigError(
            f"{described} is for jobs, whose body describes one rank; in a graph each tensor has its own layout: "
            f"use strategies.data_parallel(), or local tensors and nn.parallel.DistributedDataParallel"
        )
    placements: dict[Placement, str] = {}
    for name, layout in lies:
        if layout is None and ranks > 1:
            raise JobError(f"{described} distributes global tensors over ranks; {name} is local: convert it with to_global(placement=..., sbp=...)")
        if layout is not None:
            placements.setdefault(layout.placement, name)
    if len(placements) > 1:
        (first, one), (second, other) = list(placements.items())[:2]
        raise JobError(
            f"{described} distributes tensors of one placement over its ranks; {one} is on {first} and {other} on {second}: "
            "move all tensors to one placement with "
            f"to_global, or omit the strategy and place the stages yourself"
        )
    return Spread(strategy, next(iter(placements), Placement("cpu", (0,))), redistributed)
