"""Comparison of the programs that a mirrored job traces for devices with arguments of different lengths."""

from __future__ import annotations

from collections.abc import Sequence

from jobflow.compiler.layouts.box import Reroute
from jobflow.core.errors import JobError
from jobflow.graph.ir import Physical


def compare_devices(job: str, programs: Sequence[Physical]) -> None:
    """Raise JobError if devices with arguments of different lengths use different variables, results or exchanged tensors."""
    first = programs[0]
    for device, other in enumerate(programs):
        if other is first:
            continue
        ours, theirs = _compared(first), _compared(other)
        word = next((word for word in ours if ours[word] != theirs[word]), None)
        if word is not None:
            here, there = ([x for x in a if x not in b] or a for a, b in ((ours[word], theirs[word]), (theirs[word], ours[word])))
            raise JobError(
                f"job {job}: the devices' arguments have different lengths, {list(first.graph.rows)}, and for these the body records different "
                f"{word}: {', '.join(here) or 'none'} on device 0, {', '.join(there) or 'none'} on device {device}; use the same modules and "
                f"variables for every length, or pass arrays of one length"
            )


def _compared(program: Physical) -> dict[str, list[str]]:
    """Return the properties of a program that must be equal on all devices."""
    graph = program.graph
    sent = [f"{value.tensor_type} ({node.op.name}, {node.where})" for node in graph.nodes if isinstance(node.op, Reroute) for value in node.outputs]
    outputs = [f"{value.dtype}[{value.tensor_type.ndim} axes]" for value in graph.outputs]
    return {"variables": sorted(graph.variables), "results": outputs, "communication": sent}
