"""Pipeline parallelism: every group of ranks runs some of the layers, and the batch passes through them in microbatches.

Stages are split in program order, so values pass only to later stages.  The first applicable rule determines the cuts:

* `cuts`: stage i + 1 starts at the first node whose name, or the name of a variable that it reads, matches the i-th pattern;
* the stages that the program sets with `experimental.scope.config(pipeline_stage_id_hint=)`;
* balance: the work of a node is the larger of its flops and MEMORY times the bytes that it reads and writes.  A cut minimizes the sum of two
  terms: the distance from an equal division of work, and WIRE times the bytes sent across the cut.  The distance is at most SLACK of a stage.

The first stage that reads a variable stores it.  Other stages receive the variable, and send back their part of its gradient.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from collections.abc import Set as AbstractSet
from itertools import accumulate
from typing import ClassVar

from jobflow.compiler.front.pipeline_order import USUAL
from jobflow.compiler.front.schedule import SCHEDULES
from jobflow.core.dataclass import dataclass
from jobflow.core.errors import ConfigError, PlacementError, user_line
from jobflow.core.filters import matches
from jobflow.core.layout import Rule
from jobflow.graph.ir import Node, Value
from jobflow.graph.traced import Traced
from jobflow.ops.attention import AttentionBase
from jobflow.ops.op import ViewOp
from jobflow.ops.source import ReadVariable
from jobflow.strategies.strategy_class import Hints, Strategy

#: Number of flops in the time of one byte of memory access, and of one sent byte.
MEMORY = 10
WIRE = 100
SLACK = 0.5


@dataclass(frozen=True)
class pipeline(Strategy):
    """Pipeline parallelism with consecutive stages, each on a group of ranks.

    If a job sets train.num_gradient_accumulation_steps, this option overrides `microbatches`, and reductions follow the rules of gradient
    accumulation.  `schedule` is "1f1b", "gpipe" or "interleaved".  `stages` is a multiple of `size`, and stage i runs on group i mod size.
    Each cut communicates its values once forward and once backward.  The idle fraction of a step is (p - 1) / (m + p - 1), with m microbatches
    and p stages.
    """

    size: int | None = None
    microbatches: int | None = None
    schedule: str | None = USUAL
    stages: int | None = None
    cuts: tuple[str, ...] = ()
    is_pipeline: ClassVar[bool] = True

    def __post_init__(self) -> None:
        if self.schedule not in SCHEDULES:
            raise ConfigError(f"strategies.pipeline at {user_line()}: unknown pipeline schedule {self.schedule!r}; use {', '.join(SCHEDULES)}")
        object.__setattr__(self, "cuts", (self.cuts,) if isinstance(self.cuts, str) else tuple(self.cuts))

    def hints(self, program: Traced, n: int, split: Mapping[str, AbstractSet[int]]) -> Hints:
        steps = _model(program)
        named = sorted({node.provenance.stage for node in steps if node.provenance.stage is not None}) if not self.cuts else []
        count = self.stages or max(n, len(named))
        if count % n:
            raise ConfigError(f"strategies.pipeline: stages {count} must be a multiple of {n}, the number of groups of ranks")
        if named:
            return Hints(stages=_assign_remaining(program, _stages_by_name(program, steps, named, count)))
        begins = self._begins(program, steps, count)
        return Hints(stages=_assign_remaining(program, {node: sum(begin <= i for begin in begins) for i, node in enumerate(steps)}))

    def _begins(self, program: Traced, steps: Sequence[Node], count: int) -> Sequence[int]:
        """Return the index of the first node of each stage except stage 0, in program order."""
        if self.cuts:
            return _cuts_by_name(program, steps, self.cuts, count)
        return balanced(steps, count)


def _model(program: Traced) -> list[Node]:
    """Return the nodes to distribute over stages: all nodes that depend on a variable, except reads of variables."""
    nodes: dict[Node, None] = {}
    for node in program.nodes:
        if any(value.node in nodes or isinstance(value.node.op, ReadVariable) for value in node.inputs):
            nodes[node] = None
    return list(nodes)


def _assign_remaining(program: Traced, stages: dict[Node, int]) -> dict[Node, int]:
    """Assign variables, arguments, and nodes that depend only on arguments to the first stage that reads them."""
    complete = dict(stages)
    for node in reversed(program.nodes):
        for value in node.inputs:
            if value.node not in stages and node in complete:
                complete[value.node] = min(complete.get(value.node, complete[node]), complete[node])
    return complete


def _stages_by_name(program: Traced, steps: Sequence[Node], names: Sequence[int], count: int) -> dict[Node, int]:
    """Return the stages that the program sets; other nodes join the last stage among their inputs."""
    if len(names) != count:
        raise ConfigError(
            f"strategies.pipeline: {program.name} sets {len(names)} stages ({', '.join(map(str, names))}), but the strategy has {count}; "
            f"set {count} stages, or none"
        )
    stages: dict[Node, int] = {}
    for node in steps:
        stage = node.provenance.stage
        stages[node] = names.index(stage) if stage is not None else max((stages.get(value.node, 0) for value in node.inputs), default=0)
    return stages


def _cuts_by_name(program: Traced, steps: Sequence[Node], cuts: Sequence[str], count: int) -> list[int]:
    if len(cuts) != count - 1:
        raise ConfigError(f"strategies.pipeline: {len(cuts)} cuts define {len(cuts) + 1} stages, not {count}; pass {count - 1} cuts, or set stages")
    begins: list[int] = []
    for pattern in cuts:
        begin = next((i for i, node in enumerate(steps) if any(matches(pattern, name) for name in _names(node))), None)
        if begin is None:
            raise ConfigError(f'strategies.pipeline: job {program.name} has no op or variable like "{pattern}"; pass the name of one')
        if begin <= max(begins, default=0):
            raise ConfigError(
                f'strategies.pipeline: in job {program.name} the first op or variable like "{pattern}" does not follow the previous cut; '
                "list the cuts in program order"
            )
        begins.append(begin)
    return begins


def _names(node: Node) -> list[str]:
    return [node.name, *(value.node.op.key for value in node.inputs if isinstance(value.node.op, ReadVariable))]


# -------------------------------------------------------------------- balanced cuts


def balanced(steps: Sequence[Node], count: int) -> list[int]:
    """Return the index of the first node of each stage except stage 0, for stages of about equal work and few bytes across the cuts."""
    if len(steps) < count:
        raise PlacementError(f"strategies.pipeline: {len(steps)} ops are too few for {count} stages; reduce stages")
    before = [0.0, *accumulate(map(work, steps))]
    across = crossing(steps)
    share = before[-1] / count
    begins: list[int] = []
    for stage in range(1, count):
        possible = range((begins[-1] if begins else 0) + 1, len(steps) - (count - stage) + 1)
        away = {i: abs(before[i] - stage * share) for i in possible}
        near = [i for i in possible if away[i] < SLACK * share] or [min(possible, key=away.__getitem__)]
        begins.append(min(near, key=lambda i: away[i] + WIRE * across[i]))
    return begins


def crossing(steps: Sequence[Node]) -> list[int]:
    """Return, for each position, the bytes of values that are computed before the position and read at or after the position."""
    defined_at: dict[Value, int] = {value: i for i, node in enumerate(steps) for value in node.outputs}
    last: dict[Value, int] = {}
    for i, node in enumerate(steps):
        last.update((value, i) for value in node.inputs if value in defined_at)
    change = [0] * (len(steps) + 1)
    for value, end in last.items():
        change[defined_at[value] + 1] += value.tensor_type.nbytes
        change[end + 1] -= value.tensor_type.nbytes
    return list(accumulate(change))


def work(node: Node) -> float:
    """Return the cost of a node in flops: at least MEMORY per byte that the node reads or writes, and 0 for a view."""
    if isinstance(node.op, ViewOp):
        return 0.0
    touched = sum(value.tensor_type.nbytes for value in (*node.inputs, *node.outputs) if not isinstance(value.node.op, ReadVariable))
    return max(flops(node), float(MEMORY * touched))


def flops(node: Node) -> float:
    """Return the flops of a product summed over axes that two inputs share and the output lacks, and of attention; 0 for other operations."""
    if isinstance(node.op, AttentionBase):
        return node.op.flops(*(value.tensor_type for value in node.inputs))
    rule: Rule = node.op.rule(*(value.tensor_type for value in node.inputs))
    left, _, right = rule.spec.partition("->")
    words = left.split(",")
    out = set(right.partition(",")[0])
    if len(words) < 2 or not any(mark.islower() and mark in words[1] and mark not in out for mark in words[0]):
        return 0.0
    summed = math.prod(size for mark, size in zip(words[1], node.inputs[1].shape, strict=True) if mark not in out)
    return 2.0 * node.outputs[0].tensor_type.size * summed
