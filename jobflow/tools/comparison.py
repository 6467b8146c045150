"""Comparison of tensors on one device and on several: tolerances, the largest difference, and its cause."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import field
from typing import Any

import numpy as np

from jobflow.core.dataclass import dataclass
from jobflow.core.layout import Layout, Local, Partial
from jobflow.core.types import Array
from jobflow.graph.ir import Node, Value
from jobflow.ops.source import External

#: tolerance in units in the last place of a tensor's largest number
ROUNDING = 64
#: additional tolerance, as a multiple of the effect of changing the last bits of all arguments and variables
AMPLIFIED = 32


@dataclass
class Seen:
    """A tensor after a step: the shard of each rank, and the whole tensor if it can be assembled.

    `value` is None for a variable.
    """

    value: Value | None
    layout: Layout | Local
    shards: dict[int, Array]
    whole: Array | None


def whole_of(value: Value, layout: Layout | Local, shards: dict[int, Array]) -> Array | None:
    """Assemble a tensor from its shards.

    Return None if ranks lack a shard, or if the tensor cannot be assembled, for example per-device scalars.
    """
    if any(rank not in shards for rank in layout.placement.ranks):
        return None
    parts = [shards[rank] for rank in layout.placement.ranks]
    if isinstance(layout, Local):
        return np.concatenate(parts) if parts[0].ndim else None
    kinds = {sbp.reduce for sbp in layout.sbp if isinstance(sbp, Partial)}
    return layout.assemble(parts, value.tensor_type) if len(kinds) < 2 else None


@dataclass(frozen=True)
class Difference:
    """A difference of one tensor between N devices and one device."""

    step: int
    name: str
    worst: float
    allowed: float
    where: str
    node: Node | None = None
    layout: str = ""
    verdict: str = ""

    def __str__(self) -> str:
        producer = "" if self.node is None else f'\n  op        {self.node.op} at {self.node.where} ({self.node.phase}, layer "{self.node.name}")'
        placed = f"\n  layout    {self.layout}" if self.layout else ""
        verdict = f"\n  cause     {self.verdict}" if self.verdict else ""
        return f"step {self.step}: {self.name} differs by {self.worst:.3g}, allowed {self.allowed:.3g}, {self.where}{producer}{placed}{verdict}"


@dataclass
class Report:
    """The result of a comparison: the number of compared tensors, and the first difference."""

    job: str
    devices: int
    how: str
    steps: int = 0
    compared: int = 0
    #: tensors that only one program has, or that cannot be assembled
    skipped: list[str] = field(default_factory=list)
    #: the largest ratio of difference to tolerance, and its tensor
    closest: tuple[float, str] = (0.0, "nothing")
    difference: Difference | None = None

    @property
    def agrees(self) -> bool:
        return self.difference is None

    def __str__(self) -> str:
        head = f"{self.job} on {self.devices} devices{self.how}: {self.compared} tensors compared in {self.steps} steps"
        names = sorted(set(self.skipped))
        left = f"; not compared, because only one program has them whole: {', '.join(names[:6])}{' ...' if names[6:] else ''}" if names else ""
        if self.difference is not None:
            return f"{head}{left}\nDIFFERENT  {self.difference}"
        return f"{head}{left}\nequal      the largest difference is {self.closest[0]:.2g} of its tolerance, in {self.closest[1]}"


def allowed(whole: Array, nudged: Array) -> float:
    """Return the tolerance of a tensor from its values (`whole`) and its values after a change of the last bits of all inputs (`nudged`).

    Types other than floats have the tolerance 0 if the two arrays are equal, else infinity.
    """
    if whole.dtype.kind not in "fV":
        return 0.0 if np.array_equal(whole, nudged) else float("inf")
    one, other = whole.astype(float), nudged.astype(float)
    finite = np.isfinite(one) & np.isfinite(other)
    scale = float(np.max(np.abs(one), initial=0.0, where=finite))
    moved = float(np.max(np.abs(one - other), initial=0.0, where=finite))
    return ROUNDING * epsilon(whole.dtype) * scale + AMPLIFIED * moved


def epsilon(dtype: Any) -> float:
    """Return the distance from 1 to the next number of a floating point type; NumPy's `finfo` lacks bfloat16."""
    return float(np.finfo(dtype).eps) if np.dtype(dtype).kind == "f" else 2.0**-7


def apart(ours: Array, theirs: Array) -> tuple[float, tuple[int, ...]]:
    """Return the largest difference of two arrays and its index; infinity for different shapes, or if only one value is NaN."""
    if ours.shape != theirs.shape:
        return float("inf"), ()
    one, other = ours.astype(float), theirs.astype(float)
    with np.errstate(invalid="ignore"):
        gaps = np.asarray(np.abs(one - other))  # NumPy returns a scalar for a tensor without axes
    gaps[(one == other) | (np.isnan(one) & np.isnan(other))] = 0.0
    gaps[np.isnan(gaps)] = np.inf
    if not gaps.size:
        return 0.0, ()
    at = np.unravel_index(int(np.argmax(gaps)), gaps.shape)
    return float(gaps[at]), tuple(int(i) for i in at)


def pieces(tensor: Seen, whole: Array) -> Iterator[tuple[str, Array, Array, tuple[int, ...]]]:
    """Yield (label, values, reference, offset of the reference) for each part to compare: each rank's shard, or the sum of partial values."""
    if isinstance(tensor.layout, Local) or tensor.layout.is_partial:
        if tensor.whole is not None:
            yield "", tensor.whole, whole, (0,) * whole.ndim
        return
    for rank, shard in sorted(tensor.shards.items()):
        box = tensor.layout.box(whole.shape, rank)
        yield f" on rank {rank}", shard, whole[box.slices] if whole.ndim else whole, box.start


def by_microbatch(tensors: Mapping[str, Seen]) -> dict[str, list[Seen]]:
    """Group the tensors of microbatches, which are called `name#0`, `name#1`, ..., by name."""
    groups: dict[str, list[Seen]] = {}
    for name, one in tensors.items():
        base, mark, number = name.partition("#")
        if mark:
            groups.setdefault(base + number.lstrip("0123456789"), []).append(one)
    return groups


def together(each: Sequence[Seen], theirs: Seen) -> Seen | None:
    """Combine the tensors of microbatches for a comparison with `theirs`: concatenate them, add them, or return the first if all are equal.

    Return None if a tensor is not assembled, or if no combination has the shape of `theirs`.
    """
    arrays = [one.whole for one in each if one.whole is not None]
    if not arrays or theirs.whole is None or len(arrays) < len(each):
        return None
    shape = theirs.whole.shape
    if shape and all(a.shape[1:] == shape[1:] and a.ndim == len(shape) for a in arrays) and sum(len(a) for a in arrays) == shape[0]:
        whole = np.concatenate(arrays)
    elif any(a.shape != shape for a in arrays):
        return None
    else:
        same = all(np.array_equal(a, arrays[0]) for a in arrays)
        whole = arrays[0] if same else np.sum(arrays, axis=0, dtype=arrays[0].dtype)
    first = each[0]
    return Seen(first.value, Local(first.layout.placement), {}, whole)


def compare(tensor: Seen, whole: Array) -> tuple[float, str]:
    """Return the largest difference of a tensor on any rank from the reference `whole`, and its location as text."""
    worst = 0.0, ""
    for which, ours, theirs, start in pieces(tensor, whole):
        gap, at = apart(ours, theirs)
        if gap > worst[0]:
            index = [i + first for i, first in zip(at, start, strict=True)] if at else []
            worst = gap, f"at {index}{which}: {ours[at]} instead of {theirs[at]}" if ours.shape == theirs.shape else f"shape {ours.shape}{which}"
    return worst


def judged(tensor: Seen, tensors: Mapping[str, Seen], limit: float) -> str:
    """State whether the operation of a tensor or its inputs cause a difference beyond `limit`; return "" if the operation cannot be repeated."""
    assert tensor.value is not None, "a variable has no op"
    node = tensor.value.node
    inputs = [tensors[v.name].whole if v.name in tensors else None for v in node.inputs]
    if isinstance(node.op, External) or tensor.whole is None or any(x is None for x in inputs):
        return ""
    outputs = [np.zeros(v.shape, v.dtype.numpy) for v in node.outputs]
    node.op.kernel(np, *inputs, *outputs)
    gap, _ = apart(tensor.whole, outputs[tensor.value.index])
    if gap > limit:
        placed = ", ".join(f"{v.name} {tensors[v.name].layout}" for v in node.inputs)
        difference = f"with the same inputs ({placed}), one device computes values that differ by {gap:.3g}"
        return f"the op is wrong in this layout: {difference}; see its rule and the boxing before it"
    return "the op is correct for its inputs: each input is within its tolerance, but their differences add up"
