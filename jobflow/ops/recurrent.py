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
from itertools import islice
from typing import Any, ClassVar

import numpy as np

from jobflow.core.errors import DtypeError, ShapeError
from jobflow.core.types import Tensor, TensorType, int64, type_of
from jobflow.ops import elementwise as ew
from jobflow.ops.axes import expand_dims
from jobflow.ops.derivative import through
from jobflow.ops.matmul import RowsMatMul, axis_sum, matmul
from jobflow.ops.op import Grads, Sample, apply, sample
from jobflow.ops.pointwise import FLOATS, check_dtypes, sample_data
from jobflow.ops.recurrence_loop import STATES, ArraySpace, OverTime, Read, TensorSpace, split_name
from jobflow.ops.reduce import reduce_sum
from jobflow.ops.slices import slice_
from jobflow.ops.source import arange


class Recurrence(OverTime):
    """Base class of recurrences: inputs x[t,n,G] and w[G,H], outputs y[t,n,H], the final states [n,H], and values for the gradient."""

    abstract = True
    #: outputs after the states, and their number of blocks of H
    saved: ClassVar[dict[str, int]] = {}

    def inputs(self) -> tuple[str, ...]:
        starts = [f"{state}0" for state in STATES[: self.states]] if self.starts else []
        return ("x", "w", *self.more(), *starts, *(("lengths",) if self.masked else ()))

    def more(self) -> tuple[str, ...]:
        """Return the names of inputs other than x, w, initial states and lengths."""
        return ()

    def results(self) -> tuple[str, ...]:
        return ("y", *STATES[: self.states], *self.saved)

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

    def loop(self, space: ArraySpace | TensorSpace) -> None:
        states: dict[str, Any] = {name: space.start(f"{name}0") for name in STATES[: self.states]}
        for t in self.times(space.steps):
            results = self.formula(space.f, self._reader(space, t, states))
            states = {name: results.pop(name) for name in states}
            space.write(t, results)
        space.finish(states)

    def _reader(self, space: Any, t: int, states: dict[str, Any]) -> Read:
        """Return the function that reads the operands of step t."""
        sums = space.product(states["h"], True)

        def read(name: str) -> Any:
            operand, block = split_name(name)
            if operand == "sums":
                return space.part(sums, block)
            return states[name] if name in states else space.runs(t) if name == "runs" else space.read(name, t)

        return read

    def new_states(self, f: Any, e: Read, **states: Any) -> dict[str, Any]:
        """Return the results of a step by name; samples without this step keep their states, and their output is 0."""
        y = states["h"]
        if self.masked:
            runs = e("runs")
            y, states = f.where(runs, y, 0.0), {name: f.where(runs, value, e(name)) for name, value in states.items()}
        return {"y": y, **states} | ({"cells": states["c"]} if "c" in states else {})

    def gradient(self, of: tuple[str, ...]) -> RecurrenceGrad:
        """Return the gradient op; `of` has the names of the outputs with a gradient, such as "dy"."""
        raise NotImplementedError

    def grad(self, *tensors: Any) -> Grads:
        at, inputs, names = self.named(tensors), self.inputs(), self.results()
        outputs = tensors[len(inputs) + len(names) :]
        gradients = {f"d{name}": tensor for name, tensor in zip(names, outputs, strict=True) if tensor is not None}
        if any(f"d{name}" in gradients for name in self.saved):  # in second derivatives
            return through(self.composed, tensors[: len(inputs)], outputs)
        op = self.gradient(tuple(gradients))
        computed = apply(op, *(gradients[name] if name in gradients else at[name] for name in op.inputs()))
        results = dict(zip(op.results(), computed if isinstance(computed, tuple) else (computed,), strict=True))
        recurrent = results.get("dg", results["dx"])
        weights = {"dw": self._weight_gradient(at, recurrent), "dbias": axis_sum(recurrent, 2) if "bias" in at else None}
        return tuple((results | weights).get(f"d{name}") for name in inputs)

    def _weight_gradient(self, at: dict[str, Tensor], d: Tensor) -> Tensor:
        """Return the gradient of w, the sum over steps of d^T h'; d are the gradients of w h' at all steps."""
        steps, total = d.tensor_type.shape[0], None
        if steps > 1:
            now, past = (0, 1) if self.reverse else (1, 0)
            factors = (slice_(v, (start,), (start + steps - 1,)) for v, start in ((d, now), (at["y"], past)))
            total = apply(RowsMatMul(), *factors)
        if self.starts:
            first = matmul(self._first(at, d), at["h0"], transpose_a=True)
            total = first if total is None else ew.add(total, first)
        return ew.fill_like(at["w"], 0.0) if total is None else total

    def _first(self, at: dict[str, Tensor], d: Tensor) -> Tensor:
        """Return the values of d [steps, samples, ...] at the first step of each sample."""
        steps = d.tensor_type.shape[0]
        if not (self.reverse and self.masked):
            first = steps - 1 if self.reverse else 0
            return reduce_sum(slice_(d, (first,), (first + 1,)), (0,))
        lengths = ew.cast(at["lengths"], int64)
        last = ew.subtract(lengths, ew.fill_like(lengths, 1))
        chosen = expand_dims(ew.equal(expand_dims(arange(0, steps), 1), last), 2)
        return reduce_sum(ew.where(chosen, d, ew.fill_like(d, 0.0)), (0,))

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        op = cls(True, True, True)
        yield sample(op, *op.sample_inputs(2, 3, 2))
        for op in (cls(), cls(False, True, True), cls(True, False, True)):
            yield sample(op, *op.sample_inputs(2, 5, 3), differentiable=())
        yield sample(cls(True), *op.sample_inputs(3, 9, 35)[: len(cls(True).inputs())], differentiable=(), note=" of several vectors")
        yield sample(cls(), *cls().sample_inputs(1, 2, 4), differentiable=(), note=" one step")

    def sample_inputs(self, steps: int, n: int, hidden: int) -> list[Any]:
        """Return arrays for the inputs."""
        width = self.blocks * hidden
        shapes = {"x": (steps, n, width), "w": (width, hidden), "bias": (width,), "h0": (n, hidden), "c0": (n, hidden)}
        lengths = np.array([steps, max(steps - 1, 1), 1, steps, 2, *[1] * n])[:n]
        return [lengths if name == "lengths" else sample_data(i + 1, *shapes[name]) * 0.7 for i, name in enumerate(self.inputs())]


class RecurrenceGrad(OverTime):
    """Base class of gradients of recurrences, from the gradients of y and the final states to the gradients of x and the initial states.

    `of` has the names of the output gradients among the inputs; the gradients of other outputs are zero.
    """

    abstract = True
    of: tuple[str, ...] = ("dy",)
    #: outputs of the recurrence that the gradient reads; its values before each step, and its initial state
    reads: ClassVar[tuple[str, ...]]
    past: ClassVar[tuple[str, str] | None] = None

    def inputs(self) -> tuple[str, ...]:
        starts = (self.past[1],) if self.starts and self.past is not None else ()
        return ("w", *self.reads, *starts, *(("lengths",) if self.masked else ()), *self.of)

    def results(self) -> tuple[str, ...]:
        return ("dx", *(f"d{state}0" for state in STATES[: self.states] if self.starts))

    def infer(self, *types: TensorType) -> TensorType | tuple[TensorType, ...]:
        at = self.named(types)
        w, (steps, n, _) = at["w"], at[self.reads[0]].shape
        shapes = {"dx": (steps, n, w.shape[0]), "dg": (steps, n, w.shape[0])}
        return tuple(w.with_shape(shapes.get(name, (n, w.shape[1]))) for name in self.results())

    def loop(self, space: ArraySpace | TensorSpace) -> None:
        factor = "dg" if "dg" in self.results() else "dx"
        grads: dict[str, Any] = {f"d{state}": space.start(f"d{state}") for state in STATES[: self.states]}
        for t in reversed(self.times(space.steps)):
            results = self.formula(space.f, self._reader(space, t, grads))
            grads = {name: results.pop(name, None) for name in grads}
            rest = results.pop("rest", None)
            space.write(t, results)
            dh = space.product(space.row(factor, t), False)
            grads["dh"] = dh if rest is None else dh + rest
        space.finish({f"{name}0": value for name, value in grads.items()})

    def _reader(self, space: Any, t: int, grads: dict[str, Any]) -> Read:
        """Return the function that reads the operands of step t."""

        def read(name: str) -> Any:
            if name in grads:
                return grads[name]
            if name in ("runs", "runs:1"):
                return space.runs(self.previous(t) if name == "runs:1" else t)
            if name != "past":
                return space.start(name) if name == "h0" else space.read(name, t)
            assert self.past is not None
            values, start = self.past
            return space.read(values, self.previous(t)) if 0 <= self.previous(t) < space.steps else space.start(start)

        return read

    def dh(self, e: Read) -> Any:
        """Return the gradient of the state h after a step, including the gradient of the output y if it is an input."""
        return e("dh") + e("dy") if "dy" in self.of else e("dh")

    def answer(self, f: Any, e: Read, rest: Any = None, **blocks: Sequence[Any]) -> dict[str, Any]:
        """Return the results of a step: blocks of gradients, and `rest`, the part of the gradient of h' that is not a product."""
        if self.masked:
            runs = e("runs")
            blocks = {name: [f.where(runs, value, 0.0) for value in values] for name, values in blocks.items()}
            rest = f.where(runs, 0.0 if rest is None else rest, e("dh"))
        results = {f"{name}:{k}": value for name, values in blocks.items() for k, value in enumerate(values)}
        return results if rest is None else results | {"rest": rest}

    def grad(self, *tensors: Any) -> Grads:
        inputs, outputs = len(self.inputs()), len(self.results())
        return through(self.composed, tensors[:inputs], tensors[inputs + outputs :])

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        for k, each in enumerate(islice(cls.forward().samples(), 2)):
            op = each.op
            assert isinstance(op, Recurrence)
            outputs = op.infer(*(type_of(a) for a in each.arrays))
            arrays = [np.zeros(type.shape, each.arrays[0].dtype) for type in outputs]
            op.kernel(np, *each.arrays, *arrays)
            at = op.named([*each.arrays, *arrays])
            of = ("dh",) if k else ("dy", *(f"d{state}" for state in STATES[: cls.states]))
            gradient = op.gradient(of)
            gradients = {name: sample_data(7 + i, *at[name[1:]].shape) for i, name in enumerate(of)}
            arrays = [(at | gradients)[name] for name in gradient.inputs()]
            yield sample(gradient, *arrays, differentiable=(), note=each.note)

    @classmethod
    def forward(cls) -> type[Recurrence]:
        """Return the forward op."""
        raise NotImplementedError


class Rnn(Recurrence):
    """A recurrence h = tanh(x + w h'), or relu(x + w h')."""

    relu: bool = False
    blocks = 1

    def formula(self, f: Any, e: Read) -> dict[str, Any]:
        total = e("sums") + e("x")
        return self.new_states(f, e, h=f.maximum(total, 0.0) if self.relu else f.tanh(total))

    def gradient(self, of: tuple[str, ...]) -> RecurrenceGrad:
        return RnnGrad(self.reverse, self.starts, self.masked, of, self.relu)

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        yield from super().samples()
        op = cls(relu=True)
        yield sample(op, *op.sample_inputs(1, 3, 5), differentiable=(), note=" relu")


class RnnGrad(RecurrenceGrad):
    """Gradient of Rnn, whose derivative is a function of the output y."""

    relu: bool = False
    blocks = 1
    reads = ("y",)

    def formula(self, f: Any, e: Read) -> dict[str, Any]:
        dh, y = self.dh(e), e("y")
        return self.answer(f, e, dx=[f.where(y > 0.0, dh, 0.0) if self.relu else dh * (1.0 - y * y)])

    @classmethod
    def forward(cls) -> type[Recurrence]:
        return Rnn


class Lstm(Recurrence):
    """A long short-term memory; `gates` are the activations of i, f, u and o, `cells` the states c."""

    blocks, states = 4, 2
    saved: ClassVar[dict[str, int]] = {"gates": 4, "cells": 1}
    in_place: ClassVar[dict[int, tuple[int, ...]]] = {3: (0,)}

    def formula(self, f: Any, e: Read) -> dict[str, Any]:
        i, q, u, o = (e(f"sums:{k}") + e(f"x:{k}") for k in range(4))
        i, q, u, o = f.sigmoid(i), f.sigmoid(q), f.tanh(u), f.sigmoid(o)
        c = q * e("c") + i * u
        return {"gates:0": i, "gates:1": q, "gates:2": u, "gates:3": o, **self.new_states(f, e, h=o * f.tanh(c), c=c)}

    def gradient(self, of: tuple[str, ...]) -> RecurrenceGrad:
        return LstmGrad(self.reverse, self.starts, self.masked, of)


class LstmGrad(RecurrenceGrad):
    """Gradient of Lstm, from the saved activations `gates` and states `cells`."""

    blocks, states = 4, 2
    reads = ("gates", "cells")
    past = ("cells", "c0")

    def formula(self, f: Any, e: Read) -> dict[str, Any]:
        dh, (i, q, u, o), s = self.dh(e), (e(f"gates:{k}") for k in range(4)), f.tanh(e("cells"))
        dc = e("dc") + dh * o * (1.0 - s * s)
        gates = [dc * u * i * (1.0 - i), dc * e("past") * q * (1.0 - q), dc * i * (1.0 - u * u), dh * s * o * (1.0 - o)]
        past = f.where(e("runs"), dc * q, e("dc")) if self.masked else dc * q
        return self.answer(f, e, dx=gates) | {"dc": past}

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

    def formula(self, f: Any, e: Read) -> dict[str, Any]:
        p, q, m = (e(f"sums:{k}") + e(f"bias:{k}") if self.biased else e(f"sums:{k}") for k in range(3))
        r, z = f.sigmoid(e("x:0") + p), f.sigmoid(e("x:1") + q)
        n = f.tanh(e("x:2") + r * m)
        return {"gates:0": r, "gates:1": z, "gates:2": n, "gates:3": m, **self.new_states(f, e, h=n + z * (e("h") - n))}

    def gradient(self, of: tuple[str, ...]) -> RecurrenceGrad:
        return GruGrad(self.reverse, self.starts, self.masked, of)

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        yield from super().samples()
        op = cls(biased=True)
        yield sample(op, *op.sample_inputs(1, 4, 2), differentiable=(), note=" biased")


class GruGrad(RecurrenceGrad):
    """Gradient of Gru: dx is the gradient of x, and dg is the gradient of w h' + bias."""

    blocks = 3
    reads = ("gates", "y")
    past = ("y", "h0")

    def results(self) -> tuple[str, ...]:
        dx, *starts = super().results()
        return dx, "dg", *starts

    def formula(self, f: Any, e: Read) -> dict[str, Any]:
        dh, (r, z, n, m), past = self.dh(e), (e(f"gates:{k}") for k in range(4)), e("past")
        if self.masked and self.reverse and self.starts:
            past = f.where(e("runs:1"), past, e("h0"))
        dn = dh * (1.0 - z) * (1.0 - n * n)
        dz, dr = dh * (past - n) * z * (1.0 - z), dn * m * r * (1.0 - r)
        return self.answer(f, e, dh * z, dx=[dr, dz, dn], dg=[dr, dz, dn * r])

    @classmethod
    def forward(cls) -> type[Recurrence]:
        return Gru
