"""Physical graph -> the same, where no update writes over a variable whose new value is something else.

Variables are written in the end, when nothing is sent any more (`compiler/rank/order.py`): a run that fails before that leaves them as they
were.  Two kinds of updates therefore go to temporaries, and the variable takes its new value by an assignment in the end:

* updates on which communication depends, such as a moving average that the program reads again and that has to travel;
* updates whose result is not itself the new value of the variable, such as one that a strategy reads in another layout:

    a' = MovingAverage(a, x); b = ToLayout(a'); a takes b      =>      a' = NewValues(MovingAverage)(a, x); b = ToLayout(a'); Assign(a, b)
"""

from __future__ import annotations

from jobflow.compiler.layouts.box import Reroute
from jobflow.graph.ir import Graph, Node, Physical, Value
from jobflow.graph.rewrite import Rewriter
from jobflow.ops.op import ViewOp
from jobflow.ops.source import ReadVariable
from jobflow.ops.update import NewValues


def make_beside(physical: Physical) -> Physical:
    """Compute the new values of such updates in temporaries."""
    beside = _before_communication(physical) | _not_the_new_value(physical.graph)
    return _Beside(physical, beside).made() if beside else physical


def _before_communication(physical: Physical) -> set[Node]:
    """The updates on which communication depends."""
    writes: dict[Node, set[Node]] = {}
    found: set[Node] = set()
    for node in physical.graph.nodes:
        writes[node] = set().union(*(writes[value.node] for value in node.inputs))
        if isinstance(node.op, Reroute) and node.op.bytes_per_rank(*(value.type for value in node.inputs)):
            found |= writes[node]
        if node.op.alias:
            writes[node].add(node)
    return found


def _not_the_new_value(graph: Graph) -> set[Node]:
    """The updates that write to the memory of a variable which takes another value."""
    in_place = {value for name in graph.updates for value in _written_in_place(graph, name)}
    return {
        node
        for node in graph.nodes
        for output, source in node.op.alias.items()
        if node.outputs[output] not in in_place and _is_stored(node.inputs[source])
    }


def _written_in_place(graph: Graph, name: str) -> list[Value]:
    """The values that updates write over a variable one after another; the last one is its new value."""
    value, found = graph.updates[name], []
    while value.index in value.node.op.alias:
        found.append(value)
        value = value.node.inputs[value.node.op.alias[value.index]]
    return found if value is graph.reads[name] else []


def _is_stored(value: Value) -> bool:
    """True if a value may share memory with a variable."""
    while isinstance(value.node.op, ViewOp | Reroute):
        value = value.node.inputs[0]
    return isinstance(value.node.op, ReadVariable)


class _Beside(Rewriter):
    def __init__(self, physical: Physical, beside: set[Node]) -> None:
        super().__init__(physical.graph)
        self.before, self.beside = physical.layouts, beside

    def made(self) -> Physical:
        graph = self.run()
        return Physical(graph, {self.now[value]: layout for value, layout in self.before.items()})

    def take(self, node: Node, inputs: tuple[Value, ...]) -> tuple[Value, ...]:
        return self.keep(node, inputs, op=NewValues(node.op)) if node in self.beside else self.keep(node, inputs)
