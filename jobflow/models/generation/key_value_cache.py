"""Key-value caches of transformers: keys and values of earlier tokens in buffers of a fixed length, which every call extends in place.

    at = cache.extend(count)                       positions of the new tokens, int64 [batch, count]
    y = attention(q, k, v, cache[layer])           attention to earlier tokens and to the new ones

A fixed length lets one compiled plan serve every token. `KeyValueCache` holds tensors, and `JobCache` holds variables of a job.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from math import sqrt
from numbers import Integral
from typing import Any, Protocol

import numpy as np

import jobflow.core.scope as scope
from jobflow.core.errors import ArgumentError, DtypeError, JobError, ShapeError, counted, user_line
from jobflow.core.layout import B, Layout, Partial
from jobflow.core.types import Tensor as Value
from jobflow.core.types import TensorType, int64
from jobflow.engine.body import JobBody
from jobflow.functional import shapes
from jobflow.functional.creation import arange, tensor, zeros
from jobflow.functional.dispatch import is_tensor
from jobflow.functional.nn_attention import scaled_dot_product_attention
from jobflow.functional.tensor_class import Tensor
from jobflow.graph.ir import Variable
from jobflow.nn.modules.container import ModuleList
from jobflow.nn.modules.module import Module
from jobflow.ops.arithmetic import add
from jobflow.ops.cached_attention import CachedAttention, WriteRows
from jobflow.ops.op import apply
from jobflow.ops.runtime_assertions import RuntimeAssertion
from jobflow.ops.shape import reshape
from jobflow.ops.source import Arange, Constant
from jobflow.tensors.job_recorder import JobRecorder
from jobflow.tensors.run import run, update
from jobflow.tensors.state import state
from jobflow.tensors.tensor import TensorBase

#: the beginning of the names of the variables of a `JobCache`
NAMES = "key-value-cache-"
#: the assertion that `extend` has counted the new tokens
_EXTENDED = RuntimeAssertion(
    "attention", "number of earlier tokens", low=0, problem="is negative: call cache.extend(count) once per call of the model, before its layers"
)


class Layer(Protocol):
    """The cache of one layer."""

    def attend(self, query: Any, key: Any, value: Any, scale: float) -> Any:
        """Return the attention of new tokens to the cache and to themselves, and append their keys and values to the cache."""
        ...


class Cache(Protocol):
    """A cache that a model receives: of tensors, or of variables of a job."""

    length: int

    def extend(self, count: int) -> Any:
        """Count `count` new tokens per sequence, and return their positions, int64 [batch, count]."""
        ...

    def __getitem__(self, layer: int) -> Layer: ...


class KeyValueCache(Module):
    """Keys and values of the tokens that a model has read, for `batch` sequences of at most `length` tokens.

    The first call of the model outside of `flow.compile` creates the buffers, [batch, heads, length, size]. They have the types and layouts of the
    keys and values. `device` is the model's device: `device=next(model.parameters()).device`.
    """

    def __init__(self, batch: int = 1, length: int = 1024, device: Any = None) -> None:
        if not all(isinstance(n, Integral) and not isinstance(n, bool) and int(n) > 0 for n in (batch, length)):
            raise ArgumentError(f"KeyValueCache at {user_line()}: batch is {batch!r} and length {length!r}; pass integers of 1 or more")
        super().__init__()
        self.batch, self.length, self.device = batch, length, device
        self.layers = ModuleList()
        #: the number of tokens per sequence, int64 [batch]
        self.register_buffer("counts", self._counts([0] * batch))

    def __getitem__(self, layer: int) -> _Layer:
        if not isinstance(layer, Integral) or int(layer) < 0:
            raise ArgumentError(f"KeyValueCache at {user_line()}: the layer is {layer!r}; pass its number, an integer of 0 or more")
        while len(self.layers) <= layer:
            self.layers.append(_Layer(self.counts, self.length))
        result: _Layer = self.layers[layer]
        return result

    def extend(self, count: int) -> Tensor:
        """Count `count` new tokens per sequence, and return their positions, int64 [batch, count].

        Raises: ArgumentError if a sequence exceeds the length of the cache; the cache is then unchanged.
        """
        if not isinstance(count, Integral) or int(count) < 0:
            raise ArgumentError(f"extend at {user_line()}: the count is {count!r}; pass the number of new tokens, an integer of 0 or more")
        counts = run(_within(self.length), self.counts + count)
        at = shapes.reshape(counts - count, (self.batch, 1)) + arange(count, device=self.counts.device)
        self.counts.copy_(counts)
        return at

    def rewind(self, counts: int | Sequence[int] = 0) -> None:
        """Set the number of tokens per sequence to `counts`, at most the current number; later tokens are forgotten."""
        values: Any = counts.tolist() if isinstance(counts, Tensor | np.ndarray) else counts
        each = [*values] if isinstance(values, Collection) else [values] * self.batch
        current: list[int] = self.counts.tolist()
        if len(each) != self.batch or not all(isinstance(n, Integral) and 0 <= int(n) <= most for n, most in zip(each, current, strict=True)):
            valid = f"one integer, or {counted(self.batch, 'integer')}, from 0 to these numbers"
            raise ArgumentError(f"rewind at {user_line()}: the counts are {each}, but the cache has {current} tokens per sequence; pass {valid}")
        self.counts.copy_(self._counts(each))

    def _counts(self, counts: Sequence[int]) -> Tensor:
        return tensor(list(counts), dtype=int64, device=self.device)

    def __repr__(self) -> str:
        return f"KeyValueCache(batch={self.batch}, length={self.length}, layers={len(self.layers)})"


class _Layer(Module):
    """The keys and values of one layer."""

    counts: Tensor
    keys: Tensor | None
    values: Tensor | None

    def __init__(self, counts: Tensor, length: int) -> None:
        super().__init__()
        self.length = length
        self.register_buffer("counts", counts)
        self.register_buffer("keys", None)
        self.register_buffer("values", None)

    def attend(self, query: Tensor, key: Tensor, value: Tensor, scale: float) -> Tensor:
        if state().grad_enabled and any(x._needs_gradient for x in (query, key, value)):
            raise JobError(f"attention at {user_line()}: a cache has no gradients; call the model inside of no_grad(), or without a cache")
        shape = _grouped(query, key)
        if self.keys is None or self.values is None:
            if state().building is not None:
                raise JobError(
                    f"attention at {user_line()}: the cache has no buffers yet; call the model with the cache once outside of flow.compile and graphs"
                )
            self.keys, self.values = self._buffer(key), self._buffer(value)
        self._check_rows("keys", self.keys, key)
        self._check_rows("values", self.values, value)
        count = key.shape[2]
        first = run(_EXTENDED, self.counts - count)
        y = run(CachedAttention(scale), shapes.reshape(query, shape), key, value, self.keys, self.values, first)
        update(state(), WriteRows(), (self.keys, key, first), "attention")
        update(state(), WriteRows(), (self.values, value, first), "attention")
        return shapes.reshape(y, query.shape)

    def _check_rows(self, name: str, buffer: Tensor, x: Tensor) -> None:
        """Raise ShapeError or DtypeError if the buffer was created for keys or values of other sizes or of another type than x."""
        batch, heads, _, size = x.shape
        if (*buffer.shape,) != (batch, heads, self.length, size) or buffer.dtype is not x.dtype:
            error = ShapeError if buffer.dtype is x.dtype else DtypeError
            raise error(
                f"attention at {user_line()}: the cache has {name} {buffer.tensor_type}, but the model computes {x.tensor_type}; create another "
                f"cache for this model and batch"
            )

    def _buffer(self, x: Tensor) -> Tensor:
        """Return a buffer of zeros for new rows such as x."""
        batch, heads, _, size = x.shape
        if batch != self.counts.shape[0]:
            raise ShapeError(
                f"attention at {user_line()}: keys {x.tensor_type} do not have the batch {self.counts.shape[0]} of the cache; create another cache"
            )
        shape = (batch, heads, self.length, size)
        if x.layout is None:
            return zeros(shape, dtype=x.dtype, device=x.device)
        parts = [B if isinstance(each, Partial) else each for each in x.layout.sbp]
        return zeros(shape, dtype=x.dtype, placement=x.placement, sbp=parts)


class JobCache:
    """A cache of variables of a job: `counts`, int64 [batch], is the argument of the job with the number of earlier tokens per sequence."""

    def __init__(self, counts: Value, length: int) -> None:
        self.counts, self.length = counts, length

    def __getitem__(self, layer: int) -> _JobLayer:
        return _JobLayer(self, layer)

    def extend(self, count: int) -> Any:
        """Return the positions of `count` new tokens per sequence, int64 [batch, count]."""

        def extended(body: JobBody) -> Value:
            batch = self.counts.tensor_type.shape[0]
            return add(reshape(self.before(count), (batch, 1)), reshape(apply(Arange((count,), int64)), (1, count)))

        return _in_body(extended)

    def before(self, count: int) -> Value:
        """Return the number of earlier tokens per sequence, with the assertion that the cache has room for `count` more."""
        advice = f"Generate fewer tokens: the cache has the length {self.length}, and the job reads {count} new tokens."
        legal: Value = apply(RuntimeAssertion("cache", "number of earlier tokens", 0, self.length - count, advice=advice), self.counts)
        return legal


class _JobLayer:
    """The keys and values of one layer, in two variables of the job."""

    def __init__(self, cache: JobCache, layer: int) -> None:
        self.cache, self.name = cache, f"{NAMES}{layer}"

    def attend(self, query: Any, key: Any, value: Any, scale: float) -> Any:
        def attended(body: JobBody, q: Value, k: Value, v: Value) -> Value:
            counts, names = self.cache.before(k.tensor_type.shape[2]), (f"{self.name}-keys", f"{self.name}-values")
            buffers = [self._variable(body, name, x) for name, x in zip(names, (k, v), strict=True)]
            y = apply(CachedAttention(scale), reshape(q, _grouped(q, k)), k, v, *buffers, counts)
            for name, buffer, x in zip(names, buffers, (k, v), strict=True):
                body.assign(name, apply(WriteRows(), buffer, x, counts))
            return reshape(y, q.tensor_type.shape)

        return _in_body(attended, query, key, value)

    def _variable(self, body: JobBody, name: str, x: Value) -> Value:
        batch, heads, _, size = x.tensor_type.shape
        type = TensorType((batch, heads, self.cache.length, size), x.tensor_type.dtype)
        layout = Layout(body.placement, (B,) * len(body.placement.mesh))
        return body.variable(Variable(name, type, Constant(type.shape, type.dtype, 0), layout.placement, layout.sbp, False, group="buffer"))


def _in_body(function: Callable[..., Value], *tensors: Any) -> Any:
    """Call function(body, *tensors) with tensors of the job, in the body of a job or in the forward of a module that the body calls."""
    interpreter: Any = scope.current().interpreter
    if not isinstance(interpreter, JobRecorder):
        return function(interpreter, *tensors)
    handles = [interpreter.known(x).traced for x in tensors]
    with scope.using(interpreter=interpreter.body):
        y = function(interpreter.body, *handles)
    return TensorBase.new(y.tensor_type, None, None, y)


def _within(length: int) -> RuntimeAssertion:
    """Return the assertion that a sequence does not exceed the length of a cache."""
    advice = f"exceeds the length {length} of the cache; generate fewer tokens, or create a longer cache"
    return RuntimeAssertion("KeyValueCache", "number of tokens", 0, length, problem=advice)


def _grouped(query: Value, key: Value) -> tuple[int, ...]:
    """Return the shape of queries whose heads are rows of the group of keys that they share, [batch, groups, heads / groups * tokens, size]."""
    q, k = query.tensor_type, key.tensor_type
    if q.ndim != 4 or k.ndim != 4 or q.shape[1] % max(k.shape[1], 1) or q.shape[2] != k.shape[2]:
        raise ShapeError(
            f"attention at {user_line()}: query {q} and key {k} must be [batch, heads, tokens, size] and [batch, groups, tokens, size], where the "
            f"groups divide the heads"
        )
    return (q.shape[0], k.shape[1], q.shape[1] // k.shape[1] * q.shape[2], q.shape[3])


def attention(query: Any, key: Any, value: Any, cache: Layer | None = None, *, scale: float | None = None, dropout_p: float = 0.0) -> Any:
    """Return the causal attention of new tokens, and append their keys and values to the cache of a layer.

    Shapes: query [batch, heads, tokens, size], key and value [batch, groups, tokens, size] -> [batch, heads, tokens, size]. Consecutive heads share
    one group of keys and values (grouped-query attention). `scale` defaults to 1 / sqrt(size). Without a cache, the function is
    `scaled_dot_product_attention(..., is_causal=True)`. A cache has no gradient and no dropout.
    """
    for name, x in {"query": query, "key": key, "value": value}.items():
        if not is_tensor(x):
            raise ArgumentError(f"attention at {user_line()}: {name} is of the type {type(x).__name__}; pass a tensor")
    if cache is not None and not hasattr(cache, "attend"):
        raise ArgumentError(f"attention at {user_line()}: cache is {cache!r:.60}; pass the cache of a layer, cache[layer]")
    _grouped(query, key)
    if cache is None:
        grouped = query.shape[1] != key.shape[1]
        return scaled_dot_product_attention(query, key, value, dropout_p=dropout_p, is_causal=True, scale=scale, enable_gqa=grouped)
    return cache.attend(query, key, value, 1 / sqrt(query.shape[-1]) if scale is None else scale)
