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
        if isinstance(node.op, Reroute) and node.op.bytes_per_rank(*(value.tensor_type for value in node.inputs)):
            found |= writes[node]
        if node.op.alias:
            writes[node].add(node)
    return found


def _not_the_new_value(graph: Graph) -> set[Node]:
    """The updates of a variable whose result is not what the variable takes, or is read by a later update of it."""
    in_place = {value for name, value in graph.updates.items() if _source(value) is graph.reads[name]}
    return {
        node for node in graph.nodes for output in node.op.alias if node.outputs[output] not in in_place and _is_of_variable(node.outputs[output])
    }


def _source(value: Value) -> Value | None:
    """The value that an update writes over to make this one; None if no update makes it."""
    over = value.node.op.alias.get(value.index)
    return None if over is None else value.node.inputs[over]


def _is_of_variable(value: Value) -> bool:
    """True if a value comes from a variable by updates and views alone."""
    while (source := _source(value)) is not None or _is_view(value.node):
        value = value.node.inputs[0] if source is None else source
    return isinstance(value.node.op, ReadVariable)


def _is_view(node: Node) -> bool:
    if isinstance(node.op, Reroute):
        return not node.op.bytes_per_rank(*(value.tensor_type for value in node.inputs))
    return isinstance(node.op, ViewOp)


class _Beside(Rewriter):
    def __init__(self, physical: Physical, beside: set[Node]) -> None:
        super().__init__(physical.graph)
        self.before, self.beside = physical.layouts, beside

    def made(self) -> Physical:
        graph = self.run()
        return Physical(graph, {self.now[value]: layout for value, layout in self.before.items()})

    def take(self, node: Node, inputs: tuple[Value, ...]) -> tuple[Value, ...]:
        return self.keep(node, inputs, op=NewValues(node.op)) if node in self.beside else self.keep(node, inputs)
