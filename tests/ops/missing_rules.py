"""Signatures that would be right and that no rule declares, found by trying all of them on the samples of every op.

A signature is tried with uneven pieces and addends of either sign, on two and on three ranks, and counts if it holds each time.
Left out are those that say no more than others: an output that is whole on every rank may also be called P(max), and an axis of
fewer elements than ranks may always be called split.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import product

import laws
import numpy as np

from jobflow.core.layout import MAX, MIN, SUM, B, Partial, S, Sbp, Signature
from jobflow.core.types import Array, TensorType, type_of
from jobflow.ops.op import Op, Sample

RANKS = (2, 3)
#: combinations of the inputs' marks that are tried for a sample, at most
TRIALS = 400
SAMPLES = 3
#: of one op
SHOWN = 8
#: updates run where their variables lie, and changes of layout have no rules of their own
UNTRIED = ("jobflow.ops.update", "jobflow.ops.optimizer_updates", "jobflow.ops.layout_ops", "jobflow.ops.parts", "jobflow.kernels.cpu.product_ops")


def marks(type: TensorType, extremes: bool) -> list[Sbp]:
    """What an input may be: B, S of axes that are long enough, and addends of what can be added."""
    split: list[Sbp] = [S(axis) for axis, n in enumerate(type.shape) if n >= max(RANKS)]
    partial: list[Sbp] = [Partial(SUM)] if type.dtype.is_float or type.dtype.is_integer else []
    if partial and extremes:
        partial += [Partial(MAX), Partial(MIN)]
    return [B, *split, *partial]


def combinations(types: Sequence[TensorType]) -> list[tuple[Sbp, ...]]:
    each = [marks(t, True) for t in types]
    if math.prod(map(len, each)) > TRIALS:
        each = [marks(t, False) for t in types]
    if math.prod(map(len, each)) <= TRIALS:
        return list(product(*each))
    # of many inputs: those in which all that are not whole are of one kind
    kinds = list(dict.fromkeys(mark for row in each for mark in row if mark != B))
    found = [row for kind in kinds for row in product(*([B, kind] if kind in options else [B] for options in each))]
    return list(dict.fromkeys(found))[:TRIALS]


def holds(sample: Sample, signature: Signature, n: int) -> bool:
    try:
        laws.check_shards(sample, (n,), (signature,))
    except Exception:  # noqa: BLE001 - a wrong signature may fail in any way
        return False
    return True


def output_marks(whole: Array) -> list[Sbp]:
    """What an output may be, the mark that says most first."""
    partial = [Partial(reduce) for reduce in (SUM, MAX, MIN)] if whole.dtype.kind != "b" else []
    return [B, *(S(axis) for axis, n in enumerate(whole.shape) if n >= max(RANKS)), *partial]


def right_outputs(sample: Sample, inputs: tuple[Sbp, ...], wholes: Sequence[Array]) -> tuple[Sbp, ...] | None:
    """Marks of the outputs that hold for these marks of the inputs; None if there are none."""
    if type(sample.op).localize is Op.localize:
        likely = seen_outputs(sample, inputs, wholes)
        candidates = [] if likely is None else [likely]
    else:
        candidates = list(product(*map(output_marks, wholes)))
    return next((outputs for outputs in candidates if all(holds(sample, Signature(inputs, outputs), n) for n in RANKS)), None)


def seen_outputs(sample: Sample, inputs: tuple[Sbp, ...], wholes: Sequence[Array]) -> tuple[Sbp, ...] | None:
    """The marks that the outputs of two ranks have, for an op that is the same on all of them."""
    random, mesh = laws.generator(sample), (2,)
    parts = [laws.scatter(a, (sbp,), mesh, random) for a, sbp in zip(sample.arrays, inputs, strict=True)]
    try:
        results = [laws.run(sample.op, [part[rank] for part in parts]) for rank in range(2)]
    except Exception:  # noqa: BLE001 - operands that do not fit may fail in any way
        return None
    found = [next((m for m in output_marks(w) if gives(m, [r[i] for r in results], w)), None) for i, w in enumerate(wholes)]
    return None if None in found else tuple(m for m in found if m is not None)


def gives(mark: Sbp, shards: Sequence[Array], whole: Array) -> bool:
    """Whether shards that lie so are the whole."""
    scale = laws.magnitude(whole, *shards) * 1e-9
    try:
        laws.close(laws.gather(shards, (mark,), (2,), whole.shape, scale, ""), whole, 1.0, scale, "")
    except (AssertionError, ValueError):
        return False
    return True


def missing(sample: Sample) -> list[Signature]:
    """Right and undeclared, for one sample."""
    op, types = sample.op, [type_of(a) for a in sample.arrays]
    wholes = laws.run(op, sample.arrays)
    if any(not w.size or (w.dtype.kind in "fiu" and not w.any()) for w in wholes):
        return []  # of zeros everything is true
    declared = {s.inputs for s in op.rule(*types).signatures()}
    found = []
    with np.errstate(all="ignore"):
        for inputs in combinations(types):
            outputs = right_outputs(sample, inputs, wholes) if inputs not in declared else None
            if outputs is not None:
                found.append(Signature(inputs, outputs))
    return found


def table() -> str:
    """One row per op with missing signatures; right on some samples only are those that depend on attributes, or on the numbers themselves."""
    rows = []
    for cls in laws.concrete_ops():
        if cls.__module__ in UNTRIED:
            continue
        samples = list(cls.samples())[:SAMPLES]
        counts: dict[str, int] = {}
        for sample in samples:
            for signature in missing(sample):
                counts[str(signature)] = counts.get(str(signature), 0) + 1
        always = sorted(text for text, count in counts.items() if count == len(samples))
        if counts:
            listed = "; ".join(f"`{text}`" for text in always[:SHOWN]) + (" ..." if len(always) > SHOWN else "")
            rows.append(f"| {cls.__name__} | {listed or '-'} | {len(counts) - len(always) or '-'} |")
    return "\n".join(["| op | right on all samples that were tried | right on some |", "|---|---|---|", *rows])


if __name__ == "__main__":
    print(table())
