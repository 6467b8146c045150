"""Physical graph -> the same graph, reading whole arguments from shared memory instead of gathering them.

Arguments in the shared I/O buffers (`program.shared_buffers`) are stored whole, for all ranks.  A rank reads its part in place, and
can also read the whole array: the route "broadcast_view" converts S to B without a transfer.  The same holds for reshaped arguments.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from jobflow.compiler.layouts.box import Reroute
from jobflow.core.layout import Layout, Local, S
from jobflow.graph.ir import Node, Physical, Value
from jobflow.graph.rewrite import Rewriter, consumers
from jobflow.ops.axes import Reshape
from jobflow.ops.source import Input


def view_shared_arguments(physical: Physical) -> Physical:
    """Replace each all_gather of an argument by a view; all arguments must be in the shared I/O buffers."""
    return _ArgumentViews(physical).rewritten()


def argument_of(value: Value) -> Value:
    """Return the value that a chain of reshapes starts from; a value without reshapes is returned unchanged."""
    while isinstance(value.node.op, Reshape):
        value = value.node.inputs[0]
    return value


def is_contiguous(value: Value, layouts: Mapping[Value, Layout | Local], readers: Mapping[Value, Sequence[Node]]) -> bool:
    """Return True for an argument split by rows whose parts on all ranks stay contiguous in the shared I/O buffers.

    The result is False for arguments with more than two axes, unless all readers reshape them, because images may be stored in another
    memory order.  The result is also False if a rank has no elements of the argument, because this rank's part has no offset.
    """
    while isinstance(value.node.op, Reshape) and _is_split_by_rows(value, layouts):
        value = value.node.inputs[0]
    layout = layouts[value]
    if not isinstance(value.node.op, Input) or not isinstance(layout, Layout) or not _is_split_by_rows(value, layouts):
        return False
    in_client_order = len(value.shape) <= 2 or all(isinstance(reader.op, Reshape) for reader in readers[value])
    return in_client_order and not any(box.is_empty for box in layout.boxes(value.shape).values())


def _is_split_by_rows(value: Value, layouts: Mapping[Value, Layout | Local]) -> bool:
    layout = layouts[value]
    return isinstance(layout, Layout) and layout.sbp == (S(0),)


class _ArgumentViews(Rewriter):
    def __init__(self, physical: Physical) -> None:
        super().__init__(physical.graph)
        self.physical = physical
        self.readers = consumers(self.graph)

    def rewritten(self) -> Physical:
        graph = self.run()
        return Physical(graph, {self.now[value]: layout for value, layout in self.physical.layouts.items() if value in self.now})

    def take(self, node: Node, inputs: tuple[Value, ...]) -> tuple[Value, ...]:
        op = node.op
        if not isinstance(op, Reroute) or op.name != "all_gather" or not is_contiguous(node.inputs[0], self.physical.layouts, self.readers):
            return self.keep(node, inputs)
        return self.keep(node, inputs, op=Reroute(op.source, op.target, "broadcast_view"))

    def _is_contiguous(self, value: Value) -> bool:
        return is_contiguous(value, self.physical.layouts, self.readers)
