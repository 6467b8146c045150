"""Application of hints to a program: stages of nodes, storage of variables, and `to_layout` at the readers of values.

The ranks of a job form a grid with one dimension per kind of parallelism.  A dimension other than a pipeline is a mesh dimension of every
placement.  A pipeline splits the grid, so that every stage has a separate mesh.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np

import jobflow.core.scope as scope
from jobflow.compiler.front.trace import Tracer
from jobflow.core.errors import PlacementError
from jobflow.core.layout import B, Placement, S, Sbp, Split
from jobflow.graph.ir import Node, Value, Variable
from jobflow.graph.traced import Traced
from jobflow.ops.layout_ops import GradientLayout, Identity, ToLayout, ViewConversion
from jobflow.ops.source import Input, ReadVariable

if TYPE_CHECKING:
    from jobflow.strategies.strategy_class import Hints, Strategy


def sizes(dimensions: Sequence[Strategy], ranks: int) -> tuple[int, ...]:
    """Return the number of ranks along each dimension; raise PlacementError if no omitted size makes their product equal to `ranks`."""
    free = [i for i, dimension in enumerate(dimensions) if dimension.size is None]
    fixed = math.prod(dimension.size for dimension in dimensions if dimension.size is not None)
    rest, over = divmod(ranks, fixed)
    if len(free) > 1 or over or (rest > 1 and not free) or not rest:
        description = " x ".join(map(repr, dimensions))
        raise PlacementError(
            f"strategy {description}: the sizes do not match the {ranks} ranks of the job; omit at most one size, and make their product {ranks}"
        )
    return tuple(rest if dimension.size is None else dimension.size for dimension in dimensions)


def arranged(dimensions: Sequence[Strategy], placement: Placement) -> Placement:
    """Return the placement with its ranks arranged as a grid, which has one dimension per strategy."""
    return Placement(placement.tag, placement.ranks, sizes(dimensions, placement.size))


def stage_placements(dimensions: Sequence[Strategy], placement: Placement) -> tuple[Placement, ...]:
    """Return the placement of each group of pipeline ranks, a part of the grid; without a pipeline, the whole grid."""
    each = sizes(dimensions, placement.size)
    along = [i for i, dimension in enumerate(dimensions) if dimension.is_pipeline]
    if len(along) > 1:
        raise PlacementError(f"strategy {' x '.join(map(repr, dimensions))}: only one dimension can be a pipeline; omit the other pipelines")
    if not along:
        return (Placement(placement.tag, placement.ranks, each),)
    (axis,) = along
    grid = np.array(placement.ranks).reshape(each)
    mesh = each[:axis] + each[axis + 1 :]
    parts = (np.take(grid, i, axis).ravel() for i in range(each[axis]))
    return tuple(Placement(placement.tag, tuple(int(rank) for rank in part), mesh) for part in parts)


def write(program: Traced, outputs: Sequence[Value], dimensions: Sequence[Strategy]) -> tuple[Traced, Sequence[Value]]:
    """Apply the hints of all dimensions, and return the new program and its outputs."""
    return _HintWriter(program, dimensions).run(outputs)


class _HintWriter:
    def __init__(self, program: Traced, dimensions: Sequence[Strategy]) -> None:
        self.program, self.tracer = program, Tracer.onward(program)
        self.placement = program.placement
        self.places = stage_placements(dimensions, self.placement)
        hints = collected(program, dimensions)
        self.stages = {node: stage for one in hints for node, stage in one.stages.items()}
        self.hints = [one for one, dimension in zip(hints, dimensions, strict=True) if not dimension.is_pipeline]
        self.storage = {node.op.key: self.place(node) for node in program.nodes if isinstance(node.op, ReadVariable)}
        new = {name: variable for name, variable in program.variables.items() if name not in program.known}
        #: variables whose stored layout the program sets
        self.laid_out_by_program = {
            name for name, variable in new.items() if variable.placement != self.placement or any(isinstance(s, Split) for s in variable.sbp)
        }
        self.cut_arguments = {node.op.key for node in program.nodes if isinstance(node.op, Input) and node.op.split and node.op.shape}
        self.redistributed_reads: dict[str, Value] = {}
        self.received: dict[tuple[Value, Placement], Value] = {}

    def run(self, outputs: Sequence[Value]) -> tuple[Traced, Sequence[Value]]:
        self.variables = {name: self.stored_variable(variable) for name, variable in self.program.variables.items()}
        return self.tracer.rewritten(replace(self.program, variables=self.variables), outputs, self.rewrite)

    def stored_variable(self, variable: Variable) -> Variable:
        """Return the variable with its stored placement and layout; unchanged if it exists or the program sets its placement."""
        if variable.name in self.program.known or variable.placement != self.placement:
            return variable
        storage = self.storage[variable.name]
        return replace(variable, placement=storage, sbp=self.stored(variable, len(storage.mesh)))

    # ---------------------------------------------------------------- nodes

    def place(self, node: Node) -> Placement:
        """Return the placement of a node: the ranks of its stage, unless the job's body sets another placement."""
        if node.placement != self.placement:
            return node.placement
        return self.places[self.stages.get(node, 0) % len(self.places)]

    def rewrite(self, node: Node, inputs: tuple[Value, ...]) -> Sequence[Value]:
        op, place = node.op, self.place(node)
        provenance = replace(node.provenance, stage=self.stages.get(node, node.provenance.stage))
        if isinstance(op, ReadVariable):
            place = self.variables[op.key].placement
        elif isinstance(op, Input) and op.sbp is not None:  # its layout is fixed, independent of the stage
            return self.tracer.again(node, inputs)
        elif isinstance(op, Input):
            op = replace(op, split=op.split and self.cut(place)[self.outermost] != B)
        elif node.phase == "forward" and not op.alias and not isinstance(op, ViewConversion | ToLayout | GradientLayout):
            inputs = tuple(map(self.read, inputs))
        inputs = tuple(self.received_by(value, place, provenance.stage) for value in inputs)
        outputs = self.tracer.again(node, inputs, op=op, placement=place, provenance=provenance)
        return [self.redistributed(new, old) for new, old in zip(outputs, node.outputs, strict=True)]

    def received_by(self, value: Value, place: Placement, stage: int | None) -> Value:
        """Copy a value of another stage to `stage`, so that its gradients are summed there and sent back once; return other values unchanged."""
        if value.node.placement == place or not {place, value.node.placement} <= set(self.places):
            return value
        if (value, place) not in self.received:
            with scope.using(placement=place, view="consistent", stage=stage):
                (self.received[value, place],) = self.tracer.apply(Identity(), (value,), None)
        return self.received[value, place]

    def redistributed(self, value: Value, before: Value) -> Value:
        """Redistribute a computed value to the layout of its readers; `before` is the value in the original program, as in the hints."""
        target = self.requested(before, [hints.values for hints in self.hints])
        back = self.requested(before, [hints.gradients for hints in self.hints])
        if (target is None and back is None) or value.node.op.external:
            return value
        with scope.using(placement=value.node.placement, view="consistent", stage=value.node.provenance.stage):
            op = GradientLayout(back) if target is None and back is not None else ToLayout(target or (), back)
            (fresh,) = self.tracer.apply(op, (value,), None)
        assert isinstance(fresh, Value)
        return fresh

    @staticmethod
    def requested(value: Value, each: Sequence[Mapping[Value, Sbp]]) -> tuple[Sbp | None, ...] | None:
        return tuple(one.get(value) for one in each) if any(value in one for one in each) else None

    # ---------------------------------------------------------------- arguments

    @cached_property
    def outermost(self) -> int:
        """The mesh dimension along which the client splits an argument before sending it to the ranks."""
        return next((d for d, n in enumerate(self.places[0].mesh) if n > 1), 0)

    def cut(self, place: Placement) -> tuple[Sbp, ...]:
        """Return the layout in which readers on `place` receive arguments, one sbp per mesh dimension."""
        if place not in self.places:
            return (S(0),) * len(place.mesh)
        each = [hints.cuts_arguments and n > 1 for hints, n in zip(self.hints, place.mesh, strict=False)]
        return tuple(S(0) if cuts else B for cuts in each) or (B,)

    def argument(self, value: Value, op: Input) -> Value:
        """Return an argument redistributed to the layout of its readers; unchanged if it has that layout or too few rows."""
        cut = self.cut(value.node.placement)
        here = op.split and op.sbp is None  # already split by the client
        more = [n for d, (sbp, n) in enumerate(zip(cut, value.node.placement.mesh, strict=True)) if sbp != B and (d != self.outermost or not here)]
        if not more or op.key not in self.cut_arguments or value.shape[0] < math.prod(more):
            return value
        return self.shared_read(op.key, value, value.node.placement, cut, None, None)

    # ---------------------------------------------------------------- variables

    def stored(self, variable: Variable, ndim: int) -> tuple[Sbp, ...]:
        """Return the stored layout of a new variable, from the program if it sets one, otherwise from the hints."""
        if any(isinstance(sbp, Split) for sbp in variable.sbp) or not self.hints:
            return variable.sbp[-ndim:]
        return tuple(hints.stored.get(variable.name, B) for hints in self.hints)

    def read_layout(self, name: str) -> tuple[Sbp, ...] | None:
        """Return the layout in which readers receive the variable `name`; None leaves the choice to layout inference."""
        each = [None if hints.read is None else hints.read.get(name, B) for hints in self.hints]
        return None if None in each else tuple(sbp for sbp in each if sbp is not None) or (B,)

    def read(self, value: Value) -> Value:
        """Return the value that readers use instead of `value`: the argument or variable in another layout, or `value` itself."""
        op = value.node.op
        if isinstance(op, Identity) and isinstance(come := value.node.inputs[0].node.op, Input):
            return self.argument(value, come)
        if isinstance(op, Input):
            return value if op.sbp is not None else self.argument(value, op)
        if not isinstance(op, ReadVariable) or op.key in self.laid_out_by_program:
            return value
        variable, storage, target = self.variables[op.key], self.storage[op.key], self.read_layout(op.key)
        if target is None or (variable.placement, variable.sbp) == (storage, target):
            return value
        immediate = storage == variable.placement and any(hints.reduces_at_once for hints in self.hints)
        again = any(hints.gathers_again for hints in self.hints)
        region = scope.current().region if again else None
        if again and region is None:
            region = self.first_region + len(self.redistributed_reads)
        return self.shared_read(op.key, value, storage, target, variable.sbp if immediate else None, region)

    def shared_read(
        self, key: str, value: Value, storage: Placement, target: tuple[Sbp, ...], back: tuple[Sbp, ...] | None, region: int | None
    ) -> Value:
        """Return `value` redistributed to the layout `target`; all readers of the argument or variable `key` share the result.

        `back` is the layout of its gradient, and `region` its rematerialization region, both None if not requested.
        """
        if key not in self.redistributed_reads:
            with scope.using(placement=storage, view="consistent", stage=value.node.provenance.stage, region=region):
                (self.redistributed_reads[key],) = self.tracer.apply(ToLayout(target, back), (value,), None)
        return self.redistributed_reads[key]

    @cached_property
    def first_region(self) -> int:
        """The first rematerialization region that the program does not use."""
        return 1 + max((node.provenance.region for node in self.program.nodes if node.provenance.region is not None), default=0)


def collected(program: Traced, dimensions: Sequence[Strategy]) -> list[Hints]:
    """Collect the hints of every dimension from the innermost on, because an outer dimension must not split axes that an inner dimension splits."""
    split = {name: {sbp.axis for sbp in variable.sbp if isinstance(sbp, Split)} for name, variable in program.variables.items()}
    hints_by_dimension: list[Hints] = []
    for dimension, n in zip(reversed(dimensions), reversed(program.placement.mesh), strict=True):
        hints = dimension.hints(program, n, split)
        for name, sbp in hints.stored.items():
            if isinstance(sbp, Split):
                split[name].add(sbp.axis)
        hints_by_dimension.append(hints)
    return hints_by_dimension[::-1]
