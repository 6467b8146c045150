"""Samples of classes on GPUs: a radix sort of the classes of each range by their random numbers, without a wait of the host.

The random number of a class has 53 bits.  The classes are sorted by the upper 32 bits, and then a thread per run of equal upper bits sorts the run by
the lower 21 bits.  The key of a label is 0 and the keys of other classes are at least 1, so labels are first, in ascending order.

    keys      5 0 1 5 0     the upper bits of the random number of each class of a range; classes 1 and 4 are labels
    order     1 4 2 0 3     the classes sorted by their keys; `order_ties` exchanges 0 and 3 if the lower bits of class 3 are smaller
    indices   3 0 2 -1 1    the index of each class among four samples
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from jobflow.core.dataclass import dataclass
from jobflow.core.layout import cut
from jobflow.core.types import Array, DType, dtype_of, int32, int64
from jobflow.expressions import language as f
from jobflow.expressions import philox
from jobflow.expressions.language import Expression
from jobflow.kernels.cuda import fused
from jobflow.kernels.cuda.fused import placeholders
from jobflow.kernels.cuda.kernel_text import THREADS
from jobflow.kernels.cuda.launches import refused_arrays
from jobflow.kernels.cuda.primitives import stored_type
from jobflow.kernels.cuda.segment_kernels import MOST_ENTRIES, Launch, Scratch, launcher, launches_of_order
from jobflow.kernels.registry import register
from jobflow.ops.op import Binder, Call, Op
from jobflow.ops.sampled_classes import SampleClasses

#: bits of a key
KEY = 32
#: the lower bits of a random number; the bit above them is set if the upper bits are not 0, because the keys of 0 and 1 are equal
LOWER = 21

#: C loops over the elements i of a launch, and the parameters with the numbers of elements
_COUNTS = {"label": "count", "sample": "samples", "class": "classes"}
_LOOP = "for (long long i = blockIdx.x * {threads}LL + threadIdx.x; i < {count}; i += gridDim.x * {threads}LL)"
_TEXT = """extern "C" __global__ void __launch_bounds__({threads}) mark_labels(
    const {label} *labels, int *keys, long long count, long long step, long long first, long long classes) {{
  {each_label} {{
    const long long k = (long long)labels[i * step] - first;
    if (k >= 0 && k < classes) keys[k] = 0;
  }}
}}

extern "C" __global__ void __launch_bounds__({threads}) order_ties(
    const int *keys, const int *lower, int *order, long long classes, long long samples) {{
  {each_sample} {{
    const int key = keys[i];
    if (key == 0 || (i > 0 && keys[i - 1] == key)) continue;
    for (long long k = i + 1; k < classes && keys[k] == key; ++k) {{
      const int one = order[k];
      long long place = k;
      for (; place > i && lower[order[place - 1]] > lower[one]; --place) order[place] = order[place - 1];
      order[place] = one;
    }}
  }}
}}

extern "C" __global__ void __launch_bounds__({threads}) write_samples(
    const int *order, long long *indices, {label} *sampled, long long step, long long class_0, long long classes, long long samples,
    long long begin, long long end, long long index_0, long long absent) {{
  {each_class} {{
    const bool is_here = i >= begin && i < end;
    indices[order[i]] = is_here ? index_0 + i : i < samples ? 0 : absent;
    if (is_here) sampled[(i - begin) * step] = ({label})(class_0 + order[i]);
  }}
}}

extern "C" __global__ void __launch_bounds__({threads}) map_labels(
    const {label} *labels, const long long *indices, {label} *mapped, long long count, long long step, long long step_mapped,
    long long first, long long classes) {{
  {each_label} {{
    const long long k = (long long)labels[i * step] - first;
    mapped[i * step_mapped] = k >= 0 && k < classes ? ({label})indices[k] : ({label})0;
  }}
}}
"""


@dataclass(frozen=True)
class ClassRange:
    """A range of classes [low, high) and the indices of its samples: `begin` to `end` are on this rank, out of those from `first`."""

    low: int
    high: int
    first: int
    begin: int
    end: int
    #: the index of a class of the range that is no sample
    absent: int


def ranges_of(op: SampleClasses) -> list[ClassRange]:
    """Return the ranges of classes with samples on this rank, in ascending order."""
    each = op.count // op.parts
    start, stop = (0, op.count) if op.box is None else op.box.spans[0]
    ranges = []
    for part, (low, high) in enumerate(cut(op.classes, op.parts)):
        first = part * each
        begin, end = max(start, first), min(stop, first + each)
        if begin < end:
            ranges.append(ClassRange(low, high, first, begin, end, -1 if start <= first < stop else 0))
    return ranges


def print_samples(label: DType) -> str:
    """Return the text of the kernels for labels of this type; the sort is a part of `segment_text`."""
    loops = {f"each_{name}": _LOOP.format(threads=THREADS, count=count) for name, count in _COUNTS.items()}
    return _TEXT.format(threads=THREADS, label=stored_type(label), **loops)


def keys_of(op: SampleClasses, counter: DType) -> tuple[Expression, Expression]:
    """Return the formulas of the keys and of the lower bits of all classes on this rank; the input is the run counter."""
    element, stream = f.index(-1) + ranges_of(op)[0].low, f.cast(f.number(0, counter), int64)
    upper, lower = (f.philox(element, stream, philox.key_of(op.seed, op.key), plane) for plane in range(2))
    above = f.where(f.equal(upper, 0), f.constant(0, int64), 1 << LOWER)
    return f.cast(f.maximum(upper, 1), int32), f.cast(f.bitwise_or(f.right_shift(lower, 32 - LOWER), above), int32)


def launches_of_samples(op: SampleClasses, launch: Launch, scratch: Scratch, keys: Array, lower: Array, operands: Sequence[Array]) -> list[Call]:
    """Return the launches after the computation of `keys` and `lower`, which they overwrite; the operands are labels, mapped and sampled."""
    labels, mapped, sampled = operands
    text, parts = print_samples(dtype_of(labels.dtype)), ranges_of(op)
    base, classes, each = parts[0].low, parts[-1].high - parts[0].low, op.count // op.parts
    step, step_mapped, step_sampled = (np.int64(a.strides[0] // a.itemsize) for a in operands)
    count, indices = np.int64(labels.size), scratch((classes,), int64)
    blocks = -(-int(labels.size) // THREADS)
    calls = [launch(text, "mark_labels", blocks, (labels, keys, count, step, np.int64(base), np.int64(classes)))]
    for part in parts:
        of = slice(part.low - base, part.high - base)
        size, here = part.high - part.low, part.begin - parts[0].begin
        sort, sorted_keys, order = launches_of_order(launch, scratch, keys[of], KEY)
        sizes = (np.int64(size), np.int64(each))
        samples = (part.begin - part.first, part.end - part.first, part.first, part.absent)
        calls += sort
        calls.append(launch(text, "order_ties", -(-each // THREADS), (sorted_keys, lower[of], order, *sizes)))
        arguments = (order, indices[of], sampled[here:], step_sampled, np.int64(part.low), *sizes, *map(np.int64, samples))
        calls.append(launch(text, "write_samples", -(-size // THREADS), arguments))
    calls.append(launch(text, "map_labels", blocks, (labels, indices, mapped, count, step, step_mapped, np.int64(base), np.int64(classes))))
    return calls


@dataclass(frozen=True)
class SampledClasses:
    """An implementation by a sort of the classes of each range."""

    name: str = "sorted classes"

    def refuses(self, op: Op, inputs: Sequence[Array], outputs: Sequence[Array]) -> str | None:
        assert isinstance(op, SampleClasses)
        why = refused_arrays([*inputs, *outputs])
        if why is None and ranges_of(op)[-1].high - ranges_of(op)[0].low >= MOST_ENTRIES:
            why = f"{op.classes} classes exceed 32-bit indices"
        return why

    def bind(self, op: Op, device: Binder, inputs: Sequence[Array], outputs: Sequence[Array]) -> list[Call]:
        assert isinstance(op, SampleClasses)
        labels, counter = inputs
        parts, index = ranges_of(op), int(outputs[0].device.id)
        keys, lower = (device.scratch((parts[-1].high - parts[0].low,), int32) for _ in range(2))
        formulas, number = keys_of(op, dtype_of(counter.dtype)), placeholders([counter])[0].reshape(())
        computed = fused.bind(device, index, formulas, [number], placeholders([keys, lower]), arrays=(counter, keys, lower))
        return [*computed, *launches_of_samples(op, launcher(index), device.scratch, keys, lower, (labels, *outputs))]


register(SampleClasses, "cuda", "nvrtc", SampledClasses())
