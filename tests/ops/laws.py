"""The laws of every op, as functions of one sample; each raises AssertionError if the law is broken.

kernel_fills        the kernel writes every element of outputs of the inferred type and depends only on its inputs
shards_agree        for every legal signature, the gathered results of kernels on shards equal the whole result
grids_agree         the same on meshes of two dimensions, with pairs of signatures
gradient_is_right   the op's gradient equals the central difference, and so does the second gradient
expression_is_kernel  the expression of an op equals its kernel to the last bit, also in half precision
bind_agrees         the bound calls of every tier equal the kernel, for any memory order, in float32 and float64
overwriting_is_safe  an output may overwrite the inputs that the op names
places_are_right    inputs copied into their views of the output form the output
view_is_right       the view of a view op has the same values and memory
op_is_a_value       pickling, hashing, comparison and repr
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
    """Return all op classes of the families, except for base classes and those that the executor provides."""
    return [cls for cls in all_ops() if cls.__module__.startswith(("jobflow.ops.", "jobflow.kernels.cpu.")) and not getattr(cls, "external", False)]


def generator(sample: Sample) -> np.random.Generator:
    """Return a random generator that depends on the sample only."""
    return np.random.default_rng(zlib.crc32(str(sample).encode()))


# Immediate execution ------------------------------------------------------------------------------------------------


@dataclass(eq=False)
class Result(TensorOperators):
    """An array with the interface of a tensor."""

    array: Array

    @property
    def tensor_type(self) -> TensorType:  # type: ignore[override]
        return type_of(self.array)


class Immediate:
    """An interpreter that runs every op immediately."""

    def apply(self, op: Op, inputs: Sequence[Result], name: str | None) -> tuple[Result, ...]:
        return tuple(map(Result, run(op, [x.array for x in inputs])))


def empties(types: Sequence[TensorType], fill: float) -> list[Array]:
    """Return arrays of these types filled with `fill`, or with NaN for floats if `fill` is 0."""
    return [np.full(t.shape, np.nan if fill == 0 and t.dtype.is_float else fill, t.dtype.numpy) for t in types]


def run(op: Op, arrays: Sequence[Array], fill: float = 0) -> list[Array]:
    """Return the outputs of the kernel, written into arrays with other content."""
    outputs = empties(types_tuple(op.infer(*map(type_of, arrays))), fill)
    op.kernel(np, *arrays, *outputs)
    return outputs


# The laws -----------------------------------------------------------------------------------------------------------


def kernel_fills(sample: Sample) -> None:
    """Check that previous content of the outputs has no effect, and that the inputs do not change."""
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
    different = ours != theirs  # equal infinities have no difference
    worst = float(np.max(np.abs(ours[different].astype(float) - theirs[different]), initial=0.0))
    assert worst <= tolerance * scale, f"{what}: differs by {worst:.3g} (allowed {tolerance * scale:.3g})\n{ours}\n{theirs}"


def magnitude(*arrays: Array) -> float:
    """Return the largest absolute finite value in the arrays, at least 1."""
    floats = [np.abs(a[np.isfinite(a)]) for a in arrays if a.dtype.kind == "f"]
    return max([1.0, *(float(a.max(initial=0.0)) for a in floats)])


MESHES = ((1,), (2,), (3,), (4,))
GRIDS = ((2, 2), (3, 2))
#: number of pairs of signatures per grid; of more pairs, a random selection
PAIRS = 16
#: number of random directions per input
DIRECTIONS = 3


def shards_agree(sample: Sample) -> None:
    """Check every signature on meshes of one dimension with 1 to 4 ranks."""
    wholes = run(sample.op, sample.arrays)
    for mesh, signature in product(MESHES, signatures_of(sample)):
        if nests((signature,), mesh):
            check_shards(sample, mesh, (signature,), wholes)


def grids_agree(sample: Sample) -> None:
    """Check pairs of signatures on the dimensions of 2x2 and 3x2 meshes."""
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
    """Return True if the signatures are legal on the dimensions of a mesh; equal signatures split over the product of their sizes."""
    return all(s.legal(int(np.prod([n for other, n in zip(signatures, mesh, strict=True) if other == s]))) for s in signatures)


def check_shards(sample: Sample, mesh: tuple[int, ...], signatures: Sequence[Signature], wholes: Sequence[Array] = ()) -> None:
    """Check that the gathered results of all ranks equal the results of the whole inputs; `wholes` are these results, if known."""
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
    """Return the ranks' shards of an array, last mesh dimension fastest; summands of partial tensors are uneven and of either sign."""
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
    """Return n arrays whose reduction is `array`, none of them similar to it."""
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
    """Assemble the whole from the ranks' shards; check that copies are equal."""
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
    """Return the inputs that the gradient laws perturb; none for an op without a gradient."""
    floats = [i for i, a in enumerate(sample.arrays) if a.dtype.kind == "f"]
    chosen = floats if sample.differentiable is None else list(sample.differentiable)
    types = types_tuple(sample.op.infer(*map(type_of, sample.arrays)))
    return chosen if has_gradient(sample.op) and any(t.dtype.is_float for t in types) else []


def gradient_is_right(sample: Sample) -> None:
    """Check that `grad` returns sum_k c_k dy_k/dx_i by central differences, for random c; None stands for zeros."""
    chosen, random = chosen_inputs(sample), generator(sample)
    if not chosen:
        return
    outputs = run(sample.op, sample.arrays)
    cotangents = [random.normal(size=y.shape).astype(y.dtype) if y.dtype.kind == "f" else None for y in outputs]
    with scope.using(interpreter=Immediate()):
        tensors = [Result(a.copy()) for a in [*sample.arrays, *outputs]]
        grads = sample.op.grad(*tensors, *(None if c is None else Result(c) for c in cotangents))
    assert len(grads) == len(sample.arrays), f"{sample}: {len(grads)} gradients for {len(sample.arrays)} inputs"
    gradients = {i: None if grads[i] is None else grads[i].array for i in chosen}
    check_differences(sample, "gradient", lambda arrays: run(sample.op, arrays), sample.arrays, gradients, cotangents)


def second_gradient_is_right(sample: Sample) -> None:
    """Check the gradient of `grad` itself, with respect to the inputs and the output gradients."""
    chosen, random = chosen_inputs(sample), generator(sample)
    if not chosen:
        return
    inputs = len(sample.arrays)

    def first(*tensors: Any) -> list[Any]:
        results = apply(sample.op, *tensors[:inputs])
        outputs, output_gradients = results if isinstance(results, tuple) else (results,), iter(tensors[inputs:])
        grads = sample.op.grad(*tensors[:inputs], *outputs, *(next(output_gradients) if y.tensor_type.dtype.is_float else None for y in outputs))
        return [grads[i] for i in chosen if grads[i] is not None]

    def values(arrays: Sequence[Array]) -> list[Array]:
        with scope.using(interpreter=Immediate()):
            return [gradient.array for gradient in first(*map(Result, arrays))]

    seeds = [random.normal(size=y.shape).astype(y.dtype) for y in run(sample.op, sample.arrays) if y.dtype.kind == "f"]
    arrays = [*sample.arrays, *seeds]
    cotangents = [random.normal(size=gradient.shape).astype(gradient.dtype) for gradient in values(arrays)]
    with scope.using(interpreter=Immediate()):
        grads: Any = through(first, [Result(a) for a in arrays], [Result(c) for c in cotangents])
    gradients = {i: None if grads[i] is None else grads[i].array for i in (*chosen, *range(inputs, len(arrays)))}
    check_differences(sample, "second gradient", values, arrays, gradients, cotangents)


Function = Callable[[Sequence[Array]], Sequence[Array]]


def check_differences(
    sample: Sample, what: str, function: Function, arrays: Sequence[Array], gradients: Mapping[int, Array | None], cotangents: Sequence[Array | None]
) -> None:
    """Check the gradients, by input, of the function's outputs weighted by the cotangents; None stands for zeros.

    All elements are perturbed together, along some random directions.  If a direction differs, as it may near a kink, each element is perturbed alone
    and named.
    """
    random, slope, allowed = generator(sample), partial(difference, function, arrays, cotangents, sample.step), sample.tolerance
    for i, gradient in gradients.items():
        shape, ours = arrays[i].shape, np.zeros_like(arrays[i]) if gradient is None else gradient
        assert type_of(ours) == type_of(arrays[i]), f"{sample}: {what} {i} is {type_of(ours)}, the input {type_of(arrays[i])}"
        directions = [random.uniform(0.5, 1.5, shape) * random.choice([-1.0, 1.0], shape) for _ in range(DIRECTIONS if ours.size > DIRECTIONS else 0)]
        pairs = ((float(np.sum(ours * direction)), slope(i, direction)) for direction in directions)
        if directions and all(abs(mine - theirs) <= allowed * max(1.0, abs(theirs)) for mine, theirs in pairs):
            continue
        for at, alone in zip(np.ndindex(shape), np.eye(ours.size).reshape(ours.size, *shape), strict=True):
            theirs = slope(i, alone)
            near = abs(ours[at] - theirs) <= allowed * max(1.0, abs(theirs))
            assert near, f"{sample}: {what} of input {i} at {at} is {ours[at]}, by differences {theirs}"


def difference(function: Function, arrays: Sequence[Array], cotangents: Sequence[Array | None], step: float, which: int, direction: Array) -> float:
    """Return the central difference of the weighted outputs along a direction of one input."""
    ends = []
    for away in (step, -step):
        moved = [a.copy() for a in arrays]
        moved[which] += (away * direction).astype(moved[which].dtype)
        ends.append(sum(float(np.sum(c.astype(float) * y)) for c, y in zip(cotangents, function(moved), strict=True) if c is not None))
    return (ends[0] - ends[1]) / (2 * step)


class Bench:
    """A device for `bind`: the CPU, with scratch memory full of arbitrary values."""

    tag = "cpu"
    xp = np

    def scratch(self, shape: tuple[int, ...], dtype: Any) -> Array:
        return empties([TensorType(tuple(shape), dtype)], fill=0)[0]


#: by tier, the memory orders and element types of bound arrays; loops are compiled for each of them
BOUND = {
    "numpy": (ORDERS, (float64, float32)),
    "llvm": (((plain, plain), (strided, plain)), (float32,)),
    "reference": (((strided, strided),), (float64,)),
}


def bind_agrees(sample: Sample) -> None:
    """Check that the calls bound by each tier, run twice, equal the kernel."""
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
        others = orders[1 + k :: 2]  # each order in one of the types
        for order in (orders[0], *others):
            check_bind(sample, target, arrays, types, expected, order)


def check_bind(sample: Sample, target: Target, arrays: Sequence[Array], types: Sequence[TensorType], expected: Sequence[Array], order: Any) -> None:
    inner, outer = order
    what = f"{sample} bound for {target} to {inner.__name__} {[str(type_of(a)) for a in arrays]} and {outer.__name__} outputs"
    inputs = [inner(a.copy()) for a in arrays]
    outputs = [inputs[sample.op.alias[i]] if i in sample.op.alias else outer(a) for i, a in enumerate(empties(types, fill=0))]
    for a in inputs:  # calls must not depend on the values at their preparation
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
    """Check that kernel and bound calls return the same outputs if an output overwrites an input that the op names."""
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
    """Check that inputs copied into their views of the output form the output."""
    (output, *others) = run(sample.op, sample.arrays)
    places = sample.op.places(np.zeros_like(output), *map(type_of, sample.arrays))
    assert len(places) == len(sample.arrays), f"{sample}: {len(places)} places for {len(sample.arrays)} inputs"
    if others or not places or any(view is None for view in places):
        return
    for order in (plain, innermost, strided):
        y = order(np.full_like(output, 77))
        for view, a in zip(sample.op.places(y, *map(type_of, sample.arrays)), sample.arrays, strict=True):
            if view is None:
                return  # these strides allow no view
            view[...] = a
        assert np.array_equal(y, output), f"{sample}: inputs copied into their views of a {order.__name__} output are not the output"


def view_is_right(sample: Sample) -> None:
    """Check that the view of a view op shares the input's memory and equals the output of the kernel."""
    if not isinstance(sample.op, ViewOp):
        return
    (expected,) = run(sample.op, sample.arrays)
    for order in (plain, innermost, strided):
        x = order(sample.arrays[0])
        try:
            view = sample.op.view(x, *sample.arrays[1:])
        except ValueError:
            continue  # these strides, or this case of the op, allow no view
        assert np.array_equal(view, expected), f"{sample}: the view of a {order.__name__} array has other values than the kernel writes"
        assert not view.size or np.shares_memory(view, x), f"{sample}: the view of a {order.__name__} array is a copy"


def expression_is_kernel(sample: Sample) -> None:
    """Check the types of the sample, float32, and float16, which the kernel computes in float32 and rounds."""
    for kind in ("", "float32", "float16"):
        with np.errstate(over="ignore"):
            arrays = [a.astype(kind) if kind and a.dtype.kind == "f" else a for a in sample.arrays]
        types = [type_of(a) for a in arrays]
        expressions = sample.op.expression(*types)
        if expressions is None:
            return
        outputs = empties(types_tuple(sample.op.infer(*types)), 0)
        with np.errstate(all="ignore"):
            half.run(sample.op, arrays, outputs)
            values = evaluated(sample.op, expressions, arrays, outputs)
        for output, value, x in zip(outputs, values, expressions, strict=True):
            assert x.dtype is type_of(output).dtype, f"{sample}: the expression is of {x.dtype.name}, not {type_of(output).dtype.name}"
            assert np.array_equal(value, output, equal_nan=output.dtype.kind == "f"), (
                f"{sample} in {kind}: {expressions} gives\n{value}, the kernel\n{output}"
            )


def evaluated(op: Op, expressions: Sequence[Expression], arrays: Sequence[Array], outputs: Sequence[Array]) -> list[Array]:
    """Evaluate the expressions over the op's index space and return the outputs."""
    space = op.index_space(*map(type_of, arrays))
    if space is None:
        return [np.broadcast_to(np.asarray(v, y.dtype), y.shape) for v, y in zip(evaluate(expressions, arrays, np), outputs, strict=True)]
    values = evaluate(expressions, [space.read(k, a) for k, a in enumerate(arrays)], np, space.shape)
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
    """Check every law on every sample of an op class."""
    for sample in cls.samples():
        for law in LAWS:
            law(sample)
