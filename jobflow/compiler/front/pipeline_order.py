"""Unrolled graph -> the same graph in the order of a pipeline schedule.

The graph contains a copy of the body for every microbatch.  Stages are determined as follows.

* Stages that the program names (`Provenance.stage`) are used.  Such stages are ordered by number, and values move only to later stages.
* Otherwise the stages are placements without common ranks, in order of first use.  Among overlapping placements, the smallest is a stage.
  If values return to a placement from a later placement, the earlier placement starts a further stage.

Nodes without a stage follow their inputs; arguments and constants follow their readers.  A node of the backward pass belongs to the
stage of the value whose gradient it computes.  Adjacent stages on the same ranks are merged, so stages without separate placements form
no pipeline.

A schedule yields one row of tasks per group of ranks.  A simulation, in which a backward pass takes twice as long as a forward pass,
yields the time of each task.  Nodes are sorted by these times, subject to their inputs.  Nodes outside of microbatches run as early as
possible, and updates run last.  All ranks share one order, so communication is totally ordered.  Each rank runs the tasks of its row.

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

#: The default schedule.
USUAL = "1f1b"

#: The label of a stage: its number or its placement.
Label: TypeAlias = int | Placement


@dataclass(frozen=True)
class Pipeline:
    """The pipeline of a graph: its stages, the row of tasks of each group of ranks, and the simulated times."""

    form: Form
    #: one per group of ranks
    rows: tuple[Row, ...]
    simulation: Simulation
    #: one per group of ranks
    placements: tuple[Placement, ...]
    #: only for nodes of microbatches
    tasks: Mapping[Node, Task]

    def __str__(self) -> str:
        return diagram(self.rows, self.simulation, [f"ranks {list(placement.ranks)}" for placement in self.placements])


def pipeline(graph: Graph, schedule: str | None = None) -> Graph:
    """Order the graph by the schedule; return graphs without microbatches unchanged, and without `schedule` also graphs of a single stage."""
    result = pipeline_of(graph, schedule or USUAL)
    if result is None or (schedule is None and result.form.stages == 1):
        return graph
    return replace(graph, nodes=_sorted(graph.nodes, result))


def pipeline_of(graph: Graph, schedule: str) -> Pipeline | None:
    """Return the pipeline of an unrolled graph, or None if the graph has no microbatches.

    Raises: ConfigError for an unknown schedule, PlacementError if values return to an earlier stage.
    """
    if schedule not in SCHEDULES:
        raise ConfigError(f'{graph.kind} {graph.name}: unknown pipeline schedule "{schedule}"; use {", ".join(SCHEDULES)}')
    own = [node for node in graph.nodes if _direction(node) is not None]
    if not own:
        return None
    stages = _Stages(graph, own).run()
    placements = _placements(own, stages)
    groups = list(dict.fromkeys(placements))
    merged = _merged(placements)
    form = Form(
        tuple(groups.index(placements[stage]) for i, stage in enumerate(merged) if i == 0 or merged[i - 1] != stage),
        1 + max(node.provenance.microbatch or 0 for node in own),
        any(_direction(node) == "backward" for node in own),
    )
    indices = {stage: i for i, stage in enumerate(dict.fromkeys(merged))}
    rows = rows_of(form, schedule)
    simulation = simulate(rows, form.needs, lambda task: 2.0 if task.direction == "backward" else 1.0)
    tasks = {node: Task(direction, indices[merged[stages[node]]], node.provenance.microbatch or 0) for node in own if (direction := _direction(node))}
    return Pipeline(form, rows, simulation, tuple(groups), tasks)


def _direction(node: Node) -> Pass | None:
    """Return "forward" or "backward" for a node of a microbatch; None for any other node."""
    if node.provenance.microbatch is None or node.phase == "update":
        return None
    return "backward" if node.phase == "backward" else "forward"


# -------------------------------------------------------------------- stages


def _placements(nodes: Iterable[Node], stages: Mapping[Node, int]) -> list[Placement]:
    """Return for each stage the placement of most of its nodes; nodes without inputs do not count."""
    counts: list[Counter[Placement]] = [Counter() for _ in range(1 + max(stages.values()))]
    for node in nodes:
        counts[stages[node]][node.placement] += 1 if node.inputs else 0
    return [max(count, key=count.__getitem__) for count in counts]


def _merged(placements: Sequence[Placement]) -> list[int]:
    """Map each stage to the first stage of its run of adjacent stages on the same ranks."""
    result: list[int] = []
    for stage, placement in enumerate(placements):
        same = stage > 0 and placement.ranks == placements[stage - 1].ranks
        result.append(result[-1] if same else stage)
    return result


@dataclass
class _Stages:
    """The assignment of a stage to every node of a microbatch."""

    graph: Graph
    nodes: Sequence[Node]
    labels: list[Label] = field(default_factory=list)
    stages: dict[Node, int] = field(default_factory=dict)

    def run(self) -> dict[Node, int]:
        forward = [node for node in self.nodes if _direction(node) == "forward"]
        self.hints = {node.provenance.stage for node in self.nodes} - {None}
        self.labels = [*sorted(hint for hint in self.hints if hint is not None)]
        self.own = frozenset() if self.hints else _disjoint(forward)
        for node in forward:
            self._assign_forward(node)
        self._follow_readers(forward)
        for node in self.nodes:
            if _direction(node) == "backward":
                self._assign_backward(node)
        return self.stages

    def _label(self, node: Node) -> Label | None:
        if self.hints:
            return node.provenance.stage
        return node.placement if node.placement in self.own and node.inputs else None

    def _assign_forward(self, node: Node) -> None:
        """Assign a forward node to the first stage with its label (a number or placement) at or after the stages of its inputs.

        A node without a label gets the last stage of its inputs.
        Raises: PlacementError if the program names the stages and no such stage exists.
        """
        before = [self.stages[value.node] for value in node.inputs if value.node in self.stages]
        low, label = max(before, default=0), self._label(node)
        if label is None:
            if before:
                self.stages[node] = low
            return
        candidates = [i for i, other in enumerate(self.labels) if other == label and i >= low]
        if self.hints and not candidates:
            raise self._cycle(node, low)
        if not candidates:
            self.labels.append(label)
        self.stages[node] = candidates[0] if candidates else len(self.labels) - 1

    def _cycle(self, node: Node, low: int) -> PlacementError:
        value = next(value for value in node.inputs if self.stages.get(value.node) == low)
        maker, mine, others = value.node, node.provenance.stage, self.labels[low]
        remedy = f"give the {node.op.word()} pipeline_stage_id_hint={others} or more"
        if self.graph.kind == "graph":
            remedy = f"call set_stage({others}) or a higher stage for the module of the {node.op.word()}"
        return PlacementError(
            f'{self.graph.kind} {self.graph.name}: {node.op.word()} at {node.where} (layer "{node.name}") is in stage {mine} of the pipeline '
            f'but reads {value.name} of stage {others}, computed at {maker.where} (layer "{maker.name}"): the stages form a cycle. '
            f"Values move only to later stages: {remedy}, or number the stages in the order in which values pass through them"
        )

    def _follow_readers(self, forward: Sequence[Node]) -> None:
        """Assign nodes without staged inputs to the first stage that reads them."""
        first: dict[Node, int] = {}
        for node in reversed(forward):
            stage = self.stages.setdefault(node, first.get(node, 0))
            for value in node.inputs:
                first[value.node] = min(stage, first.get(value.node, stage))

    def _assign_backward(self, node: Node) -> None:
        """Assign a backward node to the last stage with its label (a number or placement) up to the stages of its gradient inputs.

        A node without a label gets the first stage of these inputs.
        """
        behind = [self.stages[value.node] for value in node.inputs if _direction(value.node) == "backward"]
        stored = [self.stages[value.node] for value in node.inputs if _direction(value.node) == "forward"]
        high = min(behind) if behind else max(stored, default=len(self.labels) - 1)
        candidates = [i for i, other in enumerate(self.labels) if other == self._label(node) and i <= high]
        self.stages[node] = candidates[-1] if candidates else max(high, 0)


def _disjoint(forward: Iterable[Node]) -> frozenset[Placement]:
    """Return the placements that become stages; of placements that share ranks, only the smallest becomes a stage."""
    used = list(dict.fromkeys(node.placement for node in forward if node.inputs))
    disjoint: list[Placement] = []
    for placement in sorted(used, key=lambda placement: placement.size):
        if all(set(placement.ranks).isdisjoint(other.ranks) for other in disjoint):
            disjoint.append(placement)
    return frozenset(disjoint)


# -------------------------------------------------------------------- order


def _sorted(nodes: Sequence[Node], pipeline: Pipeline) -> tuple[Node, ...]:
    """Sort the nodes by the times of their tasks; every node follows its inputs."""
    keys = _keys(nodes, pipeline)
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


def _keys(nodes: Iterable[Node], pipeline: Pipeline) -> dict[Node, tuple[float, int]]:
    """Return the sort key of each node: the start time of its task, then the distance to the end of the pipeline."""
    keys: dict[Node, tuple[float, int]] = {}
    for node in nodes:
        task = pipeline.tasks.get(node)
        if task is not None:
            nearness = -task.stage if task.direction == "forward" else task.stage - 2 * pipeline.form.stages
            keys[node] = pipeline.simulation.begin[task], nearness
        elif node.phase == "update":
            keys[node] = math.inf, 0
        else:
            keys[node] = max((keys[value.node] for value in node.inputs), default=(-1.0, 0))
    return keys
