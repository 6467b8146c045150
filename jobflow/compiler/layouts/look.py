"""Physical graph -> the same in which ranks look at whole arguments where these lie together, instead of gathering them.

Arguments that come through the shared I/O buffers (`engine.shared_buffers`) lie there whole, for all ranks.  A rank reads its part in place, or
all of it, as a `look`: S -> B in memory that ranks share, which moves nothing.  Reshaped arguments lie there too.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from jobflow.compiler.layouts.box import Reroute
from jobflow.core.layout import Layout, Local, S
from jobflow.graph.ir import Node, Physical, Value
from jobflow.graph.rewrite import Rewriter, consumers
from jobflow.ops.axes import Reshape
from jobflow.ops.source import Input


def look_at_arguments(physical: Physical) -> Physical:
    """Leave out gathering arguments, all of which come through the shared I/O buffers."""
    return _Looking(physical).looking()


def argument_of(value: Value) -> Value:
    """What a value is if it is not reshaped."""
    while isinstance(value.node.op, Reshape):
        value = value.node.inputs[0]
    return value


def lies_together(value: Value, layouts: Mapping[Value, Layout | Local], readers: Mapping[Value, Sequence[Node]]) -> bool:
    """True if the parts of all ranks lie one after another in the shared I/O buffers, and stay there.

    Images may be wanted in another memory order than the client's, unless they are only reshaped.  Ranks without any part of an argument do
    not know where it lies.
    """
    while isinstance(value.node.op, Reshape) and _is_in_stretches(value, layouts):
        value = value.node.inputs[0]
    layout = layouts[value]
    if not isinstance(value.node.op, Input) or not isinstance(layout, Layout) or not _is_in_stretches(value, layouts):
        return False
    as_it_comes = len(value.shape) <= 2 or all(isinstance(reader.op, Reshape) for reader in readers[value])
    return as_it_comes and not any(box.is_empty for box in layout.boxes(value.shape).values())


def _is_in_stretches(value: Value, layouts: Mapping[Value, Layout | Local]) -> bool:
    layout = layouts[value]
    return isinstance(layout, Layout) and layout.sbp == (S(0),)


class _Looking(Rewriter):
    def __init__(self, physical: Physical) -> None:
        super().__init__(physical.graph)
        self.physical = physical
        self.readers = consumers(self.graph)

    def looking(self) -> Physical:
        graph = self.run()
        return Physical(graph, {self.now[value]: layout for value, layout in self.physical.layouts.items() if value in self.now})

    def take(self, node: Node, inputs: tuple[Value, ...]) -> tuple[Value, ...]:
        op = node.op
        if not isinstance(op, Reroute) or op.name != "all_gather" or not lies_together(node.inputs[0], self.physical.layouts, self.readers):
            return self.keep(node, inputs)
        return self.keep(node, inputs, op=Reroute(op.source, op.target, "look"))

    def _lies_together(self, value: Value) -> bool:
        return lies_together(value, self.physical.layouts, self.readers)
