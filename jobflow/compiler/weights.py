"""Physical graph -> the same with weights multiplied by the ranks that update them.

Of a weight that ranks store once (`plan.storage.COMMON`), each rank updates some rows (`factors`, `divide`), which then lie in the
cache of its core.  To multiply its samples with the whole weight, a rank must fetch all other rows from the other cores.  It can as
well multiply all samples with its own rows: as many multiplications, after which the product travels in place of the weight.
That pays where the product is small, and the samples need not travel: arguments that come through the shared I/O buffers lie there for all
ranks.  Nothing but its update reads such a weight besides, for nobody asks for the gradient of an argument.

Example, two ranks, x float32[100,784] in the shared I/O buffers and w float32[512,784]: for `y = x[50:] w^T` a rank reads 0.8 MB that the other
has just written; in `y = all_to_all(x w[256:]^T)` 0.05 MB.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

from jobflow.compiler.factors import pays
from jobflow.compiler.layouts.box import Reroute, rerouted
from jobflow.core.layout import B, Layout, Local, S, Sbp, Signature, Split
from jobflow.graph.ir import Node, Physical, Value
from jobflow.graph.rewrite import Rewriter, consumers
from jobflow.ops.axes import Reshape
from jobflow.ops.source import Input
from jobflow.ops.update import Updated
from jobflow.plan.plan import Slot
from jobflow.plan.storage import is_common


def keep_weights(physical: Physical, ranks: tuple[int, ...], slots: Mapping[str, Slot], io_buffers: Collection[str]) -> Physical:
    """Have each of `ranks`, which share what is stored in common, multiply with its rows of weights; `io_buffers`: the keys of arguments there."""
    if len(ranks) < 2 or not io_buffers:
        return physical
    finding = _Finding(physical, ranks, slots, io_buffers)
    turned = {node: signature for node in physical.graph.nodes if (signature := finding.signature(node)) is not None}
    return _Turning(physical, turned).physically() if turned else physical


class _Finding:
    """Which products; the same answer on all ranks."""

    def __init__(self, physical: Physical, ranks: tuple[int, ...], slots: Mapping[str, Slot], io_buffers: Collection[str]) -> None:
        graph = physical.graph
        self.layouts, self.ranks, self.io_buffers = physical.layouts, ranks, io_buffers
        self.readers = consumers(graph)
        elementwise = {name for name, value in graph.updates.items() if isinstance(value.node.op, Updated) and value.node.op.flat}
        self.weights = {graph.reads[name] for name in elementwise if name in graph.reads and name in slots and is_common(slots[name].buffer)}

    def signature(self, node: Node) -> Signature | None:
        """How a product of samples and a weight is cut along the rows of the weight; None if it is no such product, or that does not pay."""
        at = next((i for i, value in enumerate(node.inputs) if value in self.weights), None)
        if at is None or len(node.inputs) != 2 or len(node.outputs) != 1:
            return None
        weight, samples, product = node.inputs[at], node.inputs[1 - at], node.outputs[0]
        alone = all(reader is node or reader.phase == "update" for reader in self.readers[weight])
        if not alone or not pays(product.type.nbytes, weight.type.nbytes):
            return None
        if not (self._splits(samples) and self._splits(product) and self._is_in_io_buffers(samples)):
            return None
        wanted = tuple(S(0) if i == at else B for i in range(2))
        signatures = node.op.rule(*(value.type for value in node.inputs)).signatures()
        return next((s for s in signatures if s.inputs == wanted and isinstance(s.outputs[0], Split) and s.legal(len(self.ranks))), None)

    def _splits(self, value: Value) -> bool:
        """True if each of the ranks has some of the samples."""
        layout = self.layouts[value]
        return isinstance(layout, Layout) and layout.placement.ranks == self.ranks and layout.sbp == (S(0),)

    def _is_in_io_buffers(self, value: Value) -> bool:
        """True if the samples lie in the shared I/O buffers as they are multiplied, so that `zero_copy_feeds` leaves out gathering them.

        Images do if no rank wants them in another memory order than the client's: where they are only reshaped.
        """
        while isinstance(value.node.op, Reshape) and self._splits(value):
            value = value.node.inputs[0]
        as_it_comes = len(value.shape) <= 2 or all(isinstance(reader.op, Reshape) for reader in self.readers[value])
        return isinstance(value.node.op, Input) and value.node.op.key in self.io_buffers and as_it_comes


class _Turning(Rewriter):
    def __init__(self, physical: Physical, turned: Mapping[Node, Signature]) -> None:
        super().__init__(physical.graph)
        self.physical, self.turned = physical, turned
        self.layouts: dict[Value, Layout | Local] = {}

    def physically(self) -> Physical:
        return Physical(self.run(), self.layouts)

    def take(self, node: Node, inputs: tuple[Value, ...]) -> tuple[Value, ...]:
        signature = self.turned.get(node)
        if signature is None:
            made = self.keep(node, inputs)
            self.layouts.update(zip(made, [self.physical.layouts[value] for value in node.outputs], strict=True))
            return made
        laid = tuple(self._laid(value, node, sbp) for value, sbp in zip(inputs, signature.inputs, strict=True))
        (product,) = self.keep(node, laid)
        self.layouts[product] = Layout(node.placement, signature.outputs)
        return (self._laid(product, node, S(0)),)

    def _laid(self, value: Value, node: Node, sbp: Sbp) -> Value:
        """The value as `node` reads or hands it on."""
        source, target = self.layouts[value], Layout(node.placement, (sbp,))
        assert isinstance(source, Layout)
        (laid,) = self.add(rerouted(value, Reroute(source, target), node.origin))
        self.layouts[laid] = target
        return laid
