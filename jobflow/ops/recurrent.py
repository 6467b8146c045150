"""Recurrent layers over time: each op is one layer in one direction, after the product of all time steps with the input weight.

The axes are t time steps, n samples, H hidden units, and G = 1, 3 or 4 blocks of H.  With h' the previous state, and w the recurrent weight:

    Rnn     h = tanh(x + w h') or relu(x + w h')
    Lstm    i, f, u, o = x + w h';  c = sigmoid(f) c' + sigmoid(i) tanh(u);  h = sigmoid(o) tanh(c)
    Gru     r, z, n = x;  p, q, m = w h' + bias;  n = tanh(n + sigmoid(r + p) m);  z = sigmoid(z + q);  h = (1 - z) n + z h'

S. Hochreiter, J. Schmidhuber: Long short-term memory, 1997.  K. Cho et al.: Learning phrase representations using RNN encoder-decoder, 2014.

The ops write the activations that their gradients read.  `lengths` has the number of steps of each sample.  A sample keeps its state in later
steps, whose outputs are 0; in the direction `reverse` it therefore starts at its last step.  The gradient of w is one product over all steps.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, ClassVar

import numpy as np

from jobflow.core.errors import DtypeError, ShapeError
from jobflow.core.layout import Rule
from jobflow.core.types import Array, Tensor, TensorType, Xp, int64, type_of
from jobflow.expressions.on_arrays import exponent_limit
from jobflow.ops import elementwise as ew
from jobflow.ops.axes import expand_dims
from jobflow.ops.matmul import RowsMatMul, axis_sum, matmul
from jobflow.ops.op import Grads, Op, Sample, apply, sample
from jobflow.ops.pointwise import FLOATS, check_dtypes, sample_data
from jobflow.ops.reduce import reduce_sum
from jobflow.ops.slices import slice_
from jobflow.ops.source import arange

#: operand -> its axes in a layout rule; only samples are split
_AXES = {
    "x": "TnG",
    "w": "GH",
    "bias": "G",
    "h0": "nH",
    "c0": "nH",
    "lengths": "n",
    "y": "TnH",
    "h": "nH",
    "c": "nH",
    "gates": "TnG",
    "cells": "TnH",
    "dy": "TnH",
    "dh": "nH",
    "dc": "nH",
    "dx": "TnG",
    "dg": "TnG",
    "dh0": "nH",
    "dc0": "nH",
}
_STATES = ("h", "c")


class _OverTime(Op):
    """Base class of recurrences and their gradients, whose operands have names."""

    abstract = True
    reverse: bool = False
    #: True if the inputs include initial states
    starts: bool = False
    #: True if the inputs include lengths
    masked: bool = False

    #: blocks of w, and number of states
    blocks: ClassVar[int]
    states: ClassVar[int] = 1

    def inputs(self) -> tuple[str, ...]:
        """Return the names of the inputs."""
        raise NotImplementedError

    def results(self) -> tuple[str, ...]:
        """Return the names of the outputs."""
        raise NotImplementedError

    def named(self, tensors: Sequence[Any]) -> dict[str, Any]:
        """Return inputs and outputs by name."""
        return dict(zip((*self.inputs(), *self.results()), tensors, strict=False))

    def rule(self, *types: TensorType) -> Rule:
        inputs = self.inputs()
        linear = tuple(i for i, name in enumerate(inputs) if name in ("dy", "dh", "dc"))
        words = (",".join(_AXES[name] for name in names) for names in (inputs, self.results()))
        return Rule("->".join(words), linear=(linear,) if linear else ())

    def times(self, count: int) -> range:
        """Return the time steps in the order of the recurrence."""
        return range(count - 1, -1, -1) if self.reverse else range(count)

    def before(self, t: int, values: Array, start: Array) -> Array:
        """Return the values at the previous step: those of `start` at the first step."""
        p = t + 1 if self.reverse else t - 1
        return values[p] if 0 <= p < len(values) else start


class Recurrence(_OverTime):
    """Base class of recurrences: inputs x[t,n,G] and w[G,H], outputs y[t,n,H], the final states [n,H], and values for the gradient."""

    abstract = True
    #: outputs after the states, and their number of blocks of H
    saved: ClassVar[dict[str, int]] = {}

    def inputs(self) -> tuple[str, ...]:
        starts = [f"{state}0" for state in _STATES[: self.states]] if self.starts else []
        return ("x", "w", *self.more(), *starts, *(("lengths",) if self.masked else ()))

    def more(self) -> tuple[str, ...]:
        """Return the names of further weights."""
        return ()

    def results(self) -> tuple[str, ...]:
        return ("y", *_STATES[: self.states], *self.saved)

    def infer(self, *types: TensorType) -> tuple[TensorType, ...]:
        word, at = self.word(), self.named(types)
        check_dtypes(word, FLOATS, *(type for name, type in at.items() if name != "lengths"))
        x, w = at["x"], at["w"]
        if x.ndim != 3 or w.ndim != 2 or w.shape != (self.blocks * w.shape[1], w.shape[1]) or x.shape[2] != w.shape[0]:
            raise ShapeError(f"{word}: x {x} must be [time, n, {self.blocks} h], and the weight {w} [{self.blocks} h, h]")
        (steps, n, width), hidden = x.shape, w.shape[1]
        expected = {"bias": (width,), "h0": (n, hidden), "c0": (n, hidden), "lengths": (n,)}
        for name, shape in expected.items():
            if name in at and at[name].shape != shape:
                raise ShapeError(f"{word}: {name} {at[name]} must have the shape {list(shape)} for x {x} and the weight {w}")
        if self.masked and not at["lengths"].dtype.is_integer:
            raise DtypeError(f"{word}: lengths {at['lengths']} must be integers")
        states = [x.with_shape((n, hidden))] * self.states
        return (x.with_shape((steps, n, hidden)), *states, *(x.with_shape((steps, n, count * hidden)) for count in self.saved.values()))

    def kernel(self, xp: Xp, *arrays: Array) -> None:
        at = self.named(arrays)
        y, nothing = at["y"], xp.zeros(at["h"].shape, at["y"].dtype)
        states = [at.get(f"{state}0", nothing) for state in _STATES[: self.states]]
        product = xp.empty((y.shape[1], at["w"].shape[0]), y.dtype)
        for t in self.times(len(y)):
            xp.matmul(states[0], at["w"].T, out=product)
            new = self.step(xp, t, at, product, *states)
            if self.masked:
                runs = (t < at["lengths"])[:, None]
                new = [xp.where(runs, after, before) for after, before in zip(new, states, strict=True)]
                xp.copyto(y[t], 0, where=~runs)
                if "cells" in at:
                    at["cells"][t] = new[1]
            states = new
        for name, value in zip(_STATES, states, strict=False):
            at[name][...] = value

    def step(self, xp: Xp, t: int, at: dict[str, Any], product: Array, *states: Array) -> list[Array]:
        """Write the outputs of one step; return the new states.  `product` is h' w^T."""
        raise NotImplementedError

    def gradient(self, of: tuple[str, ...]) -> RecurrenceGrad:
        """Return the gradient op for gradients of the outputs `of`."""
        raise NotImplementedError

    def grad(self, *tensors: Any) -> Grads:
        at, count = self.named(tensors), len(self.inputs())
        gradients = {
            f"d{name}": tensor for name, tensor in zip(self.results(), tensors[count + len(self.results()) :], strict=True) if tensor is not None
        }
        op = self.gradient(tuple(gradients))
        outputs = apply(op, *(gradients[name] if name in gradients else at[name] for name in op.inputs()))
        results = dict(zip(op.results(), outputs if isinstance(outputs, tuple) else (outputs,), strict=True))
        recurrent = results.get("dg", results["dx"])
        weights = {"dw": self._weight_gradient(at, recurrent), "dbias": axis_sum(recurrent, 2) if "bias" in at else None}
        return tuple((results | weights).get(f"d{name}") for name in self.inputs())

    def _weight_gradient(self, at: dict[str, Tensor], d: Tensor) -> Tensor:
        """Return the gradient of w, sum over steps of d^T h'; d are the gradients of w h' at all steps."""
        steps, total = d.tensor_type.shape[0], None
        if steps > 1:
            now, past = ((0,), (1,)) if self.reverse else ((1,), (0,))
            end = steps - 1
            total = apply(RowsMatMul(), *(slice_(v, at_, (at_[0] + end,)) for v, at_ in ((d, now), (at["y"], past))))
        if self.starts:
            first = matmul(self._first(at, d), at["h0"], transpose_a=True)
            total = first if total is None else ew.add(total, first)
        return ew.fill_like(at["w"], 0.0) if total is None else total

    def _first(self, at: dict[str, Tensor], d: Tensor) -> Tensor:
        """Return d at the first step of each sample."""
        steps = d.tensor_type.shape[0]
        if not (self.reverse and self.masked):
            return reduce_sum(slice_(d, (steps - 1 if self.reverse else 0,), (steps if self.reverse else 1,)), (0,))
        last = ew.subtract(ew.cast(at["lengths"], int64), ew.fill_like(ew.cast(at["lengths"], int64), 1))
        chosen = expand_dims(ew.equal(expand_dims(arange(0, steps), 1), last), 2)
        return reduce_sum(ew.where(chosen, d, ew.fill_like(d, 0.0)), (0,))

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        for reverse, starts, masked in ((False, False, False), (True, True, False), (False, True, True), (True, False, True)):
            op = cls(reverse, starts, masked)
            yield sample(op, *op.sample_inputs(4, 5, 3), differentiable=())
        op = cls(True)
        yield sample(op, *op.sample_inputs(3, 9, 35), differentiable=(), note=" of several vectors")
        yield sample(op, *op.sample_inputs(1, 2, 4), differentiable=(), note=" one step")

    def sample_inputs(self, steps: int, n: int, hidden: int) -> list[Any]:
        width = self.blocks * hidden
        shapes = {"x": (steps, n, width), "w": (width, hidden), "bias": (width,), "h0": (n, hidden), "c0": (n, hidden)}
        lengths = np.array([steps, max(steps - 1, 1), 1, steps, 2, *[1] * n])[:n]
        return [lengths if name == "lengths" else sample_data(i + 1, *shapes[name]) * 0.7 for i, name in enumerate(self.inputs())]


class RecurrenceGrad(_OverTime):
    """Base class of gradients: from gradients of y and the final states to those of x and the initial states.

    `of` names the output gradients among the inputs; the others are zero.
    """

    abstract = True
    of: tuple[str, ...] = ("dy",)
    #: inputs saved by the forward op, and the initial states that the gradient reads
    reads: ClassVar[tuple[str, ...]]
    reads_starts: ClassVar[tuple[str, ...]] = ()

    def inputs(self) -> tuple[str, ...]:
        return ("w", *self.reads, *(self.reads_starts if self.starts else ()), *(("lengths",) if self.masked else ()), *self.of)

    def results(self) -> tuple[str, ...]:
        return ("dx", *(f"d{state}0" for state in _STATES[: self.states] if self.starts))

    def infer(self, *types: TensorType) -> TensorType | tuple[TensorType, ...]:
        at = self.named(types)
        w, (steps, n, _) = at["w"], at[self.reads[0]].shape
        shapes = {"dx": (steps, n, w.shape[0]), "dg": (steps, n, w.shape[0])}
        return tuple(w.with_shape(shapes.get(name, (n, w.shape[1]))) for name in self.results())

    def kernel(self, xp: Xp, *arrays: Array) -> None:
        at = self.named(arrays)
        dx, w, n = at["dx"], at["w"], at["dx"].shape[1]
        at["nothing"] = xp.zeros((n, w.shape[1]), dx.dtype)
        grads = [at[f"d{state}"] if f"d{state}" in at else at["nothing"] for state in _STATES[: self.states]]
        for t in reversed(self.times(len(dx))):
            dh = grads[0] + at["dy"][t] if "dy" in at else grads[0]
            recurrent, rest, *others = self.step(xp, t, at, dh, *grads[1:])
            runs = (t < at["lengths"])[:, None] if self.masked else None
            if runs is not None:
                for name in ("dx", "dg"):
                    if name in at:
                        xp.copyto(at[name][t], 0, where=~runs)
            new = recurrent @ w
            if rest is not None:
                new += rest
            now = [new, *others]
            grads = now if runs is None else [xp.where(runs, after, before) for after, before in zip(now, grads, strict=True)]
        for state, value in zip(_STATES[: self.states], grads, strict=True):
            if self.starts:
                at[f"d{state}0"][...] = value

    def step(self, xp: Xp, t: int, at: dict[str, Any], dh: Array, *others: Array) -> list[Any]:
        """Write the results of one step.

        Return the gradient of w h', the rest of the gradient of h' or None, and the gradients of further states.
        """
        raise NotImplementedError

    def grad(self, *tensors: Any) -> Grads:
        return Op.grad(self, *tensors)

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        for k, each in enumerate(cls.forward().samples()):
            op = each.op
            assert isinstance(op, Recurrence)
            outputs = op.infer(*(type_of(a) for a in each.arrays))
            arrays = [np.zeros(type.shape, each.arrays[0].dtype) for type in outputs]
            op.kernel(np, *each.arrays, *arrays)
            at = op.named([*each.arrays, *arrays])
            of = (("dy",), ("dy", "dh"), ("dh",), ("dy", *(f"d{state}" for state in _STATES[: cls.states])))[k % 4]
            gradient = op.gradient(of)
            gradients = {name: sample_data(7 + i, *at[name[1:]].shape) for i, name in enumerate(of)}
            yield sample(gradient, *((at | gradients)[name] for name in gradient.inputs()), differentiable=(), note=each.note)

    @classmethod
    def forward(cls) -> type[Recurrence]:
        """Return the forward op."""
        raise NotImplementedError


def _parts(values: Array, count: int) -> list[Array]:
    """Return the blocks of the last axis."""
    size = values.shape[-1] // count
    return [values[..., k * size : (k + 1) * size] for k in range(count)]


def _to_sigmoid(xp: Xp, x: Array) -> None:
    """Replace x by its sigmoid."""
    xp.negative(x, out=x)
    xp.minimum(x, exponent_limit(x.dtype), out=x)
    xp.exp(x, out=x)
    xp.add(x, 1, out=x)
    xp.reciprocal(x, out=x)


class Rnn(Recurrence):
    """A recurrence h = tanh(x + w h'), or with relu."""

    relu: bool = False
    blocks = 1

    def step(self, xp: Xp, t: int, at: dict[str, Any], product: Array, *states: Array) -> list[Array]:
        y = at["y"][t]
        product += at["x"][t]
        xp.maximum(product, 0, out=y) if self.relu else xp.tanh(product, out=y)
        return [y]

    def gradient(self, of: tuple[str, ...]) -> RecurrenceGrad:
        return RnnGrad(self.reverse, self.starts, self.masked, of, self.relu)

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        yield from super().samples()
        op = cls(relu=True)
        yield sample(op, *op.sample_inputs(4, 3, 5), differentiable=(), note=" relu")


class RnnGrad(RecurrenceGrad):
    """Gradient of Rnn."""

    relu: bool = False
    blocks = 1
    reads = ("y",)

    def step(self, xp: Xp, t: int, at: dict[str, Any], dh: Array, *others: Array) -> list[Any]:
        y, dx = at["y"][t], at["dx"][t]
        xp.multiply(dh, y > 0 if self.relu else 1 - y * y, out=dx)
        return [dx, None]

    @classmethod
    def forward(cls) -> type[Recurrence]:
        return Rnn


class Lstm(Recurrence):
    """A long short-term memory; `gates` are the activations of i, f, u and o, `cells` the states c."""

    blocks, states = 4, 2
    saved: ClassVar[dict[str, int]] = {"gates": 4, "cells": 1}
    in_place: ClassVar[dict[int, tuple[int, ...]]] = {3: (0,)}

    def step(self, xp: Xp, t: int, at: dict[str, Any], product: Array, *states: Array) -> list[Array]:
        y, gates, cells = at["y"][t], at["gates"][t], at["cells"][t]
        xp.add(at["x"][t], product, out=gates)
        i, f, u, o = _parts(gates, 4)
        _to_sigmoid(xp, gates[:, : 2 * y.shape[1]])
        xp.tanh(u, out=u)
        _to_sigmoid(xp, o)
        xp.multiply(f, states[1], out=cells)
        cells += i * u
        xp.tanh(cells, out=y)
        y *= o
        return [y, cells]

    def gradient(self, of: tuple[str, ...]) -> RecurrenceGrad:
        return LstmGrad(self.reverse, self.starts, self.masked, of)


class LstmGrad(RecurrenceGrad):
    """Gradient of Lstm."""

    blocks, states = 4, 2
    reads = ("gates", "cells")
    reads_starts = ("c0",)

    def step(self, xp: Xp, t: int, at: dict[str, Any], dh: Array, *others: Array) -> list[Any]:
        dx, (i, f, u, o) = at["dx"][t], _parts(at["gates"][t], 4)
        past, s = self.before(t, at["cells"], at.get("c0", at["nothing"])), xp.tanh(at["cells"][t])
        di, df, du, do = _parts(dx, 4)
        dc = others[0] + dh * o * (1 - s * s)
        xp.multiply(dc * u * i, 1 - i, out=di)
        xp.multiply(dc * past * f, 1 - f, out=df)
        xp.multiply(dc * i, 1 - u * u, out=du)
        xp.multiply(dh * s * o, 1 - o, out=do)
        return [dx, None, dc * f]

    @classmethod
    def forward(cls) -> type[Recurrence]:
        return Lstm


class Gru(Recurrence):
    """A gated recurrent unit; `gates` are the activations r, z, n, and m."""

    biased: bool = False
    blocks = 3
    saved: ClassVar[dict[str, int]] = {"gates": 4}

    def more(self) -> tuple[str, ...]:
        return ("bias",) if self.biased else ()

    def step(self, xp: Xp, t: int, at: dict[str, Any], product: Array, *states: Array) -> list[Array]:
        y, gates, hidden = at["y"][t], at["gates"][t], states[0].shape[1]
        if self.biased:
            product += at["bias"]
        _, _, n, m = _parts(gates, 4)
        doors = gates[:, : 2 * hidden]
        xp.add(at["x"][t][:, : 2 * hidden], product[:, : 2 * hidden], out=doors)
        _to_sigmoid(xp, doors)
        m[...] = product[:, 2 * hidden :]
        xp.multiply(doors[:, :hidden], m, out=n)
        n += at["x"][t][:, 2 * hidden :]
        xp.tanh(n, out=n)
        xp.subtract(states[0], n, out=y)
        y *= doors[:, hidden:]
        y += n
        return [y]

    def gradient(self, of: tuple[str, ...]) -> RecurrenceGrad:
        return GruGrad(self.reverse, self.starts, self.masked, of)

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        yield from super().samples()
        for op in (cls(biased=True), cls(True, True, True, True)):
            yield sample(op, *op.sample_inputs(3, 4, 5), differentiable=(), note=" biased")


class GruGrad(RecurrenceGrad):
    """Gradient of Gru: dx is the gradient of x, and dg that of w h' + bias."""

    blocks = 3
    reads = ("gates", "y")
    reads_starts = ("h0",)

    def results(self) -> tuple[str, ...]:
        dx, *starts = super().results()
        return dx, "dg", *starts

    def step(self, xp: Xp, t: int, at: dict[str, Any], dh: Array, *others: Array) -> list[Any]:
        dx, dg, (r, z, n, m) = at["dx"][t], at["dg"][t], _parts(at["gates"][t], 4)
        dr, dz, dn = _parts(dx, 3)
        start = at.get("h0", at["nothing"])
        past = self.before(t, at["y"], start)
        if self.masked and self.reverse and self.starts:
            past = xp.where((t + 1 < at["lengths"])[:, None], past, start)
        xp.multiply(dh * (1 - z), 1 - n * n, out=dn)
        xp.multiply(dh * (past - n) * z, 1 - z, out=dz)
        xp.multiply(dn * m * r, 1 - r, out=dr)
        hidden = z.shape[1]
        dg[:, : 2 * hidden] = dx[:, : 2 * hidden]
        xp.multiply(dn, r, out=dg[:, 2 * hidden :])
        return [dg, dh * z]

    @classmethod
    def forward(cls) -> type[Recurrence]:
        return Gru
