"""Unrolled graph -> the same graph in the order of a pipeline schedule.

Policy.  The graph has every microbatch written out.  A stage is

* what the program calls one (`Origin.stage`), if it does so anywhere; stages follow each other by number, and a value goes from a
  stage to a later one only;
* else a placement: in order of first use, those that share no rank with another (of several that do, the smallest).  Where values
  come back to a placement from a later one, that placement has a further stage from there on.

Nodes that are in none follow what they read; arguments and constants what reads them.  A node of the backward pass is in the stage of
what it is the gradient of.  Neighbouring stages on the same ranks are one, so stages without placements of their own are no pipeline.

A schedule gives the rows, and a simulation in which a backward pass takes twice as long as a forward pass gives the time of each task;
nodes are sorted by the times of their tasks, as far as what they read allows it.  What belongs to no microbatch comes as early as it
can, the update last.  The order is one for all ranks, so that communication is one total order; of it, each rank's own part is its row.

Example, two stages and two microbatches by 1f1b:  F(0,0)  F(1,0) F(0,1)  B(1,0)  F(1,1) B(0,0)  B(1,1)  B(0,1)  update
"""

from __future__ import annotations

import heapq
import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import field, replace
from typing import TypeAlias

from jobflow.compiler.front.schedule import SCHEDULES, Form, Pass, Row, Simulation, Task, diagram, rows_of, simulate
from jobflow.core.dataclass import dataclass
from jobflow.core.errors import ConfigError, PlacementError
from jobflow.core.layout import Placement
from jobflow.graph.ir import Graph, Node

#: The order of the stages unless the job names another.
USUAL = "1f1b"

#: What makes nodes one stage.
Label: TypeAlias = int | Placement


@dataclass(frozen=True)
class Pipeline:
    """The pipeline of a graph: its stages, and who does what when."""

    form: Form
    #: per group of ranks
    rows: tuple[Row, ...]
    simulation: Simulation
    #: of the groups
    placements: tuple[Placement, ...]
    #: of the nodes that belong to a microbatch
    tasks: Mapping[Node, Task]

    def __str__(self) -> str:
        return diagram(self.rows, self.simulation, [f"ranks {list(placement.ranks)}" for placement in self.placements])


def pipeline(graph: Graph, schedule: str | None = None) -> Graph:
    """The graph in the order of the schedule of this name.  Without one, a graph of a single stage is left as it is."""
    found = pipeline_of(graph, schedule or USUAL)
    if found is None or (schedule is None and found.form.stages == 1):
        return graph
    return replace(graph, nodes=_sorted(graph.nodes, found))


def pipeline_of(graph: Graph, schedule: str) -> Pipeline | None:
    """The pipeline of an unrolled graph; None if it has no microbatches.  PlacementError if values go back to an earlier stage."""
    if schedule not in SCHEDULES:
        raise ConfigError(f'{graph.kind} {graph.name}: there is no schedule "{schedule}" of pipelines; use {", ".join(SCHEDULES)}')
    own = [node for node in graph.nodes if _direction(node) is not None]
    if not own:
        return None
    stages = _Stages(graph, own).run()
    placements = _placements(own, stages)
    groups = list(dict.fromkeys(placements))
    merged = _merged(placements)
    form = Form(
        tuple(groups.index(placements[stage]) for i, stage in enumerate(merged) if i == 0 or merged[i - 1] != stage),
        1 + max(node.origin.microbatch or 0 for node in own),
        any(_direction(node) == "backward" for node in own),
    )
    numbers = {stage: i for i, stage in enumerate(dict.fromkeys(merged))}
    rows = rows_of(form, schedule)
    simulation = simulate(rows, form.needs, lambda task: 2.0 if task.direction == "backward" else 1.0)
    tasks = {node: Task(direction, numbers[merged[stages[node]]], node.origin.microbatch or 0) for node in own if (direction := _direction(node))}
    return Pipeline(form, rows, simulation, tuple(groups), tasks)


def _direction(node: Node) -> Pass | None:
    """Whether a node is on a microbatch's way there or back; None if it belongs to none."""
    if node.origin.microbatch is None or node.phase == "update":
        return None
    return "backward" if node.phase == "backward" else "forward"


# -------------------------------------------------------------------- stages


def _placements(nodes: Iterable[Node], stages: Mapping[Node, int]) -> list[Placement]:
    """Where each stage runs: where most of its nodes that compute do."""
    found: list[Counter[Placement]] = [Counter() for _ in range(1 + max(stages.values()))]
    for node in nodes:
        found[stages[node]][node.placement] += 1 if node.inputs else 0
    return [max(count, key=count.__getitem__) for count in found]


def _merged(placements: Sequence[Placement]) -> list[int]:
    """For each stage the first of the neighbours on the same ranks that it is one with."""
    found: list[int] = []
    for stage, placement in enumerate(placements):
        same = stage > 0 and placement.ranks == placements[stage - 1].ranks
        found.append(found[-1] if same else stage)
    return found


@dataclass
class _Stages:
    """Finds the stage of every node that belongs to a microbatch."""

    graph: Graph
    nodes: Sequence[Node]
    labels: list[Label] = field(default_factory=list)
    found: dict[Node, int] = field(default_factory=dict)

    def run(self) -> dict[Node, int]:
        forward = [node for node in self.nodes if _direction(node) == "forward"]
        self.hints = {node.origin.stage for node in self.nodes} - {None}
        self.labels = [*sorted(hint for hint in self.hints if hint is not None)]
        self.own = frozenset() if self.hints else _apart(forward)
        for node in forward:
            self._go_on(node)
        self._follow_readers(forward)
        for node in self.nodes:
            if _direction(node) == "backward":
                self._go_back(node)
        return self.found

    def _label(self, node: Node) -> Label | None:
        if self.hints:
            return node.origin.stage
        return node.placement if node.placement in self.own and node.inputs else None

    def _go_on(self, node: Node) -> None:
        """A forward node: the first stage of its label from those of its inputs on; without a label, where its inputs are."""
        before = [self.found[value.node] for value in node.inputs if value.node in self.found]
        low, label = max(before, default=0), self._label(node)
        if label is None:
            if before:
                self.found[node] = low
            return
        fitting = [i for i, other in enumerate(self.labels) if other == label and i >= low]
        if self.hints and not fitting:
            raise self._cycle(node, low)
        if not fitting:
            self.labels.append(label)
        self.found[node] = fitting[0] if fitting else len(self.labels) - 1

    def _cycle(self, node: Node, low: int) -> PlacementError:
        value = next(value for value in node.inputs if self.found.get(value.node) == low)
        maker, mine, others = value.node, node.origin.stage, self.labels[low]
        remedy = f"give the {node.op.word()} pipeline_stage_id_hint={others} or more"
        if self.graph.kind == "graph":
            remedy = f"call set_stage({others}) or a higher stage for the module of the {node.op.word()}"
        return PlacementError(
            f'{self.graph.kind} {self.graph.name}: {node.op.word()} at {node.where} (layer "{node.name}") is in stage {mine} of the pipeline '
            f'but reads {value.name} of stage {others}, made at {maker.where} (layer "{maker.name}"): the stages form a cycle. '
            f"A value goes from a stage to a later one: {remedy}, or number the stages in the order in which values pass through them"
        )

    def _follow_readers(self, forward: Sequence[Node]) -> None:
        """Nodes that read nothing with a stage: the first stage that reads them."""
        first: dict[Node, int] = {}
        for node in reversed(forward):
            stage = self.found.setdefault(node, first.get(node, 0))
            for value in node.inputs:
                first[value.node] = min(stage, first.get(value.node, stage))

    def _go_back(self, node: Node) -> None:
        """A backward node: the last stage of its label up to those of the gradients it reads; without a label, where they are."""
        behind = [self.found[value.node] for value in node.inputs if _direction(value.node) == "backward"]
        kept = [self.found[value.node] for value in node.inputs if _direction(value.node) == "forward"]
        high = min(behind) if behind else max(kept, default=len(self.labels) - 1)
        fitting = [i for i, other in enumerate(self.labels) if other == self._label(node) and i <= high]
        self.found[node] = fitting[-1] if fitting else max(high, 0)


def _apart(forward: Iterable[Node]) -> frozenset[Placement]:
    """The placements that are stages: none shares a rank with another."""
    used = list(dict.fromkeys(node.placement for node in forward if node.inputs))
    found: list[Placement] = []
    for placement in sorted(used, key=lambda placement: placement.size):
        if all(set(placement.ranks).isdisjoint(other.ranks) for other in found):
            found.append(placement)
    return frozenset(found)


# -------------------------------------------------------------------- order


def _sorted(nodes: Sequence[Node], found: Pipeline) -> tuple[Node, ...]:
    """The nodes by the times of their tasks; every node behind what it reads."""
    keys = _keys(nodes, found)
    waiting = {node: len({value.node for value in node.inputs}) for node in nodes}
    readers: dict[Node, list[Node]] = {node: [] for node in nodes}
    for node in nodes:
        for maker in dict.fromkeys(value.node for value in node.inputs):
            readers[maker].append(node)
    position = {node: i for i, node in enumerate(nodes)}
    ready = [(keys[node], i) for node, i in position.items() if not waiting[node]]
    heapq.heapify(ready)
    result: list[Node] = []
    while ready:
        node = nodes[heapq.heappop(ready)[1]]
        result.append(node)
        for reader in readers[node]:
            waiting[reader] -= 1
            if not waiting[reader]:
                heapq.heappush(ready, (keys[reader], position[reader]))
    return tuple(result)


def _keys(nodes: Iterable[Node], found: Pipeline) -> dict[Node, tuple[float, int]]:
    """When each node has its turn: the begin of its task, and of tasks that begin together those nearer to the end of the way first."""
    keys: dict[Node, tuple[float, int]] = {}
    for node in nodes:
        task = found.tasks.get(node)
        if task is not None:
            nearness = -task.stage if task.direction == "forward" else task.stage - 2 * found.form.stages
            keys[node] = found.simulation.begin[task], nearness
        elif node.phase == "update":
            keys[node] = math.inf, 0
        else:
            keys[node] = max((keys[value.node] for value in node.inputs), default=(-1.0, 0))
    return keys
