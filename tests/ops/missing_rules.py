"""A search for correct signatures without a rule: all combinations are tried on the samples of every op.

A signature is tried on two and on three ranks, with uneven shards and summands of either sign.  It counts if it is correct each time.
Redundant signatures are omitted: a whole output may also be called P(max), and an axis with fewer elements than ranks may always be called split.
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
#: maximum number of combinations of the inputs' layouts per sample
TRIALS = 400
SAMPLES = 3
#: number of signatures per op in the table
SHOWN = 8
#: updates have the layout of their variables, and changes of layout have no rules
UNTRIED = ("jobflow.ops.update", "jobflow.ops.optimizer_updates", "jobflow.ops.layout_ops", "jobflow.ops.parts", "jobflow.kernels.cpu.product_ops")


def marks(type: TensorType, extremes: bool) -> list[Sbp]:
    """Return the layouts of an input: B, S of sufficiently long axes, and P for types with addition."""
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
    # for many inputs: the combinations with one layout besides B
    kinds = list(dict.fromkeys(mark for row in each for mark in row if mark != B))
    rows = [row for kind in kinds for row in product(*([B, kind] if kind in options else [B] for options in each))]
    return list(dict.fromkeys(rows))[:TRIALS]


def holds(sample: Sample, signature: Signature, n: int) -> bool:
    try:
        laws.check_shards(sample, (n,), (signature,))
    except Exception:  # noqa: BLE001 - a wrong signature may fail in any way
        return False
    return True


def output_marks(whole: Array) -> list[Sbp]:
    """Return the layouts of an output, the most specific one first."""
    partial = [Partial(reduce) for reduce in (SUM, MAX, MIN)] if whole.dtype.kind != "b" else []
    return [B, *(S(axis) for axis, n in enumerate(whole.shape) if n >= max(RANKS)), *partial]


def right_outputs(sample: Sample, inputs: tuple[Sbp, ...], wholes: Sequence[Array]) -> tuple[Sbp, ...] | None:
    """Return the correct layouts of the outputs for these layouts of the inputs, or None."""
    if type(sample.op).localize is Op.localize:
        likely = layouts_on_two_ranks(sample, inputs, wholes)
        candidates = [] if likely is None else [likely]
    else:
        candidates = list(product(*map(output_marks, wholes)))
    return next((outputs for outputs in candidates if all(holds(sample, Signature(inputs, outputs), n) for n in RANKS)), None)


def layouts_on_two_ranks(sample: Sample, inputs: tuple[Sbp, ...], wholes: Sequence[Array]) -> tuple[Sbp, ...] | None:
    """Return the layouts of the outputs on two ranks, for an op that is equal on all ranks."""
    random, mesh = laws.generator(sample), (2,)
    parts = [laws.scatter(a, (sbp,), mesh, random) for a, sbp in zip(sample.arrays, inputs, strict=True)]
    try:
        results = [laws.run(sample.op, [part[rank] for part in parts]) for rank in range(2)]
    except Exception:  # noqa: BLE001 - operands that do not fit may fail in any way
        return None
    layouts = [next((m for m in output_marks(w) if gives(m, [r[i] for r in results], w)), None) for i, w in enumerate(wholes)]
    return None if None in layouts else tuple(m for m in layouts if m is not None)


def gives(mark: Sbp, shards: Sequence[Array], whole: Array) -> bool:
    """Return True if shards in this layout form the whole."""
    scale = laws.magnitude(whole, *shards) * 1e-9
    try:
        laws.close(laws.gather(shards, (mark,), (2,), whole.shape, scale, ""), whole, 1.0, scale, "")
    except (AssertionError, ValueError):
        return False
    return True


def missing(sample: Sample) -> list[Signature]:
    """Return the correct signatures without a rule, for one sample."""
    op, types = sample.op, [type_of(a) for a in sample.arrays]
    wholes = laws.run(op, sample.arrays)
    if any(not w.size or (w.dtype.kind in "fiu" and not w.any()) for w in wholes):
        return []  # every signature is correct for zeros
    declared = {s.inputs for s in op.rule(*types).signatures()}
    signatures = []
    with np.errstate(all="ignore"):
        for inputs in combinations(types):
            outputs = right_outputs(sample, inputs, wholes) if inputs not in declared else None
            if outputs is not None:
                signatures.append(Signature(inputs, outputs))
    return signatures


def table() -> str:
    """Format one row per op with missing signatures.

    Signatures that are correct on some samples only depend on attributes or on values.
    """
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
