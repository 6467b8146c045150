"""Tensors of a job's body that are needed before the job runs: computed here, from what is passed to it, by the ops' references.

    flip = flow.random.CoinFlip(8)              a function of the number of the run
    images = flow.image.flip(images, flip)      done on the host, before the run

They may depend on arguments, constants and the run counter, not on variables or on what readers give.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from jobflow.compiler.front.trace import RUN_COUNTER
from jobflow.compiler.rank.lower import local_box
from jobflow.core.errors import JobError, user_line
from jobflow.core.layout import Local
from jobflow.core.types import Array
from jobflow.graph.ir import Node, Value, nodes_behind
from jobflow.ops.layout_ops import ToLocal
from jobflow.ops.source import External, Input


@dataclass(frozen=True)
class HostValue:
    """A tensor of the body; `what` needs it, for messages."""

    value: Value
    what: str
    #: arguments that no caller passes
    fed: frozenset[str]

    def needed(self) -> HostValue:
        """This; JobError if it depends on more than can be known before a run."""
        if self.unknown:
            raise JobError(f"{self.what} at {user_line()}: it is done before the job runs, and {self.value.name} {self.unknown}")
        return self

    @cached_property
    def unknown(self) -> str:
        """Why it is not known before a run; empty if it is."""
        for node in self._nodes:
            op = node.op
            if isinstance(op, Input) and op.argument in self.fed:
                return f"is computed from what a reader gives ({op.argument}); pass that itself, or compute it outside the job"
            if isinstance(op, External) and not isinstance(op, Input):
                return f"depends on the variable {op.key}; pass what depends on arguments alone, or do it on tensors of the job"
            if not isinstance(op, ToLocal) and any(x.local != y.local for x in node.inputs for y in node.outputs):
                return f"comes from another view by {node.name}; compute it in the view in which it is used"
        return ""

    @cached_property
    def _nodes(self) -> list[Node]:
        """What makes it, each behind what it needs."""
        return nodes_behind(self.value.node)

    @property
    def devices(self) -> int:
        """How many devices have one of their own; 1 for a logical tensor."""
        return self.value.node.placement.size if self.value.local else 1

    @cached_property
    def arguments(self) -> frozenset[str]:
        """Those it depends on, without the run counter."""
        keys = {node.op.argument for node in self._nodes if isinstance(node.op, Input)}
        return frozenset(keys - {RUN_COUNTER})

    def array(self, run: int, given: Mapping[str, Any]) -> Array:
        """It in a run with these arguments; those of several devices one after another along axis 0."""
        known = {**given, RUN_COUNTER: np.array([run])}
        if not self.value.local:
            return self._on(0, known)
        return np.concatenate([self._on(device, known) for device in range(self.devices)])

    def _on(self, device: int, given: Mapping[str, Any]) -> Array:
        arrays: dict[Value, Array] = {}
        for node in self._nodes:
            if isinstance(node.op, Input):
                value = given[node.op.argument]
                arrays[node.outputs[0]] = np.asarray(value[device] if isinstance(value, list) else value)
            else:
                made = self._made(node, device, [arrays[x] for x in node.inputs])
                arrays |= dict(zip(node.outputs, made, strict=True))
        return arrays[self.value]

    def _made(self, node: Node, device: int, inputs: Sequence[Array]) -> list[Array]:
        if isinstance(node.op, ToLocal):
            whole = inputs[0]
            return [np.split(whole, self.devices)[device] if 0 in node.op.axes else whole]
        op = node.op
        if op.by_position and self.value.local:
            layout = Local(node.placement)
            boxes = [tuple(local_box(x.shape, layout, node.placement.ranks[device]) for x in values) for values in (node.inputs, node.outputs)]
            op = op.localize(*boxes)
        outputs = [np.empty(y.shape, y.type.dtype.numpy) for y in node.outputs]
        op.kernel(np, *inputs, *outputs)
        return outputs
