"""Ordered program -> the same program, in which each reader of a value widened from half precision has a separate cast.

    r = relu_grad(y, dy); w = float32(r)                              r = relu_grad(y, dy); w1 = float32(r); sums(w1)
    sums(w); gradient(w)               stores w in 32 bits            w2 = float32(r); gradient(w2)            stores r in 16 bits

A region then stores the half-precision value for a later region, which widens it in registers.  The pass runs for GPUs, whose regions are limited by
the bytes that they move.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from jobflow.compiler.rank.joined_space import fits_in_loop
from jobflow.compiler.rank.local import Collect, LocalInstruction, LocalValue
from jobflow.compiler.rank.order import Ordered
from jobflow.core.types import float32
from jobflow.ops.op import Op
from jobflow.ops.scalar import Cast


def split_casts(ordered: Ordered) -> Ordered:
    """Give each reader that a region may contain its own cast, if the readers are instructions of the body."""
    program = ordered.program
    if program.target.kind != "cuda":
        return ordered
    fixed = {value for _, value in program.fetches} | set(program.results) | set(program.updates.values())
    fixed.update(value for step in ordered.epilogue for value in step.inputs)
    fixed.update(value for step in ordered.body for value in _updated_in_place(step))
    readers: dict[LocalValue, int] = {}
    for step in ordered.body:
        for value in dict.fromkeys(step.inputs):
            readers[value] = readers.get(value, 0) + 1 if fits_in_loop(step, "cuda") else 1 << 30
    casts: dict[LocalValue, LocalInstruction] = {}
    body: list[LocalInstruction] = []
    for step in ordered.body:
        own = {value: LocalValue(value.type, f"{value.name}:{len(body)}") for value in step.inputs if value in casts}
        body += [replace(casts[value], outputs=(copy,), phase=step.phase, microbatch=step.microbatch) for value, copy in own.items()]
        if widens(step) and fixed.isdisjoint((*step.inputs, *step.outputs)) and 1 < readers.get(step.outputs[0], 0) < 1 << 30:
            casts[step.outputs[0]] = step
        else:
            body.append(replace(step, inputs=tuple(own.get(value, value) for value in step.inputs)) if own else step)
    return replace(ordered, body=tuple(body)) if casts else ordered


def widens(step: LocalInstruction) -> bool:
    """Return True for a cast from half precision to float32."""
    return isinstance(step.action, Cast) and step.inputs[0].type.dtype.is_half and step.outputs[0].type.dtype is float32


def _updated_in_place(step: LocalInstruction) -> Iterator[LocalValue]:
    """Yield the inputs whose memory the instruction overwrites."""
    if isinstance(step.action, Op):
        yield from (step.inputs[i] for i in step.action.alias.values())
    elif isinstance(step.action, Collect) and step.action.in_place:
        yield from step.inputs
