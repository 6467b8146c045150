"""Applying hints to a program: stages of nodes, storage of variables, and `to_layout` where a value is read.

The ranks of a job are a grid with one dimension of parallelism each.  A dimension that is no pipeline is a mesh dimension of every placement;
along a pipeline the grid is cut, so that every stage has a mesh of its own.
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
from jobflow.ops.layout_ops import Crossing, GradientLayout, Identity, ToLayout
from jobflow.ops.source import Input, ReadVariable

if TYPE_CHECKING:
    from jobflow.strategies.strategy_class import Hints, Strategy


def sizes(dimensions: Sequence[Strategy], ranks: int) -> tuple[int, ...]:
    """How many ranks each dimension has; PlacementError if they do not fill the grid."""
    free = [i for i, dimension in enumerate(dimensions) if dimension.size is None]
    fixed = math.prod(dimension.size for dimension in dimensions if dimension.size is not None)
    rest, over = divmod(ranks, fixed)
    if len(free) > 1 or over or (rest > 1 and not free) or not rest:
        told = " x ".join(map(repr, dimensions))
        raise PlacementError(
            f"strategy {told}: the job has {ranks} ranks, which do not match its sizes; omit at most one size, and make their product {ranks}"
        )
    return tuple(rest if dimension.size is None else dimension.size for dimension in dimensions)


def arranged(dimensions: Sequence[Strategy], given: Placement) -> Placement:
    """The given ranks as a grid of the dimensions."""
    return Placement(given.tag, given.ranks, sizes(dimensions, given.size))


def stage_placements(dimensions: Sequence[Strategy], given: Placement) -> tuple[Placement, ...]:
    """The ranks of each stage: parts of the grid across the pipeline; all of it if there is none."""
    each = sizes(dimensions, given.size)
    along = [i for i, dimension in enumerate(dimensions) if dimension.is_pipeline]
    if len(along) > 1:
        raise PlacementError(f"strategy {' x '.join(map(repr, dimensions))}: there can be one pipeline only")
    if not along:
        return (Placement(given.tag, given.ranks, each),)
    (axis,) = along
    grid = np.array(given.ranks).reshape(each)
    mesh = each[:axis] + each[axis + 1 :]
    parts = (np.take(grid, i, axis).ravel() for i in range(each[axis]))
    return tuple(Placement(given.tag, tuple(int(rank) for rank in part), mesh) for part in parts)


def write(program: Traced, outputs: Sequence[Value], dimensions: Sequence[Strategy]) -> tuple[Traced, Sequence[Value]]:
    """The program with the hints of all dimensions in it; its outputs as they are then."""
    return _Writing(program, dimensions).run(outputs)


class _Writing:
    def __init__(self, program: Traced, dimensions: Sequence[Strategy]) -> None:
        self.program, self.tracer = program, Tracer.onward(program)
        self.given = program.placement
        self.places = stage_placements(dimensions, self.given)
        hints = collected(program, dimensions)
        self.stages = {node: stage for one in hints for node, stage in one.stages.items()}
        self.hints = [one for one, dimension in zip(hints, dimensions, strict=True) if not dimension.is_pipeline]
        self.homes = {node.op.key: self.place(node) for node in program.nodes if isinstance(node.op, ReadVariable)}
        new = {name: variable for name, variable in program.variables.items() if name not in program.known}
        #: variables about which the program says how they are stored
        self.asked = {name for name, variable in new.items() if variable.placement != self.given or any(isinstance(s, Split) for s in variable.sbp)}
        self.cut_arguments = {node.op.key for node in program.nodes if isinstance(node.op, Input) and node.op.split and node.op.shape}
        self.brought: dict[str, Value] = {}
        self.received: dict[tuple[Value, Placement], Value] = {}

    def run(self, outputs: Sequence[Value]) -> tuple[Traced, Sequence[Value]]:
        self.variables = {name: self.at_home(variable) for name, variable in self.program.variables.items()}
        return self.tracer.rewritten(replace(self.program, variables=self.variables), outputs, self.rewrite)

    def at_home(self, variable: Variable) -> Variable:
        """A variable as it is stored."""
        if variable.name in self.program.known or variable.placement != self.given:
            return variable
        home = self.homes[variable.name]
        return replace(variable, placement=home, sbp=self.stored(variable, len(home.mesh)))

    # ---------------------------------------------------------------- nodes

    def place(self, node: Node) -> Placement:
        """Where a node runs: on the ranks of its stage, unless its body says where."""
        if node.placement != self.given:
            return node.placement
        return self.places[self.stages.get(node, 0) % len(self.places)]

    def rewrite(self, node: Node, inputs: tuple[Value, ...]) -> Sequence[Value]:
        op, place = node.op, self.place(node)
        origin = replace(node.origin, stage=self.stages.get(node, node.origin.stage))
        if isinstance(op, ReadVariable):
            place = self.variables[op.key].placement
        elif isinstance(op, Input) and op.sbp is not None:  # it comes as it lies, whichever stage takes it up
            return self.tracer.again(node, inputs)
        elif isinstance(op, Input):
            op = replace(op, split=op.split and self.cut(place)[self.outermost] != B)
        elif node.phase == "forward" and not op.alias and not isinstance(op, Crossing | ToLayout | GradientLayout):
            inputs = tuple(map(self.read, inputs))
        inputs = tuple(self.handed_over(value, place, origin.stage) for value in inputs)
        made = self.tracer.again(node, inputs, op=op, placement=place, origin=origin)
        return [self.laid(new, old) for new, old in zip(made, node.outputs, strict=True)]

    def handed_over(self, value: Value, place: Placement, stage: int | None) -> Value:
        """A value of another stage as a value of this one, so that its gradients are added up here and go back as one."""
        if value.node.placement == place or not {place, value.node.placement} <= set(self.places):
            return value
        if (value, place) not in self.received:
            with scope.using(placement=place, view="consistent", stage=stage):
                (self.received[value, place],) = self.tracer.apply(Identity(), (value,), None)
        return self.received[value, place]

    def laid(self, value: Value, before: Value) -> Value:
        """A value that the program has made, in the layout in which it is to be read; `before` is how the hints know it."""
        wish = self.wishes(before, [hints.values for hints in self.hints])
        back = self.wishes(before, [hints.gradients for hints in self.hints])
        if (wish is None and back is None) or value.node.op.external:
            return value
        with scope.using(placement=value.node.placement, view="consistent", stage=value.node.origin.stage):
            op = GradientLayout(back) if wish is None and back is not None else ToLayout(wish or (), back)
            (fresh,) = self.tracer.apply(op, (value,), None)
        assert isinstance(fresh, Value)
        return fresh

    @staticmethod
    def wishes(value: Value, each: Sequence[Mapping[Value, Sbp]]) -> tuple[Sbp | None, ...] | None:
        return tuple(one.get(value) for one in each) if any(value in one for one in each) else None

    # ---------------------------------------------------------------- arguments

    @cached_property
    def outermost(self) -> int:
        """The mesh dimension along which an argument is cut before it gets to its ranks."""
        return next((d for d, n in enumerate(self.places[0].mesh) if n > 1), 0)

    def cut(self, place: Placement) -> tuple[Sbp, ...]:
        """How arguments are read along the first axis."""
        if place not in self.places:
            return (S(0),) * len(place.mesh)
        each = [hints.cuts_arguments and n > 1 for hints, n in zip(self.hints, place.mesh, strict=False)]
        return tuple(S(0) if cuts else B for cuts in each) or (B,)

    def argument(self, value: Value, op: Input) -> Value:
        """What stands for an argument where it is read: where its ranks hold more than they should read, the rest is left aside."""
        cut = self.cut(value.node.placement)
        here = op.split and op.sbp is None  # cut by the client already
        more = [n for d, (sbp, n) in enumerate(zip(cut, value.node.placement.mesh, strict=True)) if sbp != B and (d != self.outermost or not here)]
        if not more or op.key not in self.cut_arguments or value.shape[0] < math.prod(more):
            return value
        return self.once(op.key, value, value.node.placement, cut, None, None)

    # ---------------------------------------------------------------- variables

    def stored(self, variable: Variable, ndim: int) -> tuple[Sbp, ...]:
        """How a new variable is stored: as the program asks, else as the strategies wish."""
        if any(isinstance(sbp, Split) for sbp in variable.sbp) or not self.hints:
            return variable.sbp[-ndim:]
        return tuple(hints.stored.get(variable.name, B) for hints in self.hints)

    def wished(self, name: str) -> tuple[Sbp, ...] | None:
        """How a variable is read; None if that is left to inference."""
        each = [None if hints.read is None else hints.read.get(name, B) for hints in self.hints]
        return None if None in each else tuple(sbp for sbp in each if sbp is not None) or (B,)

    def read(self, value: Value) -> Value:
        """What stands for an argument or a variable where it is read."""
        op = value.node.op
        if isinstance(op, Identity) and isinstance(come := value.node.inputs[0].node.op, Input):
            return self.argument(value, come)
        if isinstance(op, Input):
            return value if op.sbp is not None else self.argument(value, op)
        if not isinstance(op, ReadVariable) or op.key in self.asked:
            return value
        variable, home, wish = self.variables[op.key], self.homes[op.key], self.wished(op.key)
        if wish is None or (variable.placement, variable.sbp) == (home, wish):
            return value
        at_once = home == variable.placement and any(hints.reduces_at_once for hints in self.hints)
        again = any(hints.gathers_again for hints in self.hints)
        region = scope.current().region if again else None
        if again and region is None:
            region = self.first_region + len(self.brought)
        return self.once(op.key, value, home, wish, variable.sbp if at_once else None, region)

    def once(self, key: str, value: Value, home: Placement, wish: tuple[Sbp, ...], back: tuple[Sbp, ...] | None, region: int | None) -> Value:
        """The value in another layout, the same for all who read it."""
        if key not in self.brought:
            with scope.using(placement=home, view="consistent", stage=value.node.origin.stage, region=region):
                (self.brought[key],) = self.tracer.apply(ToLayout(wish, back), (value,), None)
        return self.brought[key]

    @cached_property
    def first_region(self) -> int:
        """A number for a region that the program does not use."""
        return 1 + max((node.origin.region for node in self.program.nodes if node.origin.region is not None), default=0)


def collected(program: Traced, dimensions: Sequence[Strategy]) -> list[Hints]:
    """The hints of every dimension; inner ones come first, so that outer ones know which axes are split already."""
    split = {name: {sbp.axis for sbp in variable.sbp if isinstance(sbp, Split)} for name, variable in program.variables.items()}
    found: list[Hints] = []
    for dimension, n in zip(reversed(dimensions), reversed(program.placement.mesh), strict=True):
        hints = dimension.hints(program, n, split)
        for name, sbp in hints.stored.items():
            if isinstance(sbp, Split):
                split[name].add(sbp.axis)
        found.append(hints)
    return found[::-1]
