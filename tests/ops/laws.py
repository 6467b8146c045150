"""The laws that every op keeps, as functions of one sample; each raises AssertionError where it is broken.

kernel_fills        the kernel writes every element of outputs of the inferred type, and is a function of its inputs
shards_agree        on every legal signature: kernels on the ranks' shards, put together, give what the whole gives
grids_agree         the same on meshes of two dimensions, by pairs of signatures
gradient_is_right   the op's gradient is the central difference; so is the gradient of that (second_gradient_is_right)
expression_is_kernel what an op says that it computes is what its kernel does, to the last bit, also in half precision
bind_agrees         the bound calls of every tier do what the kernel does, for any memory order, in float32 and float64
overwriting_is_safe an output may be written over the inputs that the op names
places_are_right    inputs put where the op says they lie in its output are the output
view_is_right       a view op's view is the same numbers in the same memory
op_is_a_value       pickling, hashing, comparing, printing
"""

from __future__ import annotations

import importlib
import pickle
import pkgutil
import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import product
from typing import Any
from unittest import mock

import numpy as np
from memory_orders import ORDERS, innermost, plain, strided

import jobflow.ops
from jobflow import scope
from jobflow.core.errors import DtypeError
from jobflow.core.layout import Broadcast, Layout, Partial, Placement, Reduction, Sbp, Signature, Split, cut
from jobflow.core.types import DType, TensorType, float32, float64, type_of
from jobflow.engine.operators import TensorOperators
from jobflow.expressions.language import Expression
from jobflow.expressions.on_arrays import evaluate
from jobflow.kernels import compiled_loops, half, registry
from jobflow.kernels.cpu import product_ops as product_ops
from jobflow.kernels.target import CPU, Target, target_of
from jobflow.ops.derivative import through
from jobflow.ops.op import Op, Sample, ViewOp, all_ops, apply, types_tuple

Array = Any

for module in pkgutil.iter_modules(jobflow.ops.__path__):
    importlib.import_module(f"jobflow.ops.{module.name}")


def concrete_ops() -> list[type[Op]]:
    """Every op class of the families but those that only serve as a base, and those that the executor fills from outside."""
    return [cls for cls in all_ops() if cls.__module__.startswith(("jobflow.ops.", "jobflow.kernels.cpu.")) and not getattr(cls, "external", False)]


def generator(sample: Sample) -> np.random.Generator:
    """Random numbers that depend on the sample alone."""
    return np.random.default_rng(zlib.crc32(str(sample).encode()))


# Running ops at once ------------------------------------------------------------------------------------------------


@dataclass(eq=False)
class Result(TensorOperators):
    """An array that is a tensor."""

    array: Array

    @property
    def tensor_type(self) -> TensorType:  # type: ignore[override]
        return type_of(self.array)


class Immediate:
    """An interpreter that runs every op where it is called."""

    def apply(self, op: Op, inputs: Sequence[Result], name: str | None) -> tuple[Result, ...]:
        return tuple(map(Result, run(op, [x.array for x in inputs])))


def empties(types: Sequence[TensorType], fill: float) -> list[Array]:
    """Arrays of these types that hold `fill` everywhere (NaN in floats if it is 0)."""
    return [np.full(t.shape, np.nan if fill == 0 and t.dtype.is_float else fill, t.dtype.numpy) for t in types]


def run(op: Op, arrays: Sequence[Array], fill: float = 0) -> list[Array]:
    """The outputs of the kernel, written into arrays that held something else."""
    outputs = empties(types_tuple(op.infer(*map(type_of, arrays))), fill)
    op.kernel(np, *arrays, *outputs)
    return outputs


# The laws -----------------------------------------------------------------------------------------------------------


def kernel_fills(sample: Sample) -> None:
    """What the outputs held before makes no difference; the inputs are left as they were."""
    before = [a.copy() for a in sample.arrays]
    first, second = run(sample.op, sample.arrays), run(sample.op, sample.arrays, fill=1)
    for a, b in zip(first, second, strict=True):
        assert np.array_equal(a, b, equal_nan=a.dtype.kind == "f"), f"{sample}: the kernel leaves elements of its output unwritten"
    for a, b in zip(before, sample.arrays, strict=True):
        assert np.array_equal(a, b, equal_nan=a.dtype.kind == "f"), f"{sample}: the kernel writes into an input"


def close(ours: Array, theirs: Array, tolerance: float, scale: float, what: str) -> None:
    assert ours.shape == theirs.shape, f"{what}: shape {ours.shape} != {theirs.shape}"
    assert ours.dtype == theirs.dtype, f"{what}: element type {ours.dtype} != {theirs.dtype}"
    if ours.dtype.kind != "f":
        assert np.array_equal(ours, theirs), f"{what}: {ours.tolist()} != {theirs.tolist()}"
        return
    apart = ours != theirs  # equal infinities have no difference
    worst = float(np.max(np.abs(ours[apart].astype(float) - theirs[apart]), initial=0.0))
    assert worst <= tolerance * scale, f"{what}: differs by {worst:.3g} (allowed {tolerance * scale:.3g})\n{ours}\n{theirs}"


def magnitude(*arrays: Array) -> float:
    """The largest finite number in the arrays, at least 1."""
    floats = [np.abs(a[np.isfinite(a)]) for a in arrays if a.dtype.kind == "f"]
    return max([1.0, *(float(a.max(initial=0.0)) for a in floats)])


MESHES = ((1,), (2,), (3,), (4,))
GRIDS = ((2, 2), (3, 2))
#: pairs of signatures that are tried on each grid; of more, some chosen by chance
PAIRS = 16
#: along how many directions the elements of an input are moved
WAYS = 3


def shards_agree(sample: Sample) -> None:
    """Every signature along one mesh dimension of 1 to 4 ranks."""
    wholes = run(sample.op, sample.arrays)
    for mesh, signature in product(MESHES, signatures_of(sample)):
        if nests((signature,), mesh):
            check_shards(sample, mesh, (signature,), wholes)


def grids_agree(sample: Sample) -> None:
    """Every pair of signatures, one per dimension of a mesh of 2x2 and of 3x2 ranks."""
    random, wholes = generator(sample), run(sample.op, sample.arrays)
    for mesh in GRIDS:
        pairs = [pair for pair in product(signatures_of(sample), repeat=2) if nests(pair, mesh)]
        some = [pairs[i] for i in sorted(random.choice(len(pairs), PAIRS, replace=False))] if len(pairs) > PAIRS else pairs
        for pair in some:
            check_shards(sample, mesh, pair, wholes)


def signatures_of(sample: Sample) -> tuple[Signature, ...]:
    signatures = sample.op.rule(*(type_of(a) for a in sample.arrays)).signatures()
    assert signatures, f"{sample}: the rule has no signature"
    return signatures


def nests(signatures: Sequence[Signature], mesh: Sequence[int]) -> bool:
    """Whether the signatures may be used on the dimensions of a mesh: dimensions that cut one way cut as one of all their ranks."""
    return all(s.legal(int(np.prod([n for other, n in zip(signatures, mesh, strict=True) if other == s]))) for s in signatures)


def check_shards(sample: Sample, mesh: tuple[int, ...], signatures: Sequence[Signature], wholes: Sequence[Array] = ()) -> None:
    """What ranks compute of their parts is, gathered, what the op computes of the whole inputs: `wholes`, if that is known."""
    op, random = sample.op, generator(sample)
    what = f"{sample} on {'x'.join(map(str, mesh))} ranks by {' then '.join(map(str, signatures))}"
    placement = Placement("cpu", tuple(range(int(np.prod(mesh)))), mesh)
    types = [type_of(a) for a in sample.arrays]
    out_types = types_tuple(op.infer(*types))
    for s in signatures:
        assert len(s.inputs) == len(types), f"{what}: {len(s.inputs)} marks for {len(types)} inputs"
        assert len(s.outputs) == len(out_types), f"{what}: {len(s.outputs)} marks for {len(out_types)} outputs"
    ins = [Layout(placement, tuple(s.inputs[i] for s in signatures)) for i in range(len(types))]
    outs = [Layout(placement, tuple(s.outputs[i] for s in signatures)) for i in range(len(out_types))]
    parts = [scatter(a, layout.sbp, mesh, random) for a, layout in zip(sample.arrays, ins, strict=True)]
    results: list[list[Array]] = []
    for rank in placement.ranks:
        arrays = [part[rank] for part in parts]
        in_boxes = tuple(layout.box(t.shape, rank) for layout, t in zip(ins, types, strict=True))
        out_boxes = tuple(layout.box(t.shape, rank) for layout, t in zip(outs, out_types, strict=True))
        local = op.localize(in_boxes, out_boxes)
        inferred = types_tuple(local.infer(*map(type_of, arrays)))
        expected = tuple(t.with_shape(box.shape) for t, box in zip(out_types, out_boxes, strict=True))
        assert inferred == expected, f"{what}: rank {rank} infers {list(map(str, inferred))}, its boxes are {list(map(str, expected))}"
        results.append(run(local, arrays))
    for i, (whole, layout) in enumerate(zip(wholes or run(op, sample.arrays), outs, strict=True)):
        shards = [r[i] for r in results]
        tolerance = {8: 1e-9, 4: 1e-4, 2: 1e-2}[whole.dtype.itemsize] if whole.dtype.kind == "f" else 0.0
        scale = magnitude(whole, *shards)
        ours = gather(shards, layout.sbp, mesh, whole.shape, tolerance * scale, what)
        close(ours, whole, tolerance, scale, what)


def scatter(array: Array, sbp: Sequence[Sbp], mesh: Sequence[int], random: np.random.Generator) -> list[Array]:
    """The ranks' parts of an array, the last mesh dimension fastest; addends of partial ones are uneven and of either sign."""
    if not sbp:
        return [array.copy()]
    first, n = sbp[0], mesh[0]
    if isinstance(first, Broadcast):
        return scatter(array, sbp[1:], mesh[1:], random) * n
    if isinstance(first, Split):
        lead = (slice(None),) * first.axis
        parts = [array[(*lead, slice(*span))] for span in cut(array.shape[first.axis], n)]
    else:
        parts = addends(array, first.reduce, n, random)
    return [shard for part in parts for shard in scatter(part, sbp[1:], mesh[1:], random)]


def addends(array: Array, reduce: Reduction, n: int, random: np.random.Generator) -> list[Array]:
    """n arrays whose reduction is `array`, none of them like it."""
    assert array.dtype.kind != "b", "a bool tensor cannot be partial"
    noise = random.normal(size=(n, *array.shape)) * 3 if array.dtype.kind == "f" else random.integers(-5, 6, (n, *array.shape))
    if reduce is Reduction.SUM:
        parts = noise.astype(array.dtype)
        parts[-1] = array - parts[:-1].sum(axis=0, dtype=array.dtype)
        return list(parts)
    away = np.abs(noise) if reduce is Reduction.MIN else -np.abs(noise)
    owner = random.integers(0, n, array.shape)
    return [np.where(owner == i, array, array + away[i]).astype(array.dtype) for i in range(n)]


def gather(shards: Sequence[Array], sbp: Sequence[Sbp], mesh: Sequence[int], shape: tuple[int, ...], tolerance: float, what: str) -> Array:
    """The whole from the ranks' parts; copies that are said to be equal must be."""
    if not sbp:
        (shard,) = shards
        assert shard.shape == shape, f"{what}: a shard has shape {shard.shape}, not {shape}"
        return shard
    first, n = sbp[0], mesh[0]
    each = len(shards) // n
    spans = cut(shape[first.axis], n) if isinstance(first, Split) else ()
    wholes = []
    for i in range(n):
        part = tuple(spans[i][1] - spans[i][0] if isinstance(first, Split) and k == first.axis else m for k, m in enumerate(shape))
        wholes.append(gather(shards[i * each : (i + 1) * each], sbp[1:], mesh[1:], part, tolerance, what))
    if isinstance(first, Split):
        return np.concatenate(wholes, axis=first.axis)
    if isinstance(first, Partial):
        total = wholes[0].copy()
        for other in wholes[1:]:
            first.reduce.ufunc(total, other, out=total)
        return total
    for other in wholes[1:]:
        close(other, wholes[0], 1.0, tolerance, f"{what}: the ranks' copies")
    return wholes[0]


def has_gradient(op: Op) -> bool:
    return type(op).grad is not Op.grad


def chosen_inputs(sample: Sample) -> list[int]:
    """Which inputs the gradient laws perturb; none for an op without a gradient."""
    floats = [i for i, a in enumerate(sample.arrays) if a.dtype.kind == "f"]
    chosen = floats if sample.differentiable is None else list(sample.differentiable)
    types = types_tuple(sample.op.infer(*map(type_of, sample.arrays)))
    return chosen if has_gradient(sample.op) and any(t.dtype.is_float for t in types) else []


def gradient_is_right(sample: Sample) -> None:
    """sum_k c_k dy_k/dx_i by central differences, for random c, is what `grad` gives; None stands for zeros."""
    chosen, random = chosen_inputs(sample), generator(sample)
    if not chosen:
        return
    outputs = run(sample.op, sample.arrays)
    cotangents = [random.normal(size=y.shape).astype(y.dtype) if y.dtype.kind == "f" else None for y in outputs]
    with scope.using(interpreter=Immediate()):
        tensors = [Result(a.copy()) for a in [*sample.arrays, *outputs]]
        grads = sample.op.grad(*tensors, *(None if c is None else Result(c) for c in cotangents))
    assert len(grads) == len(sample.arrays), f"{sample}: {len(grads)} gradients for {len(sample.arrays)} inputs"
    found = {i: None if grads[i] is None else grads[i].array for i in chosen}
    check_differences(sample, "gradient", lambda arrays: run(sample.op, arrays), sample.arrays, found, cotangents)


def second_gradient_is_right(sample: Sample) -> None:
    """The same for `grad` itself, as a function of the inputs and of the gradients of the outputs."""
    chosen, random = chosen_inputs(sample), generator(sample)
    if not chosen:
        return
    inputs = len(sample.arrays)

    def first(*tensors: Any) -> list[Any]:
        made = apply(sample.op, *tensors[:inputs])
        outputs, given = made if isinstance(made, tuple) else (made,), iter(tensors[inputs:])
        grads = sample.op.grad(*tensors[:inputs], *outputs, *(next(given) if y.tensor_type.dtype.is_float else None for y in outputs))
        return [grads[i] for i in chosen if grads[i] is not None]

    def values(arrays: Sequence[Array]) -> list[Array]:
        with scope.using(interpreter=Immediate()):
            return [gradient.array for gradient in first(*map(Result, arrays))]

    seeds = [random.normal(size=y.shape).astype(y.dtype) for y in run(sample.op, sample.arrays) if y.dtype.kind == "f"]
    arrays = [*sample.arrays, *seeds]
    cotangents = [random.normal(size=gradient.shape).astype(gradient.dtype) for gradient in values(arrays)]
    with scope.using(interpreter=Immediate()):
        grads: Any = through(first, [Result(a) for a in arrays], [Result(c) for c in cotangents])
    found = {i: None if grads[i] is None else grads[i].array for i in (*chosen, *range(inputs, len(arrays)))}
    check_differences(sample, "second gradient", values, arrays, found, cotangents)


Function = Callable[[Sequence[Array]], Sequence[Array]]


def check_differences(
    sample: Sample, what: str, function: Function, arrays: Sequence[Array], found: Mapping[int, Array | None], cotangents: Sequence[Array | None]
) -> None:
    """By input: what was found is the gradient of the function's outputs, weighed by the cotangents; None stands for zeros.

    All elements move at once, along some directions.  Where that disagrees, as it also may beside a kink, each element is moved alone and named.
    """
    random, slope, allowed = generator(sample), partial(difference, function, arrays, cotangents, sample.step), sample.tolerance
    for i, gradient in found.items():
        shape, ours = arrays[i].shape, np.zeros_like(arrays[i]) if gradient is None else gradient
        assert type_of(ours) == type_of(arrays[i]), f"{sample}: {what} {i} is {type_of(ours)}, the input {type_of(arrays[i])}"
        ways = [random.uniform(0.5, 1.5, shape) * random.choice([-1.0, 1.0], shape) for _ in range(WAYS if ours.size > WAYS else 0)]
        pairs = ((float(np.sum(ours * way)), slope(i, way)) for way in ways)
        if ways and all(abs(mine - theirs) <= allowed * max(1.0, abs(theirs)) for mine, theirs in pairs):
            continue
        for at, alone in zip(np.ndindex(shape), np.eye(ours.size).reshape(ours.size, *shape), strict=True):
            theirs = slope(i, alone)
            near = abs(ours[at] - theirs) <= allowed * max(1.0, abs(theirs))
            assert near, f"{sample}: {what} of input {i} at {at} is {ours[at]}, by differences {theirs}"


def difference(function: Function, arrays: Sequence[Array], cotangents: Sequence[Array | None], step: float, which: int, way: Array) -> float:
    """The central difference of the weighed outputs along a direction of one input."""
    ends = []
    for away in (step, -step):
        moved = [a.copy() for a in arrays]
        moved[which] += (away * way).astype(moved[which].dtype)
        ends.append(sum(float(np.sum(c.astype(float) * y)) for c, y in zip(cotangents, function(moved), strict=True) if c is not None))
    return (ends[0] - ends[1]) / (2 * step)


class Bench:
    """A device that `bind` may ask: the CPU, with scratch memory full of rubbish."""

    tag = "cpu"
    xp = np

    def scratch(self, shape: tuple[int, ...], dtype: Any) -> Array:
        return empties([TensorType(tuple(shape), dtype)], fill=0)[0]


#: by tier, how arrays lie for which ops are bound, and of which types; loops are compiled for each of them
BOUND = {
    "numpy": (ORDERS, (float64, float32)),
    "llvm": (((plain, plain), (strided, plain)), (float32,)),
    "reference": (((strided, strided),), (float64,)),
}


def bind_agrees(sample: Sample) -> None:
    """The calls that each tier binds, run twice, give what the kernel gives."""
    for tier, (orders, dtypes) in BOUND.items():
        with mock.patch.object(compiled_loops, "FEWEST", 1):
            bound_agrees(sample, target_of("cpu", tier), orders, dtypes)


def bound_agrees(sample: Sample, target: Target, orders: Sequence[Any], dtypes: Sequence[DType]) -> None:
    for k, dtype in enumerate(dtypes):
        arrays = [a.astype(dtype.numpy) if a.dtype.kind == "f" else a for a in sample.arrays]
        try:
            types = types_tuple(sample.op.infer(*map(type_of, arrays)))
        except DtypeError:
            assert dtype is float32, f"{sample}: infer refuses its own sample"
            continue  # an attribute of the op names float64
        expected = run(sample.op, arrays)
        others = orders[1 + k :: 2]  # all of them, in one type or the other
        for order in (orders[0], *others):
            check_bind(sample, target, arrays, types, expected, order)


def check_bind(sample: Sample, target: Target, arrays: Sequence[Array], types: Sequence[TensorType], expected: Sequence[Array], order: Any) -> None:
    inner, outer = order
    what = f"{sample} bound for {target} to {inner.__name__} {[str(type_of(a)) for a in arrays]} and {outer.__name__} outputs"
    inputs = [inner(a.copy()) for a in arrays]
    outputs = [inputs[sample.op.alias[i]] if i in sample.op.alias else outer(a) for i, a in enumerate(empties(types, fill=0))]
    for a in inputs:  # what is there when calls are prepared is not what they compute with
        a[...] = 0
    calls = registry.bind(sample.op, target, Bench(), inputs, outputs)
    for _ in range(2):
        for a, original in zip(inputs, arrays, strict=True):
            a[...] = original
        for function, arguments in calls:
            function(*arguments)
        for ours, theirs in zip(outputs, expected, strict=True):
            close(ours, theirs, {8: 1e-11, 4: 3e-5, 2: 1e-2}[ours.dtype.itemsize] if ours.dtype.kind == "f" else 0.0, magnitude(theirs), what)
        written = {sample.op.alias[i] for i in sample.op.alias}
        for i, (a, original) in enumerate(zip(inputs, arrays, strict=True)):
            assert i in written or np.array_equal(a, original, equal_nan=a.dtype.kind == "f"), f"{what}: input {i} was written"


def overwriting_is_safe(sample: Sample) -> None:
    """Written over an input that the op names, the outputs are the same, by the kernel and by the bound calls."""
    types = types_tuple(sample.op.infer(*map(type_of, sample.arrays)))
    expected = run(sample.op, sample.arrays)
    for index, sources in sample.op.in_place.items():
        for source, order in product(sources, (plain, strided)):
            if types[index] != type_of(sample.arrays[source]):
                continue
            for target in (CPU, target_of("cpu", "reference")):
                inputs = [order(a) for a in sample.arrays]
                outputs = [inputs[source] if i == index else a for i, a in enumerate(empties(types, fill=0))]
                for function, arguments in registry.bind(sample.op, target, Bench(), inputs, outputs):
                    function(*arguments)
                for ours, theirs in zip(outputs, expected, strict=True):
                    close(ours, theirs, 1e-11, magnitude(theirs), f"{sample}: output {index} written over input {source}")


def places_are_right(sample: Sample) -> None:
    """Inputs put into their places in the output are the output."""
    (output, *others) = run(sample.op, sample.arrays)
    places = sample.op.places(np.zeros_like(output), *map(type_of, sample.arrays))
    assert len(places) == len(sample.arrays), f"{sample}: {len(places)} places for {len(sample.arrays)} inputs"
    if others or not places or any(place is None for place in places):
        return
    for order in (plain, innermost, strided):
        y = order(np.full_like(output, 77))
        for place, a in zip(sample.op.places(y, *map(type_of, sample.arrays)), sample.arrays, strict=True):
            if place is None:
                return  # these strides do not allow it
            place[...] = a
        assert np.array_equal(y, output), f"{sample}: inputs put into their places in a {order.__name__} output are not the output"


def view_is_right(sample: Sample) -> None:
    """Where a view op gives a view, it is of the input's memory and holds what the kernel writes."""
    if not isinstance(sample.op, ViewOp):
        return
    (expected,) = run(sample.op, sample.arrays)
    for order in (plain, innermost, strided):
        x = order(sample.arrays[0])
        try:
            view = sample.op.view(x, *sample.arrays[1:])
        except ValueError:
            continue  # these strides do not allow it, or this case of the op does not
        assert np.array_equal(view, expected), f"{sample}: the view of a {order.__name__} array holds other numbers than the kernel writes"
        assert not view.size or np.shares_memory(view, x), f"{sample}: the view of a {order.__name__} array is a copy"


def expression_is_kernel(sample: Sample) -> None:
    """In the types of the sample, in float32 and in float16, in which the kernel computes in float32 and its results are rounded."""
    for kind in ("", "float32", "float16"):
        with np.errstate(over="ignore"):
            arrays = [a.astype(kind) if kind and a.dtype.kind == "f" else a for a in sample.arrays]
        types = [type_of(a) for a in arrays]
        found = sample.op.expression(*types)
        if found is None:
            return
        outputs = empties(types_tuple(sample.op.infer(*types)), 0)
        with np.errstate(all="ignore"):
            half.run(sample.op, arrays, outputs)
            values = evaluated(sample.op, found, arrays, outputs)
        for made, value, x in zip(outputs, values, found, strict=True):
            assert x.dtype is type_of(made).dtype, f"{sample}: the expression is of {x.dtype.name}, not {type_of(made).dtype.name}"
            assert np.array_equal(value, made, equal_nan=made.dtype.kind == "f"), f"{sample} in {kind}: {found} gives\n{value}, the kernel\n{made}"


def evaluated(op: Op, found: Sequence[Expression], arrays: Sequence[Array], outputs: Sequence[Array]) -> list[Array]:
    """The outputs as the expressions give them over the op's index space."""
    space = op.index_space(*map(type_of, arrays))
    if space is None:
        return [np.broadcast_to(np.asarray(v, y.dtype), y.shape) for v, y in zip(evaluate(found, arrays, np), outputs, strict=True)]
    values = evaluate(found, [space.read(k, a) for k, a in enumerate(arrays)], np, space.shape)
    written = [np.empty_like(y) for y in outputs]
    for k, (value, y) in enumerate(zip(values, written, strict=True), len(arrays)):
        space.write(k, value, y, np)
    return written


def op_is_a_value(sample: Sample) -> None:
    op = sample.op
    again = pickle.loads(pickle.dumps(op))
    assert again == op and type(again) is type(op), f"{op} changes when it is pickled"
    assert hash(again) == hash(op), f"{op} hashes differently after pickling"
    assert type(op).__name__ in repr(op), f"{op!r} does not name its class"


LAWS = (
    kernel_fills,
    shards_agree,
    grids_agree,
    gradient_is_right,
    second_gradient_is_right,
    expression_is_kernel,
    bind_agrees,
    overwriting_is_safe,
    places_are_right,
    view_is_right,
    op_is_a_value,
)


def keep_laws(cls: type[Op]) -> None:
    """Every law on every sample of an op class."""
    for sample in cls.samples():
        for law in LAWS:
            law(sample)
