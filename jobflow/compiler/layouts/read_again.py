"""Physical graph -> the same, where what ranks tell each other depends on no variable that was written over.

Variables are written in the end, when nothing is sent any more (`compiler/rank/order.py`): a run that fails before that leaves them as they
were.  A new value of a moving average, or of a tensor of which a part was assigned, that the program reads again and that has to travel is
therefore made beside the variable, which takes it in the end:

    a' = MovingAverage(a, x) ... a' -> other ranks      =>      a' = NewValues(MovingAverage)(a, x) ... a' -> other ranks; Assign(a, a')
"""

from __future__ import annotations

from jobflow.compiler.layouts.box import Reroute
from jobflow.graph.ir import Node, Physical, Value
from jobflow.graph.rewrite import Rewriter
from jobflow.ops.update import NewValues


def make_beside(physical: Physical) -> Physical:
    """Have new values that travel made beside their variables."""
    beside = _behind(physical)
    return _Beside(physical, beside).made() if beside else physical


def _behind(physical: Physical) -> set[Node]:
    """The writes of variables on which something that travels depends."""
    writes: dict[Node, set[Node]] = {}
    found: set[Node] = set()
    for node in physical.graph.nodes:
        writes[node] = set().union(*(writes[value.node] for value in node.inputs))
        if isinstance(node.op, Reroute) and node.op.bytes_per_rank(*(value.type for value in node.inputs)):
            found |= writes[node]
        if node.op.alias:
            writes[node].add(node)
    return found


class _Beside(Rewriter):
    def __init__(self, physical: Physical, beside: set[Node]) -> None:
        super().__init__(physical.graph)
        self.before, self.beside = physical.layouts, beside

    def made(self) -> Physical:
        graph = self.run()
        return Physical(graph, {self.now[value]: layout for value, layout in self.before.items()})

    def take(self, node: Node, inputs: tuple[Value, ...]) -> tuple[Value, ...]:
        return self.keep(node, inputs, op=NewValues(node.op)) if node in self.beside else self.keep(node, inputs)
