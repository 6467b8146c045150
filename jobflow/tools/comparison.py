"""Comparing the tensors of one device with those of several: tolerances, the largest difference, and the operation that caused it."""

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

#: units in the last place, of the largest number of a tensor, that are always allowed
ROUNDING = 64
#: and how many times what a change of the last bits of all arguments and variables did
AMPLIFIED = 32


@dataclass
class Seen:
    """A tensor after a step: its whole value, and what each rank holds of it; `value` is None for a variable."""

    value: Value | None
    layout: Layout | Local
    shards: dict[int, Array]
    whole: Array | None


def whole_of(value: Value, layout: Layout | Local, shards: dict[int, Array]) -> Array | None:
    """The logical value; None for what each device has of its own and cannot be put together, or one makes for all, straight into a variable."""
    if any(rank not in shards for rank in layout.placement.ranks):
        return None
    parts = [shards[rank] for rank in layout.placement.ranks]
    if isinstance(layout, Local):
        return np.concatenate(parts) if parts[0].ndim else None
    kinds = {sbp.reduce for sbp in layout.sbp if isinstance(sbp, Partial)}
    return layout.assemble(parts, value.tensor_type) if len(kinds) < 2 else None


@dataclass(frozen=True)
class Difference:
    """Where a tensor on N devices is not what it is on one."""

    step: int
    name: str
    worst: float
    allowed: float
    where: str
    node: Node | None = None
    layout: str = ""
    verdict: str = ""

    def __str__(self) -> str:
        made = "" if self.node is None else f'\n  made by   {self.node.op} at {self.node.where} ({self.node.phase}, layer "{self.node.name}")'
        lies = f"\n  lies      {self.layout}" if self.layout else ""
        verdict = f"\n  so        {self.verdict}" if self.verdict else ""
        return f"step {self.step}: {self.name} differs by {self.worst:.3g}, allowed {self.allowed:.3g}, {self.where}{made}{lies}{verdict}"


@dataclass
class Report:
    """What was compared, and the first difference of all."""

    job: str
    devices: int
    how: str
    steps: int = 0
    compared: int = 0
    #: tensors that only one program has, or that have no whole
    skipped: list[str] = field(default_factory=list)
    #: the largest difference as a part of what was allowed, and of which tensor
    closest: tuple[float, str] = (0.0, "nothing")
    difference: Difference | None = None

    @property
    def agrees(self) -> bool:
        return self.difference is None

    def __str__(self) -> str:
        head = f"{self.job} on {self.devices} devices{self.how}: {self.compared} tensors compared in {self.steps} steps"
        names = sorted(set(self.skipped))
        left = f"; not compared, for the programs differ or it has no whole: {', '.join(names[:6])}{' ...' if names[6:] else ''}" if names else ""
        if self.difference is not None:
            return f"{head}{left}\nDIFFERENT  {self.difference}"
        return f"{head}{left}\nequal      the largest difference is {self.closest[0]:.2g} of what is allowed, of {self.closest[1]}"


def allowed(whole: Array, nudged: Array) -> float:
    """By how much a tensor may differ."""
    if whole.dtype.kind not in "fV":
        return 0.0 if np.array_equal(whole, nudged) else float("inf")
    one, other = whole.astype(float), nudged.astype(float)
    finite = np.isfinite(one) & np.isfinite(other)
    scale = float(np.max(np.abs(one), initial=0.0, where=finite))
    moved = float(np.max(np.abs(one - other), initial=0.0, where=finite))
    return ROUNDING * epsilon(whole.dtype) * scale + AMPLIFIED * moved


def epsilon(dtype: Any) -> float:
    """The distance from 1 to the next number; of bfloat16 too, which NumPy does not know."""
    return float(np.finfo(dtype).eps) if np.dtype(dtype).kind == "f" else 2.0**-7


def apart(ours: Array, theirs: Array) -> tuple[float, tuple[int, ...]]:
    """The largest difference and where it is; infinite where one of them is not a number."""
    if ours.shape != theirs.shape:
        return float("inf"), ()
    one, other = ours.astype(float), theirs.astype(float)
    with np.errstate(invalid="ignore"):
        gaps = np.asarray(np.abs(one - other))  # a tensor without axes gives a number
    gaps[(one == other) | (np.isnan(one) & np.isnan(other))] = 0.0
    gaps[np.isnan(gaps)] = np.inf
    if not gaps.size:
        return 0.0, ()
    at = np.unravel_index(int(np.argmax(gaps)), gaps.shape)
    return float(gaps[at]), tuple(int(i) for i in at)


def pieces(seen: Seen, whole: Array) -> Iterator[tuple[str, Array, Array, tuple[int, ...]]]:
    """(which, ours, theirs, where theirs begins) for everything of a tensor that can be compared: each rank's part, or the sum of addends."""
    if isinstance(seen.layout, Local) or seen.layout.is_partial:
        if seen.whole is not None:
            yield "", seen.whole, whole, (0,) * whole.ndim
        return
    for rank, shard in sorted(seen.shards.items()):
        box = seen.layout.box(whole.shape, rank)
        yield f" on rank {rank}", shard, whole[box.slices] if whole.ndim else whole, box.start


def by_microbatch(seen: Mapping[str, Seen]) -> dict[str, list[Seen]]:
    """Tensors of single microbatches, `name#0`, `name#1` ..., by name."""
    found: dict[str, list[Seen]] = {}
    for name, one in seen.items():
        base, mark, number = name.partition("#")
        if mark:
            found.setdefault(base + number.lstrip("0123456789"), []).append(one)
    return found


def together(each: Sequence[Seen], theirs: Seen) -> Seen | None:
    """The tensor that those of microbatches make up: one after another, else all the same, else their sum; None if there are none."""
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


def compare(seen: Seen, whole: Array) -> tuple[float, str]:
    """The largest difference of any rank's part, and where it is."""
    worst = 0.0, ""
    for which, ours, theirs, start in pieces(seen, whole):
        gap, at = apart(ours, theirs)
        if gap > worst[0]:
            index = [i + first for i, first in zip(at, start, strict=True)] if at else []
            worst = gap, f"at {index}{which}: {ours[at]} instead of {theirs[at]}" if ours.shape == theirs.shape else f"shape {ours.shape}{which}"
    return worst


def judged(seen: Seen, tensors: Mapping[str, Seen], limit: float) -> str:
    """Whether the op that made a tensor is wrong, given the inputs that it had."""
    assert seen.value is not None, "a variable is made by no op"
    node = seen.value.node
    inputs = [tensors[v.name].whole if v.name in tensors else None for v in node.inputs]
    if isinstance(node.op, External) or seen.whole is None or any(x is None for x in inputs):
        return ""
    outputs = [np.zeros(v.shape, v.dtype.numpy) for v in node.outputs]
    node.op.kernel(np, *inputs, *outputs)
    gap, _ = apart(seen.whole, outputs[seen.value.index])
    if gap > limit:
        lies = ", ".join(f"{v.name} {tensors[v.name].layout}" for v in node.inputs)
        made = f"from the inputs it had ({lies}) one device makes something else, by {gap:.3g}"
        return f"the op is wrong in this layout: {made}; see its rule and the boxing before it"
    return "the op is right for the inputs it had: each of them differs by no more than it may, together they make too much"
