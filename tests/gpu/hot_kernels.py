"""The printed kernels that take most of the time of GPT-2 124M and ResNet-50 in bfloat16, by family, for the table of their machine code.

The batch is 8 x 1,024 tokens, or 64 images.  Texts are printed for aligned, dense operands; no GPU is needed.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from jobflow.core.types import Array, DType, TensorType, bfloat16, bool_, contiguous_strides, float32, int64
from jobflow.expressions import language as f
from jobflow.expressions.language import Expression, element, replaced
from jobflow.kernels.cuda.fused import launched, prepared
from jobflow.kernels.cuda.moment_kernels import MomentsText
from jobflow.kernels.cuda.multi_tensor_kernels import launches
from jobflow.kernels.cuda.pooling_kernels import pooling_blocks, print_pooling
from jobflow.kernels.loop_operands import expression_of, views_in_space
from jobflow.kernels.registry import at
from jobflow.ops import activation, loss, norm, optimizer_updates, pool, reduce, scaled_update, shadow_update, softmax
from jobflow.ops.batch_norm import BatchMoments
from jobflow.ops.op import Op, types_tuple

TOKENS, WIDTH, WORDS, PARAMETERS = 8192, 768, 50304, 124_475_904
VOCABULARY = 50257
IMAGES = (64, 56, 56, 64)
WINDOW = ((3, 3), (2, 2), ((1, 1), (1, 1)))


@dataclass(frozen=True)
class HotKernel:
    """A printed kernel: family and name, its text, and the number of blocks and the threads of a block at its launch."""

    name: str
    text: str
    blocks: int
    threads: int

    @property
    def fingerprint(self) -> str:
        return hashlib.sha256(self.text.encode()).hexdigest()[:10]


def hot_kernels() -> Iterator[HotKernel]:
    yield from _elements()
    yield from _rows()
    yield from _columns()
    yield from _long_rows()
    yield from _pooling()
    yield from _moments()


def _elements() -> Iterator[HotKernel]:
    hidden, bias, residual = _bf16(TOKENS, 4 * WIDTH), _bf16(4 * WIDTH), _f32(TOKENS, WIDTH)
    x, y = element(0, bfloat16), element(1, bfloat16)
    yield from _of("elements: bias and GELU", _on_sum(activation.Gelu(), hidden)[:1], [hidden, bias], [hidden])
    yield from _of("elements: bias and GELU with slope", _on_sum(activation.Gelu(), hidden), [hidden, bias], [hidden, hidden])
    yield from _of("elements: product", [x * y], [hidden, hidden], [hidden])
    yield from _of("elements: residual", [element(0, float32) + f.cast(y, float32)], [residual, _bf16(TOKENS, WIDTH)], [residual])
    yield from _of("elements: cast to bfloat16", [f.cast(element(0, float32), bfloat16)], [residual], [_bf16(TOKENS, WIDTH)])
    yield from _of("elements: dropout", [f.where(element(1, bool_), x * 1.25, 0.0)], [hidden, _type(bool_, TOKENS, 4 * WIDTH)], [hidden])
    images, channels = _bf16(*IMAGES), _f32(IMAGES[-1])
    scaled = f.cast(x, float32) * element(1, float32) + element(2, float32)
    yield from _of("elements: scale, shift and ReLU", [f.cast(f.maximum(scaled, 0.0), bfloat16)], [images, channels, channels], [images])
    normalized = _normalized()
    added = [f.cast(f.maximum(normalized + f.cast(element(5, bfloat16), float32), 0.0), bfloat16)]
    plain = [f.cast(f.maximum(normalized, 0.0), bfloat16)]
    yield from _of("elements: batch norm and ReLU", plain, [images, *(channels,) * 4], [images])
    yield from _of("elements: batch norm, residual and ReLU", added, [images, *(channels,) * 4, images], [images])
    yield from _of("elements: add and ReLU", [f.maximum(x + y, 0.0)], [images, images], [images])
    yield from _several("elements: casts of several tensors", [f.cast(element(0, float32), bfloat16)], [_f32(768, 768)], [_bf16(768, 768)])
    flat, scalar = _f32(PARAMETERS), _f32(1)
    yield from _op("elements: Adam", optimizer_updates.AdamUpdate(weight_decay=0.1), flat, flat, flat, flat, scalar, _type(int64, 1))
    shadowed = shadow_update.ShadowUpdate(optimizer_updates.AdamUpdate(weight_decay=0.1))
    yield from _op("elements: Adam with shadow", shadowed, flat, flat, flat, _bf16(PARAMETERS), flat, scalar, _type(int64, 1))
    clipped = shadow_update.ShadowUpdate(scaled_update.ScaledUpdate(optimizer_updates.AdamUpdate(weight_decay=0.1)))
    yield from _op("elements: clipped Adam with shadow", clipped, flat, flat, flat, _bf16(PARAMETERS), flat, scalar, _type(int64, 1), scalar)
    yield from _op("elements: momentum", optimizer_updates.MomentumUpdate(beta=0.9), _f32(25_557_032), _f32(25_557_032), _f32(25_557_032), scalar)


def _normalized() -> Expression:
    """Return the normalization of images in half precision, as a region of a plan has it."""
    x, (mean, variance, gamma, beta) = f.cast(element(0, bfloat16), float32), (element(k, float32) for k in range(1, 5))
    return (x - mean) * (gamma / f.sqrt(variance + 1e-5)) + beta


def _rows() -> Iterator[HotKernel]:
    row, parameter = _f32(TOKENS, WIDTH), _f32(WIDTH)
    scores = _bf16(8 * 12 * 1024, 1024)
    yield from _op("rows: layer norm", norm.LayerNorm(1), row, parameter, parameter)
    rounded = [f.cast(y, bfloat16) if k == 0 else y for k, y in enumerate(_expressions(norm.LayerNorm(1), row, parameter, parameter))]
    yield from _of("rows: layer norm to bfloat16", rounded, [row, parameter, parameter], [_bf16(TOKENS, WIDTH), _f32(TOKENS, 1), _f32(TOKENS, 1)])
    yield from _op("rows: softmax", softmax.Softmax(1), scores)
    yield from _op("rows: softmax gradient", softmax.SoftmaxGrad(1), scores, scores)
    logits = _f32(TOKENS, WORDS)
    yield from _op("rows: softmax of logits", softmax.Softmax(1), logits)
    labels, statistic = _type(int64, TOKENS), _f32(TOKENS)
    yield from _padded("rows: cross entropy", loss.SparseSoftmaxCrossEntropy(), labels)
    yield from _padded("rows: cross entropy gradient", loss.SparseSoftmaxCrossEntropyGrad(), labels, statistic, statistic, statistic)


def _columns() -> Iterator[HotKernel]:
    row, parameter, statistic = _f32(TOKENS, WIDTH), _f32(WIDTH), _f32(TOKENS)
    yield from _op("columns: bias gradient", reduce.ReduceSum((0,)), _bf16(TOKENS, 4 * WIDTH))
    yield from _op("columns: bias gradient, 1,024 rows", reduce.ReduceSum((0,)), _bf16(1024, WIDTH))
    yield from _op("columns: bias gradient of the head", reduce.ReduceSum((0,)), _bf16(1024, WORDS))
    yield from _op("columns: layer norm gradient", norm.LayerNormGrad(1), row, row, parameter, statistic, statistic)
    images, channels = _bf16(*IMAGES), _f32(IMAGES[-1])
    x, mean = f.cast(element(0, bfloat16), float32), element(1, float32)
    sums = [f.column_sum(x - mean), f.column_sum((x - mean) * (x - mean))]
    yield from _of("columns: batch norm statistics", sums, [images, channels], [channels, channels])
    dy, image = element(0, bfloat16), f.cast(element(2, bfloat16), float32)
    masked = f.where(f.less(0.0, element(1, bfloat16)), dy, 0.0)
    wide, normal = f.cast(masked, float32), (image - element(3, float32)) * f.rsqrt(element(4, float32) + 1e-5)
    gradients = [masked, f.column_sum(wide * normal), f.column_sum(wide), f.column_sum(normal)]
    yield from _of("columns: batch norm and ReLU gradient", gradients, [images, images, images, channels, channels], [images, *(channels,) * 3])


def _long_rows() -> Iterator[HotKernel]:
    yield from _op("long rows: sum of squares", reduce.SquareSum(), _f32(WIDTH, 4 * WIDTH))
    yield from _op("long rows: sum of squares of all gradients", reduce.SquareSum(), _f32(PARAMETERS))


def _pooling() -> Iterator[HotKernel]:
    images, pooled = _bf16(64, 64, 112, 112), _bf16(64, 64, 56, 56)
    for name, op, inputs, output in (
        ("pooling: maximum", pool.MaxPool(*WINDOW), [images], pooled),
        ("pooling: gradient of maximum", pool.MaxPoolGrad(*WINDOW), [images, pooled, pooled], images),
    ):
        arrays = [_channels_last(a) for a in _arrays([*inputs, output])]
        yield HotKernel(name, print_pooling(op, arrays), pooling_blocks(op, arrays, 6272), 256)


def _moments() -> Iterator[HotKernel]:
    """Yield both kernels for the largest and for the smallest images of ResNet-50."""
    for shape in ((64, 64, 112, 112), (64, 512, 7, 7)):
        images, statistic = _bf16(*shape), _f32(shape[1])
        text = MomentsText(BatchMoments(1), [_channels_last(_arrays([images])[0]), *_arrays([statistic] * 3, 2)], "moments")
        for number, (part, blocks) in enumerate(zip(text.parts(), text.blocks, strict=True), 1):
            yield HotKernel(f"moments: {shape[1]} channels of {shape[2]} x {shape[3]}, {number} of 2", part, blocks, 256)


def _channels_last(a: Array) -> Array:
    c, h, w = a.shape[1:]
    return at(TensorType(tuple(a.shape), bfloat16), (c * h * w * 2, 2, c * w * 2, c * 2), int(a.ctypes.data))


def _several(name: str, outputs: Sequence[Expression], inputs: Sequence[TensorType], targets: Sequence[TensorType]) -> Iterator[HotKernel]:
    """Yield the kernel of a multi-tensor call, for twelve tensors of these types."""
    (ready,) = prepared(outputs, _arrays(inputs), _arrays(targets), lambda shape, dtype: _arrays([TensorType(shape, dtype)])[0])
    (launch,) = launches([ready] * 12, 1056)
    yield HotKernel(name, launch.text, launch.blocks, 256)


# Arrays ------------------------------------------------------------------------------------------------------------------------------


def _type(dtype: DType, *shape: int) -> TensorType:
    return TensorType(shape, dtype)


def _bf16(*shape: int) -> TensorType:
    return _type(bfloat16, *shape)


def _f32(*shape: int) -> TensorType:
    return _type(float32, *shape)


def _arrays(types: Sequence[TensorType], first: int = 1) -> list[Array]:
    return [at(t, contiguous_strides(t.shape, t.dtype.itemsize), (n + first) << 40) for n, t in enumerate(types)]


def _expressions(op: Op, *types: TensorType) -> tuple[Expression, ...]:
    expressions = expression_of(op, _arrays(types))
    assert expressions is not None
    return expressions


def _on_sum(op: Op, type: TensorType) -> list[Expression]:
    """Return the expressions of an operation on the sum of two inputs."""
    x = element(0, type.dtype)
    return [replaced(y, {x: x + element(1, type.dtype)}) for y in _expressions(op, type)]


def _op(name: str, op: Op, *types: TensorType) -> Iterator[HotKernel]:
    inputs = _arrays(types)
    outputs = [inputs[op.alias[k]] if k in op.alias else a for k, a in enumerate(_arrays(types_tuple(op.infer(*types)), 1 + len(types)))]
    views = views_in_space(op, inputs, outputs)
    assert views is not None
    yield from _printed(name, _expressions(op, *types), *views)


def _padded(name: str, op: Op, *types: TensorType) -> Iterator[HotKernel]:
    """Yield a kernel that reads logits of 50,257 words in padded rows, and may overwrite them."""
    logits, *others = _arrays([_bf16(TOKENS, VOCABULARY), *types])
    logits = at(TensorType((TOKENS, VOCABULARY), bfloat16), (2 * WORDS, 2), int(logits.ctypes.data))
    results = types_tuple(op.infer(_bf16(TOKENS, VOCABULARY), *types))
    outputs = [logits] if 0 in op.in_place else _arrays(results, 2 + len(types))
    views = views_in_space(op, [logits, *others], outputs)
    assert views is not None
    yield from _printed(name, _expressions(op, _bf16(TOKENS, VOCABULARY), *types), *views)


def _of(name: str, outputs: Sequence[Expression], inputs: Sequence[TensorType], targets: Sequence[TensorType]) -> Iterator[HotKernel]:
    yield from _printed(name, outputs, _arrays(inputs), _arrays(targets, 1 + len(inputs)))


def _printed(name: str, outputs: Sequence[Expression], inputs: Sequence[Array], targets: Sequence[Array]) -> Iterator[HotKernel]:
    count = 100

    def allocate(shape: tuple[int, ...], dtype: DType) -> Array:
        nonlocal count
        count += 1
        return _arrays([TensorType(shape, dtype)], count)[0]

    kernels = prepared(outputs, inputs, targets, allocate)
    for number, ready in enumerate(kernels, 1):
        blocks, block, _ = launched(ready)
        part = f", {number} of {len(kernels)}: {ready.form.kind}" if len(kernels) > 1 else ""
        yield HotKernel(f"{name}{part}", ready.text(), blocks, block[0] * (block[1] if len(block) > 1 else 1))
