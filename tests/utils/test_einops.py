"""einops on tensors: eagerly, compiled, in graphs, and on ranks; its layers."""

from __future__ import annotations

import copy
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import einops
import numpy as np
import pytest
from ranks import with_ranks

import jobflow as flow
import jobflow.typing as tp
from jobflow import nn
from jobflow.core.layout import B, P, S
from jobflow.engine.placements import placement
from jobflow.utils.einops_layers import EinMix, Rearrange, Reduce

VALUE = np.random.default_rng(0).standard_normal((4, 6, 8))
#: calls of einops on a tensor or array
CASES: dict[str, Callable[[Any], Any]] = {
    "rearrange": lambda x: einops.rearrange(x, "a b c -> (c a) b"),
    "rearrange in parts": lambda x: einops.rearrange(x, "a (b d) (c e) -> b d a (e c)", b=3, c=2),
    "rearrange a list": lambda x: einops.rearrange([x, x], "n a b c -> a (n b) c"),
    "reduce by sum": lambda x: einops.reduce(x, "a b (c d) -> a c", "sum", d=2),
    "reduce by mean": lambda x: einops.reduce(x, "a b c -> b ()", "mean"),
    "reduce by max": lambda x: einops.reduce(x, "a b (c d) -> d a", "max", d=2),
    "reduce by min": lambda x: einops.reduce(x, "a b c -> c", "min"),
    "reduce by prod": lambda x: einops.reduce(x, "a b c -> a", "prod"),
    "reduce by any": lambda x: einops.reduce(x > 1, "a b c -> a c", "any"),
    "reduce by all": lambda x: einops.reduce(x > -3, "a b c -> b", "all"),
    "repeat": lambda x: einops.repeat(x, "a b c -> a k b (c r)", k=2, r=3),
    "einsum": lambda x: einops.einsum(x, x, "a b c, a d c -> a b d"),
    "pack": lambda x: einops.pack([x, x[:, 0]], "a * c")[0],
    "unpack": lambda x: einops.unpack(x, [(2,), (4,)], "a * c")[1],
}


def check(y: Any, expected: Any) -> None:
    np.testing.assert_allclose(y.detach().numpy(), expected, rtol=1e-9)


@pytest.mark.parametrize("case", CASES)
@with_ranks(1, 2)
def test_functions_equal_numpy(rank: int, n: int, case: str) -> None:
    function = CASES[case]
    expected = function(VALUE)
    compiled = flow.compile(function)
    for layout in (None, B, S(0), S(2), P):
        if layout is None:
            x = flow.tensor(VALUE)
        else:
            x = flow.tensor(VALUE, placement=placement("cpu", range(n)), sbp=layout)
        check(function(x), expected)
        check(compiled(x), expected)


class Wrapped(nn.Graph):
    def __init__(self, function: Callable[[Any], Any]) -> None:
        super().__init__()
        self.function = function

    def build(self, x: Any) -> Any:
        return self.function(x)


def test_functions_are_recorded_in_graphs() -> None:
    for function in CASES.values():
        check(Wrapped(function)(flow.tensor(VALUE)), function(VALUE))


def test_functions_are_compiled(capsys: pytest.CaptureFixture[str]) -> None:
    x = flow.tensor(VALUE, requires_grad=True)
    program = flow.compile(lambda x: einops.reduce(einops.rearrange(x, "a b c -> b (a c)"), "b (k two) -> two", "sum", two=2) * 1.5, fullgraph=True)
    program(x).sum().backward()
    check(x.grad, np.full(VALUE.shape, 1.5))


def test_job_functions_call_einops() -> None:
    names = [name for name in CASES if "pack" not in name and not name.endswith(("any", "all"))]  # jobs have no subscripts and no booleans
    x = VALUE.astype(np.float32)

    @flow.global_function()
    def job(x: tp.Numpy.Placeholder(VALUE.shape)) -> list[tp.Numpy]:
        return [CASES[name](x) for name in names]

    for y, name in zip(job(x), names, strict=True):
        np.testing.assert_allclose(y, CASES[name](x), rtol=1e-4, atol=1e-5, err_msg=name)


def model() -> nn.Module:
    mix = EinMix("a (h c) -> a (o h)", weight_shape="h c o", bias_shape="o h", h=2, c=24, o=5)
    return nn.Sequential(Rearrange("a b c -> a (b c)"), mix, Reduce("a (d e) -> a d", "mean", e=2)).to(flow.float64)


def test_layers_are_modules() -> None:
    flow.manual_seed(0)
    net = model()
    assert repr(net[0]) == "Rearrange('a b c -> a (b c)')" and [*dict(net.named_parameters())] == ["1.weight", "1.bias"]
    x = flow.tensor(VALUE)
    w, b = (p.detach().numpy() for p in net.parameters())
    mixed = np.einsum("ahc,hco->aoh", VALUE.reshape(4, 2, 24), w) + b
    expected = mixed.reshape(4, 5, 2).mean(2)
    for each in (net, flow.compile(net), copy.deepcopy(net), Wrapped(net)):
        check(each(x), expected)
    net(x).sum().backward()
    assert all(p.grad is not None and p.grad.abs().sum().item() > 0 for p in net.parameters())
    assert einops.rearrange(x, "a b c -> c b a").shape == (8, 6, 4)


ORDERS = {
    "einops first": "import einops; import jobflow as flow; x = flow.ones(2, 3)",
    "einops last": "import sys; import jobflow as flow; x = flow.ones(2, 3); assert 'einops' not in sys.modules; import einops",
}


@pytest.mark.parametrize("order", ORDERS)
def test_the_order_of_imports_does_not_matter(order: str) -> None:
    program = f"{ORDERS[order]}; print(*einops.rearrange(x, 'a b -> b a').shape)"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert done.stdout.split() == ["3", "2"], done.stderr
