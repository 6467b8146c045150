"""Physical graph -> the same graph without write-after-read hazards: some updates write to temporaries.

Variables are written at the end of a run, after all communication (`compiler/rank/order.py`).  A run that fails earlier leaves them
unchanged.  Two kinds of updates therefore write to temporaries, and an assignment at the end gives the variable its new value:

* updates on which communication depends, such as a moving average that the program reads again and redistributes;
* updates whose result is not the new value of the variable, because a strategy, for example, redistributes the result:

    a' = MovingAverage(a, x); b = ToLayout(a'); a := b      =>      a' = NewValues(MovingAverage)(a, x); b = ToLayout(a'); Assign(a, b)
"""

from __future__ import annotations

from jobflow.compiler.layouts.box import Reroute
from jobflow.graph.ir import Graph, Node, Physical, Value
from jobflow.graph.rewrite import Rewriter
from jobflow.ops.op import ViewOp
from jobflow.ops.source import ReadVariable
from jobflow.ops.update import NewValues


def break_hazards(physical: Physical) -> Physical:
    """Write the results of hazardous updates to temporaries; return a graph without hazards unchanged."""
    updates = _before_communication(physical) | _not_the_new_value(physical.graph)
    return _HazardBreaker(physical, updates).rewritten() if updates else physical


def _before_communication(physical: Physical) -> set[Node]:
    """Return the updates on which communication depends."""
    writes: dict[Node, set[Node]] = {}
    updates: set[Node] = set()
    for node in physical.graph.nodes:
        writes[node] = set().union(*(writes[value.node] for value in node.inputs))
        if isinstance(node.op, Reroute) and node.op.bytes_per_rank(*(value.tensor_type for value in node.inputs)):
            updates |= writes[node]
        if node.op.alias:
            writes[node].add(node)
    return updates


def _not_the_new_value(graph: Graph) -> set[Node]:
    """Return the updates whose result is not the variable's new value, or is read by a later update of the variable."""
    in_place = {value for name, value in graph.updates.items() if _source(value) is graph.reads[name]}
    return {
        node for node in graph.nodes for output in node.op.alias if node.outputs[output] not in in_place and _is_of_variable(node.outputs[output])
    }


def _source(value: Value) -> Value | None:
    """Return the value that the update producing `value` overwrites; None if the producer is not an update."""
    over = value.node.op.alias.get(value.index)
    return None if over is None else value.node.inputs[over]


def _is_of_variable(value: Value) -> bool:
    """Return True if the value results from a variable through updates and views only."""
    while (source := _source(value)) is not None or _is_view(value.node):
        value = value.node.inputs[0] if source is None else source
    return isinstance(value.node.op, ReadVariable)


def _is_view(node: Node) -> bool:
    if isinstance(node.op, Reroute):
        return not node.op.bytes_per_rank(*(value.tensor_type for value in node.inputs))
    return isinstance(node.op, ViewOp)


class _HazardBreaker(Rewriter):
    def __init__(self, physical: Physical, updates: set[Node]) -> None:
        super().__init__(physical.graph)
        self.before, self.updates = physical.layouts, updates

    def rewritten(self) -> Physical:
        graph = self.run()
        return Physical(graph, {self.now[value]: layout for value, layout in self.before.items()})

    def take(self, node: Node, inputs: tuple[Value, ...]) -> tuple[Value, ...]:
        return self.keep(node, inputs, op=NewValues(node.op)) if node in self.updates else self.keep(node, inputs)
