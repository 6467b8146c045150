"""Tensors of a job that can be computed on the host before the job runs, by the reference kernels of ops.

    flip = flow.random.CoinFlip(8)              a function of the number of the run
    images = flow.image.flip(images, flip)      a host stage, evaluated before the run

These tensors depend only on arguments, constants and the run counter. `StagedBody.host_phase` handles tensors that depend on variables or
readers.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np

from jobflow.compiler.front.trace import RUN_COUNTER
from jobflow.compiler.rank.lower import local_box
from jobflow.core.dataclass import dataclass
from jobflow.core.layout import Box, Local
from jobflow.core.types import Array
from jobflow.graph.ir import Node, Value, nodes_behind
from jobflow.ops.layout_ops import ToLocal
from jobflow.ops.op import Op
from jobflow.ops.source import External, Input, Source


class MicrobatchRows(NamedTuple):
    """The rows of a microbatch of a run: its number, the number of microbatches, and the rows in each."""

    number: int
    of: int
    rows: int


@dataclass(frozen=True)
class HostValue:
    """A tensor of the job body with its computation on the host."""

    value: Value
    #: arguments that the data feed or a phase supplies instead of the caller
    fed: frozenset[str]

    @cached_property
    def known(self) -> bool:
        """True if the tensor can be computed before a run: it depends on no variable, reader or operation across devices."""
        return not any(self._waits(node) for node in self._nodes)

    def _waits(self, node: Node) -> bool:
        op = node.op
        if isinstance(op, External):
            return not isinstance(op, Input) or op.argument in self.fed
        return not isinstance(op, ToLocal) and any(x.local != y.local for x in node.inputs for y in node.outputs)

    @cached_property
    def _nodes(self) -> list[Node]:
        """The nodes that compute the tensor, in topological order."""
        return nodes_behind(self.value.node)

    @property
    def devices(self) -> int:
        """The number of devices, each with a separate tensor; 1 for a logical tensor."""
        return self.value.node.placement.size if self.value.local else 1

    @cached_property
    def arguments(self) -> frozenset[str]:
        """The arguments of the job that the tensor depends on, without the run counter."""
        keys = {node.op.argument for node in self._nodes if isinstance(node.op, Input)}
        return frozenset(keys - {RUN_COUNTER})

    def arrays(self, run: int, arguments: Mapping[str, Any], part: MicrobatchRows) -> list[Array]:
        """Compute the tensor for a microbatch of a run: one array per device, or a single array for a logical tensor."""
        known = {**arguments, RUN_COUNTER: np.array([run])}
        return [self._on(device, known, part) for device in range(self.devices)]

    def _on(self, device: int, arguments: Mapping[str, Any], part: MicrobatchRows) -> Array:
        arrays: dict[Value, Array] = {}
        for node in self._nodes:
            if isinstance(node.op, Input):
                value = arguments[node.op.argument]
                whole, shape = np.asarray(value[device] if isinstance(value, list) else value), node.outputs[0].shape
                cut = part.of > 1 and whole.shape != shape  # an argument with the rows of all microbatches
                arrays[node.outputs[0]] = whole[part.number * shape[0] : (part.number + 1) * shape[0]] if cut else whole
            else:
                outputs = self._outputs(node, device, [arrays[x] for x in node.inputs], part)
                arrays |= dict(zip(node.outputs, outputs, strict=True))
        return arrays[self.value]

    def _outputs(self, node: Node, device: int, inputs: Sequence[Array], part: MicrobatchRows) -> list[Array]:
        if isinstance(node.op, ToLocal):
            whole = inputs[0]
            return [np.split(whole, self.devices)[device] if 0 in node.op.axes else whole]
        op = node.op
        if op.by_position and part.of > 1 and node.outputs[0].shape:
            op = self._in_microbatch(node, part)
        if op.by_position and self.value.local:
            layout = Local(node.placement)
            boxes = [tuple(local_box(x.shape, layout, node.placement.ranks[device]) for x in values) for values in (node.inputs, node.outputs)]
            op = op.localize(*boxes)
        outputs = [np.empty(y.shape, y.tensor_type.dtype.numpy) for y in node.outputs]
        op.kernel(np, *inputs, *outputs)
        return outputs

    def _in_microbatch(self, node: Node, part: MicrobatchRows) -> Op:
        """Return the op restricted to the microbatch, in the same way as `compiler.front.microbatch` splits it in the job.

        An output with one row per sample is restricted to the rows of the microbatch.
        """
        length, *rest = node.outputs[0].shape
        times, left = divmod(length * self.devices, part.rows)
        by_row = not left and (times == 1 or not isinstance(node.op, Source))
        first = part.number * (part.rows * times if by_row else length)
        whole = length if by_row else part.of * length
        return node.op.localize((), (Box(((first, first + length), *((0, n) for n in rest)), (whole, *rest)),))
