"""Strategies of graphs: `graph.config.strategy(flow.strategies.zero())`.

`build` speaks of tensors that lie whole on some ranks, as its inputs and parameters do.  Before the strategy distributes the program, as
it does that of a job, all of it that runs on those ranks is put on the grid that the strategy arranges them in; what comes from outside
is brought there from where it lies.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from jobflow.compiler.front.trace import Tracer
from jobflow.core.dataclass import dataclass
from jobflow.core.errors import ConfigError, JobError, SourceLine
from jobflow.core.layout import B, Broadcast, Layout, Placement
from jobflow.graph.ir import Node, Value, Variable
from jobflow.graph.rewrite import made_by
from jobflow.graph.strategy import Strategy
from jobflow.graph.traced import Traced
from jobflow.ops.layout_ops import GradientLayout, Identity, ToLayout, ViewConversion
from jobflow.ops.source import Input, ReadVariable


@dataclass(frozen=True)
class Spread:
    """A strategy for a program whose tensors lie on `given`."""

    strategy: Strategy
    given: Placement
    #: how the variables lie that an earlier graph has laid, by name; they stay so
    laid: Mapping[str, Layout]

    def distribute(self, program: Traced, outputs: Sequence[Value]) -> tuple[Traced, Sequence[Value]]:
        return self.strategy.distribute(*_Arranging(self, program).run(outputs))


class _Arranging:
    """Puts what runs on the given ranks on the strategy's grid."""

    def __init__(self, spread: Spread, program: Traced) -> None:
        self.given, self.grid = spread.given, spread.strategy.placement(spread.given)
        laid = {
            name: replace(program.variables[name], placement=lies.placement, sbp=lies.sbp)
            for name, lies in spread.laid.items()
            if name in program.variables
        }
        variables = {name: laid.get(name) or self.arranged(variable) for name, variable in program.variables.items()}
        self.program = replace(program, placement=self.grid, variables=variables, known={**program.known, **laid})
        self.tracer = Tracer.onward(self.program)
        #: the inputs, as they come
        self.come: dict[str, Value] = {}

    def run(self, outputs: Sequence[Value]) -> tuple[Traced, Sequence[Value]]:
        made, found = self.tracer.rewritten(self.program, outputs, self.take)
        return replace(made, inputs={**made.inputs, **self.come}), found

    def arranged(self, variable: Variable) -> Variable:
        """A variable that lies whole on the given ranks, on the grid."""
        if variable.placement != self.given or not all(isinstance(sbp, Broadcast) for sbp in variable.sbp):
            return variable
        return replace(variable, placement=self.grid, sbp=(B,) * len(self.grid.mesh))

    def take(self, node: Node, inputs: tuple[Value, ...]) -> Sequence[Value]:
        """What stands for a node on the grid."""
        if isinstance(node.op, ReadVariable):
            return self.tracer.again(node, inputs, placement=self.program.variables[node.op.key].placement)
        if node.placement != self.given:
            return self.tracer.again(node, inputs)
        if isinstance(node.op, Input):
            (value,) = self.tracer.again(node, inputs)
            self.come[node.op.key] = value
            entered = Node(Identity(), node.inputs, made_by(node), f"{node.name}.entered", self.grid, node.origin)
            return self.tracer.again(entered, (value,))
        if isinstance(node.op, ViewConversion | ToLayout | GradientLayout) and self.grid.mesh != self.given.mesh:
            return self.tracer.again(node, inputs)
        return self.tracer.again(node, inputs, placement=self.grid)


def spread(
    strategy: Strategy, what: str, where: SourceLine, ranks: int, lies: Iterable[tuple[str, Layout | None]], laid: Mapping[str, Layout]
) -> Spread:
    """The strategy, as `where` asks for it, for the tensors `lies` of a graph.  JobError unless they lie on one placement."""
    asked = f"{what}: the strategy that is asked for at {where}"
    if strategy.view == "mirrored":
        raise ConfigError(
            f"{asked} is for jobs, whose body describes one rank; in a graph each tensor has its own layout: "
            f"use strategies.data_parallel(), or local tensors and nn.parallel.DistributedDataParallel"
        )
    found: dict[Placement, str] = {}
    for name, layout in lies:
        if layout is None and ranks > 1:
            raise JobError(f"{asked} distributes global tensors over ranks; {name} is local: convert it with to_global(placement=..., sbp=...)")
        if layout is not None:
            found.setdefault(layout.placement, name)
    if len(found) > 1:
        (first, one), (second, other) = list(found.items())[:2]
        raise JobError(
            f"{asked} distributes tensors of one placement over its ranks; {one} is on {first} and {other} on {second}: move all to one with "
            f"to_global, or omit the strategy and place the stages yourself"
        )
    return Spread(strategy, next(iter(found), Placement("cpu", (0,))), laid)
