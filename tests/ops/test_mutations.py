"""The laws detect deliberate mistakes: each row plants one in an op, and some law must fail."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import laws
import numpy as np
import pytest

from jobflow.core.layout import MAX, SUM, B, P, S, Signature
from jobflow.kernels import registry
from jobflow.ops.elementwise import divide, fill_like, multiply, negate, scale, square
from jobflow.ops.move import Roll
from jobflow.ops.op import Op
from jobflow.ops.pointwise import call
from jobflow.ops.scalar import detach
from jobflow.ops.scan import cumsum
from jobflow.ops.shape import transpose
from jobflow.ops.softmax import SoftmaxGrad

OPS = {cls.__name__: cls for cls in reversed(laws.concrete_ops())}
Change = Callable[[Any], Any]


@dataclass(frozen=True)
class Mistake:
    """A mistake: `change` returns the wrong method from the right one; at least one of `laws` must fail."""

    op: str
    method: str
    change: Change
    noticed_by: tuple[Callable[[Any], None], ...]
    what: str

    def __str__(self) -> str:
        return f"{self.op}.{self.method}: {self.what}"


def rule(op: str, what: str, **changes: Any) -> Mistake:
    """Return a mistake that changes fields of the rule; `spec` may be a function of the right one."""

    def change(right: Any) -> Any:
        def wrong(self: Op, *types: Any) -> Any:
            good = right(self, *types)
            return replace(good, **{k: v(good.spec) if callable(v) else v for k, v in changes.items()})

        return wrong

    return Mistake(op, "rule", change, (laws.shards_agree,), what)


def grad(op: str, what: str, wrong_of: Callable[..., Any]) -> Mistake:
    """Return a mistake with `wrong_of(right gradients, tensors)` instead of the right gradients."""

    def change(right: Any) -> Any:
        return lambda self, *tensors: wrong_of(list(right(self, *tensors)), tensors)

    return Mistake(op, "grad", change, (laws.gradient_is_right,), what)


def second(op: str, what: str, wrong_of: Callable[..., Any]) -> Mistake:
    """Return a mistake with right gradients whose own gradients are wrong."""
    return replace(grad(op, what, wrong_of), noticed_by=(laws.second_gradient_is_right,))


def kernel(op: str, what: str, after: Callable[..., None], *noticed_by: Callable[[Any], None]) -> Mistake:
    """Return a mistake that runs `after(self, arrays)` after the kernel."""

    def change(right: Any) -> Any:
        def wrong(self: Op, xp: Any, *arrays: Any) -> None:
            right(self, xp, *arrays)
            after(self, arrays)

        return wrong

    return Mistake(op, "kernel", change, noticed_by, what)


def localize(op: str, what: str, wrong: Callable[..., Op]) -> Mistake:
    return Mistake(op, "localize", lambda right: lambda self, ins, outs: wrong(self, right(self, ins, outs)), (laws.shards_agree,), what)


def calls(op: str, what: str, wrong: Callable[[list[Any]], list[Any]]) -> Mistake:
    """Return a mistake with wrong bound calls."""
    return Mistake(op, "bind", lambda right: lambda *arguments: wrong(list(right(*arguments))), (laws.bind_agrees,), what)


def halve_first(self: Op, arrays: Any) -> None:
    if arrays[-1].size:
        arrays[-1].reshape(-1)[:1] *= 0.5


def forget_last(self: Op, arrays: Any) -> None:
    y = arrays[-1]
    if y.ndim and len(y):
        y[-1] = np.nan


def clear_input(self: Op, arrays: Any) -> None:
    arrays[0][...] = 0


MISTAKES = [
    # rules: splits, linearity, reductions of partial results
    rule("Relu", "relu called linear", linear=((0,),)),
    rule("Sigmoid", "sigmoid called linear", linear=((0,),)),
    rule("Shift", "an added number called linear: it would be added n times", linear=((0,),)),
    rule("Square", "a square called linear", linear=((0,),)),
    rule("Multiply", "a product called jointly linear", linear=((0, 1),)),
    rule("Divide", "a quotient called linear in the divisor", linear=((1,),)),
    rule("Add", "a sum called linear in one operand alone", linear=((0,),)),
    rule("Where", "a selection called linear in one operand alone", linear=((1,),)),
    rule("ReduceMax", "parts of a maximum combined as a sum", reduce=SUM),
    rule("ReduceMin", "parts of a minimum combined as a maximum", reduce=MAX),
    rule("ReduceSum", "parts of a sum combined as a maximum", reduce=MAX),
    rule("ReduceProd", "a product split along the axis it is taken over", spec=str.lower),
    rule("ReduceMax", "a maximum of addends called the sum of maxima", linear=((0,),)),
    rule("ArgExtreme", "positions found within a piece", spec=str.lower),
    rule("SquareSum", "a sum of squares called linear", linear=((0,),)),
    rule("Softmax", "the class axis allowed to split", spec=str.lower),
    rule("LogSoftmax", "the class axis allowed to split", spec=str.lower),
    rule("SoftmaxCrossEntropy", "the class axis allowed to split", spec=str.lower),
    rule("SparseSoftmaxCrossEntropy", "the class axis allowed to split", spec=str.lower),
    rule("LayerNorm", "the normalised axis allowed to split", spec=str.lower),
    rule("LayerNormGrad", "gradients of gamma and beta called whole on every rank", spec=lambda spec: spec.replace("->aB,B,B", "->aB,aB,aB")),
    rule("MatMul", "the summed axis kept apart from its partner", spec=lambda spec: "mk,ln->mn"),
    rule("MatMul", "a product called jointly linear", linear=((0, 1),)),
    rule("BiasAdd", "a bias added n times", linear=((0,),)),
    rule("Conv", "spatial axes allowed to split", spec=lambda spec: spec.replace("X", "h")),
    rule("MaxPool", "a maximum called linear", linear=((0,),)),
    rule("Gather", "looked up rows of a split table called whole", also=(Signature((S(0), B), (B,)),)),
    rule("Concat", "split along the axis of concatenation", spec=str.lower),
    rule("Pad", "padding split along the padded axis", spec=str.lower),
    rule("Transpose", "axes that stay where they were", spec=lambda spec: f"{spec.split('->')[0]}->{spec.split('->')[0]}"),
    rule("Reshape", "merged axes split for every number of ranks", also=(Signature((S(0),), (S(0),)),)),
    rule("BroadcastTo", "a stretched axis called a sum", also=(Signature((P,), (S(0),)),)),
    rule("CausalSoftmax", "the key axis allowed to split", spec=str.lower),
    rule("CumSum", "running sums within a piece", spec=str.lower),
    rule("CumProd", "a running product called linear", linear=((0,),)),
    rule("CumProdTail", "called linear in the factors", linear=((0,),)),
    rule("Sort", "an order found within a piece", spec=str.lower),
    rule("TopK", "the largest of a piece", spec=lambda spec: spec.lower()),
    rule("Scatter", "writing called linear in what is there alone", linear=((0,),)),
    rule("Scatter", "positions and what goes there split apart", also=(Signature((S(1), B, S(1)), (S(1),)),)),
    rule("Subscript", "a piece of a window called a piece of the result", also=(Signature((S(0),), (S(0),)), Signature((S(1),), (S(1),)))),
    rule("SliceUpdate", "new values for each piece of a window", also=(Signature((S(0), S(0)), (S(0),)), Signature((S(1), S(1)), (S(1),)))),
    rule("SliceUpdate", "writing called linear in what is there alone", linear=((0,),)),
    rule("Roll", "rolling within a piece", spec=str.lower),
    rule("PadEdges", "the edges of a piece", spec=str.lower),
    rule("AdaptiveAvgPool", "windows of a piece", spec=str.lower),
    rule("NegativeLogLikelihood", "classes of a piece called the whole loss", also=(Signature((S(1), B), (B,)),)),
    rule("Remainder", "a remainder called linear", linear=((0,),)),
    rule("Silu", "silu called linear", linear=((0,),)),
    # gradients
    grad("Multiply", "the factors swapped", lambda grads, tensors: grads[::-1]),
    grad("Subtract", "a sign lost", lambda grads, tensors: [grads[0], negate(grads[1])]),
    grad("Relu", "half the gradient", lambda grads, tensors: [scale(grads[0], 0.5)]),
    grad("Exp", "the input in place of the output", lambda grads, tensors: [multiply(tensors[2], tensors[0])]),
    grad("Tanh", "1 - y instead of 1 - y^2", lambda grads, tensors: [multiply(tensors[2], negate(square(tensors[0])))]),
    grad("Gelu", "no gradient", lambda grads, tensors: [None]),
    grad("ReduceSum", "divided as a mean would be", lambda grads, tensors: [scale(grads[0], 1 / tensors[0].tensor_type.size)]),
    grad("Maximum", "the gradient given to both", lambda grads, tensors: [grads[0], grads[0]] if tensors[0].shape == tensors[1].shape else grads),
    grad("MatMul", "a sign lost", lambda grads, tensors: [scale(grads[0], -1.0), grads[1]]),
    grad("Transpose", "the order of axes not inverted", lambda grads, tensors: [transpose(grads[0], range(grads[0].tensor_type.ndim)[::-1])]),
    grad("SparseSoftmaxCrossEntropy", "a missing factor", lambda grads, tensors: [scale(grads[0], 2.0), *grads[1:]]),
    grad("LayerNorm", "gamma's gradient given to beta", lambda grads, tensors: [grads[0], grads[2], grads[1]]),
    grad("Softmax", "the gradient of exp alone", lambda grads, tensors: [multiply(tensors[1], tensors[2])]),
    grad("Conv", "the weight's gradient forgotten", lambda grads, tensors: [grads[0], None, *grads[2:]]),
    grad("MaxPool", "twice the gradient", lambda grads, tensors: [scale(grads[0], 2.0)]),
    grad("Concat", "pieces in the wrong order", lambda grads, tensors: list(grads)[::-1]),
    grad("Gather", "the table's gradient forgotten", lambda grads, tensors: [None, None]),
    grad("CumSum", "in the same direction", lambda grads, tensors: [cumsum(tensors[2], 1)]),
    grad("CumProd", "as if no factor were 0", lambda grads, tensors: [divide(grads[0], tensors[0])]),
    grad("ReduceProd", "the product with the element itself", lambda grads, tensors: [multiply(grads[0], tensors[0])]),
    grad("Sort", "in the order of the result", lambda grads, tensors: [tensors[3]]),
    grad("Scatter", "what was overwritten counts too", lambda grads, tensors: [tensors[4], *grads[1:]]),
    grad("SliceUpdate", "what was overwritten counts too", lambda grads, tensors: [tensors[3], grads[1]]),
    grad("Remainder", "no gradient of the divisor", lambda grads, tensors: [grads[0], None]),
    grad("Roll", "rolled on", lambda grads, tensors: [call(Roll((2, 0)), tensors[2])] if tensors[0].tensor_type.ndim == 2 else grads),
    grad("PadEdges", "the elements beyond forgotten", lambda grads, tensors: [fill_like(grads[0], 1.0)]),
    grad("AdaptiveAvgPool", "not divided", lambda grads, tensors: [scale(grads[0], 2.0)]),
    grad("NegativeLogLikelihood", "a sign lost", lambda grads, tensors: [negate(grads[0]), None]),
    grad("SoftmaxGrad", "y taken for a constant", lambda grads, tensors: [None, grads[1]]),
    grad("LayerNormGrad", "the statistics taken for constants", lambda grads, tensors: [*grads[:3], None, None]),
    grad("BatchNormalizeGrad", "gamma taken for a constant", lambda grads, tensors: [*grads[:4], None, *grads[5:]]),
    grad("ElementwiseGrad", "the slope in place of the bend", lambda grads, tensors: [grads[1], grads[1]]),
    grad("CumProdTail", "in the same direction", lambda grads, tensors: [grads[0], cumsum(tensors[3], 1)]),
    second("Square", "x taken for a constant", lambda grads, tensors: [multiply(tensors[2], scale(detach(tensors[0]), 2.0))]),
    second("Softmax", "y taken for a constant", lambda grads, tensors: [call(SoftmaxGrad(1), detach(tensors[1]), tensors[2])]),
    second("MatMul", "the gradient of the result cut off", lambda grads, tensors: [detach(grads[0]), grads[1]]),
    # kernels
    kernel("ReduceSum", "an element left out", halve_first, laws.shards_agree, laws.gradient_is_right),
    kernel("Add", "the last row not computed", forget_last, laws.bind_agrees),
    kernel("SumTo", "an input used as scratch", clear_input, laws.kernel_fills),
    kernel("Tanh", "a wrong first element", halve_first, laws.shards_agree),
    kernel("UnsortedSegmentSum", "a wrong first row", halve_first, laws.shards_agree, laws.gradient_is_right),
    # boxes, types
    localize("Gather", "the offset forgotten", lambda self, local: self),
    localize("Gather", "an offset off by one", lambda self, local: replace(local, offset=local.offset + 1) if local.offset else local),
    localize("UnsortedSegmentSum", "the offset forgotten", lambda self, local: replace(local, offset=0)),
    localize("SparseSoftmaxCrossEntropyGrad", "the first class of the piece forgotten", lambda self, local: replace(local, offset=0)),
    localize("SparseCrossEntropy", "the first class of the piece forgotten", lambda self, local: replace(local, offset=0)),
    localize("SparseCrossEntropyGrad", "the first class of the piece forgotten", lambda self, local: self),
    localize("OneHot", "an offset off by one", lambda self, local: replace(local, offset=local.offset + 1)),
    localize("DimGather", "the offset forgotten", lambda self, local: self),
    localize("Tril", "the diagonal of the piece", lambda self, local: self),
    localize("Triu", "the diagonal of the piece", lambda self, local: self),
    localize("Scatter", "the offset forgotten", lambda self, local: self),
    localize("SliceUpdate", "the window of the whole", lambda self, local: self),
    localize("Subscript", "the window of the whole", lambda self, local: self),
    localize("SliceGrad", "the window of the whole", lambda self, local: self),
    localize("NegativeLogLikelihood", "the first class of the piece forgotten", lambda self, local: replace(local, offset=0)),
    localize("NegativeLogLikelihoodGrad", "the first class of the piece forgotten", lambda self, local: replace(local, offset=0)),
    localize("Slice", "logical sizes on a piece", lambda self, local: self),
    localize("Reshape", "the logical shape on a piece", lambda self, local: self),
    localize("RandomUniform", "every rank draws the same numbers", lambda self, local: replace(local, box=replace_start(local))),
    Mistake(
        "ReduceSum", "infer", lambda right: lambda self, x: right(self, x).with_shape((1, *right(self, x).shape)), laws.LAWS[:2], "an axis too many"
    ),
    # steps at the preparation of calls
    calls("Relu", "the bound calls do nothing", lambda good: []),
    calls("Multiply", "an argument too many times", lambda good: good + good[-1:] + [(np.add, (good[-1][1][-1], 1, good[-1][1][-1]))]),
    calls("CumSum", "the first element not written", lambda good: good[1:]),
    calls("PadEdges", "the last element not written", lambda good: good[:-1]),
    calls("ElementwiseGrad", "the gradient of the result forgotten", lambda good: good[:-1]),
    calls("SgdUpdate", "the update applied twice", lambda good: good + good),
    Mistake("Transpose", "view", lambda right: lambda self, x: x.transpose(), (laws.view_is_right,), "all axes reversed"),
]


def replace_start(local: Any) -> Any:
    """Return a box of the same size at the origin."""
    return None if local.box is None else replace(local.box, spans=tuple((0, b - a) for a, b in local.box.spans))


def breaks_a_law(mistake: Mistake) -> bool:
    """Return True if a law fails on a sample, by its own assertion or by an error of the broken op."""
    for sample in OPS[mistake.op].samples():
        for law in mistake.noticed_by:
            try:
                law(sample)
            except Exception:  # noqa: BLE001 - whatever stops a law has been noticed
                return True
    return False


@pytest.mark.parametrize("mistake", MISTAKES, ids=str)
def test_a_mistake_breaks_a_law(mistake: Mistake, monkeypatch: pytest.MonkeyPatch) -> None:
    assert not breaks_a_law(mistake), "the op breaks a law without the mistake"
    owner: Any = registry if mistake.method == "bind" else OPS[mistake.op]  # the registry selects implementations by type
    monkeypatch.setattr(owner, mistake.method, mistake.change(getattr(owner, mistake.method)))
    assert breaks_a_law(mistake), f"no law noticed {mistake}"
