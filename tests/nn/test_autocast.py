"""`flow.autocast` and `amp.GradScaler`: element types, gradients, compiled functions, graphs and ranks."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from ranks import on_ranks

import jobflow as flow
import jobflow.nn.functional as F
from jobflow import nn
from jobflow.core.errors import ArgumentError, CheckpointError, ConfigError, DtypeError, JobError

HALF, SINGLE = flow.bfloat16, flow.float32
X, Y, IMAGES = (np.random.default_rng(0).standard_normal(shape).astype(np.float32) for shape in ((8, 16), (8, 4), (4, 3, 8, 8)))


class Attention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.attention = nn.Linear(8, 16), nn.MultiheadAttention(16, 4, batch_first=True)

    def forward(self, x: flow.Tensor) -> flow.Tensor:
        x = self.first(x)
        return self.attention(x, x, x, need_weights=False)[0]


MODELS: dict[str, tuple[Callable[[], nn.Module], np.ndarray[Any, Any], Any]] = {
    "mlp": (lambda: nn.Sequential(nn.Linear(16, 32), nn.LayerNorm(32), nn.GELU(), nn.Linear(32, 4)), X, HALF),
    "convolutions": (
        lambda: nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(72, 4)),
        IMAGES,
        HALF,
    ),
    "attention": (Attention, IMAGES[:, 0], HALF),
    "encoder": (lambda: nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True), IMAGES[:, 0], SINGLE),
    "recurrent": (lambda: nn.Sequential(nn.Linear(8, 8), nn.GRU(8, 4, batch_first=True)), IMAGES[:, 0], SINGLE),
}


@pytest.mark.parametrize("case", MODELS)
def test_models_train_in_half_precision(case: str) -> None:
    create, data, dtype = MODELS[case]
    flow.manual_seed(0)
    model, x = create(), flow.tensor(data)
    out = model(x)
    expected = out[0] if isinstance(out, tuple) else out
    with flow.autocast("cpu"):
        out = model(x)
        y = out[0] if isinstance(out, tuple) else out
        loss = F.mse_loss(y, flow.zeros_like(y))
        loss.backward()  # backward inside the block has the types of forward, too
    assert y.dtype is dtype and loss.dtype is SINGLE and all(p.grad.dtype is SINGLE for p in model.parameters())
    np.testing.assert_allclose(y.detach().float().numpy(), expected.detach().numpy(), atol=0.03)


def test_operations_have_the_types_of_their_category() -> None:
    a = flow.tensor(X[:4, :4])
    with flow.autocast("cpu"):
        products = (a @ a, flow.mm(a, a), flow.einsum("ij,jk->ik", a, a), F.linear(a, a, a[0]), F.scaled_dot_product_attention(a, a, a), a.mv(a[0]))
        assert all(y.dtype is HALF for y in products)
        half = a @ a
        singles = (half.sum(), half.exp(), half + a, F.cross_entropy(half, flow.tensor([0, 1, 2, 3])), half.norm(), F.l1_loss(half, half * 2))
        assert all(y.dtype is SINGLE for y in singles)
        assert F.relu(half).dtype is HALF and (half * 2).dtype is HALF and half.reshape(-1).dtype is HALF
        assert flow.addmm(a, a, a).dtype is HALF and flow.baddbmm(a[None], a[None], a[None]).dtype is HALF
        assert (a.double() @ a.double()).dtype is flow.float64
        with flow.autocast("cpu", enabled=False):
            assert (a @ a).dtype is SINGLE and not flow.is_autocast_enabled()
        with flow.amp.autocast("cpu", dtype=flow.float16):
            assert (a @ a).dtype is flow.float16 and flow.get_autocast_dtype("cpu") is flow.float16
        assert flow.is_autocast_enabled()
    assert (a @ a).dtype is SINGLE and not flow.is_autocast_enabled()

    @flow.autocast(device_type="cpu")
    def product() -> flow.Tensor:
        return a @ a

    assert product().dtype is HALF and product().dtype is HALF


def trained(rank: int, kind: str, placed: bool = False) -> list[float]:
    """Return the losses of four steps in half precision; the parameters remain float32."""
    flow.manual_seed(0)
    model = nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 4))
    x, y = flow.tensor(X), flow.tensor(Y)
    if placed:
        where = flow.placement("cpu", [0, 1])
        model = model.to_global(where, flow.sbp.broadcast)
        x, y = (each.to_global(where, flow.sbp.broadcast).to_global(where, flow.sbp.split(0)) for each in (x, y))
    optimizer = flow.optim.SGD(model.parameters(), lr=0.125)

    def loss_of() -> flow.Tensor:
        with flow.autocast("cpu"):
            out = model(x)
            assert out.dtype is HALF
            return F.mse_loss(out, y)

    def step() -> flow.Tensor:
        optimizer.zero_grad()
        loss = loss_of()
        loss.backward()
        optimizer.step()
        return loss

    class Training(nn.Graph):
        def __init__(self) -> None:
            super().__init__()
            self.model = model
            self.add_optimizer(optimizer)

        def build(self) -> flow.Tensor:
            loss = loss_of()
            loss.backward()
            return loss

    run = {"eager": step, "compiled": flow.compile(step)}.get(kind) or Training()
    losses = [float(run()) for _ in range(4)]
    assert model[0].weight.dtype is SINGLE
    return losses


def test_compiled_steps_graphs_and_ranks_have_the_losses_of_eager_steps() -> None:
    expected = trained(0, "eager")
    for kind in ("compiled", "graph"):
        np.testing.assert_allclose(trained(0, kind), expected, rtol=1e-2)
    for kind in ("eager", "graph"):
        for losses in on_ranks(2, trained, kind, True):
            np.testing.assert_allclose(losses, expected, rtol=1e-2)


def test_a_block_outside_selects_another_program() -> None:
    a = flow.tensor(X)
    product = flow.compile(lambda: a @ a.T)
    assert product().dtype is SINGLE
    with flow.autocast("cpu"):
        assert product().dtype is HALF
    assert product().dtype is SINGLE


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("tpu",), "device_type must be"),
        ((3,), "device_type must be"),
        (("cpu", "half"), "dtype must be bfloat16 or float16; got 'half'"),
        (("cpu", flow.bfloat16, 3), "enabled must be True or False; got 3"),
    ],
)
def test_invalid_arguments_of_autocast_raise(arguments: tuple[Any, ...], message: str) -> None:
    with pytest.raises(ArgumentError, match=rf"autocast at test_autocast.py:\d+: {message}"):
        flow.autocast(*arguments)


def test_a_scaler_skips_steps_with_infinite_gradients() -> None:
    p = nn.Parameter(flow.ones(2))
    optimizer = flow.optim.SGD([p], lr=0.5)
    scaler = flow.amp.GradScaler("cpu", init_scale=8.0, growth_factor=4.0, backoff_factor=0.25, growth_interval=2)
    scales = []
    for factor in (1.0, np.inf, 1.0, 1.0):
        optimizer.zero_grad()
        scaler.scale((p * factor).sum()).backward()
        scaler.step(optimizer)
        scaler.update()
        scales.append(scaler.get_scale())
    assert scales == [8.0, 2.0, 2.0, 8.0] and p.tolist() == [-0.5, -0.5]
    other = flow.cuda.amp.GradScaler(16.0)
    other.load_state_dict(scaler.state_dict())
    assert other.state_dict() == scaler.state_dict() and set(other.state_dict()) == {
        "scale", "growth_factor", "backoff_factor", "growth_interval", "_growth_tracker"
    }  # fmt: skip
    optimizer.zero_grad()
    scaler.scale([p.sum(), {"loss": p.sum()}])[1]["loss"].backward()
    scaler.unscale_(optimizer)
    assert p.grad.tolist() == [1.0, 1.0]
    scaler.step(optimizer)
    scaler.update(new_scale=2.0)
    assert scaler.get_scale() == 2.0
    off = flow.amp.GradScaler(enabled=False)
    assert off.scale(p) is p and off.get_scale() == 1.0 and off.state_dict() == {} and not off.is_enabled()


def test_wrong_uses_of_a_scaler_raise() -> None:
    p = nn.Parameter(flow.ones(2))
    optimizer = flow.optim.SGD([p], lr=0.5)
    scaler = flow.amp.GradScaler("cpu")
    p.grad = flow.ones(2)
    with pytest.raises(JobError, match=r"GradScaler.update at test_autocast.py:\d+: no gradients were checked"):
        scaler.update()
    scaler.unscale_(optimizer)
    with pytest.raises(JobError, match="unscale_ was already called"):
        scaler.unscale_(optimizer)
    scaler.step(optimizer)
    with pytest.raises(JobError, match="step was already called"):
        scaler.step(optimizer)
    with pytest.raises(JobError, match=r"unscale_ is called after step\(\)"):
        scaler.unscale_(optimizer)
    with pytest.raises(ArgumentError, match="closures are not supported"):
        scaler.step(optimizer, closure=lambda: 0.0)
    with pytest.raises(ArgumentError, match="optimizer must be an optimizer; got int"):
        scaler.step(3)
    with pytest.raises(ArgumentError, match="outputs must be a tensor"):
        scaler.scale(3)
    with pytest.raises(CheckpointError, match="the state lacks scale"):
        scaler.load_state_dict({})
    for options, message in (
        ({"init_scale": -1}, "init_scale must be positive and finite, not -1"),
        ({"growth_factor": 1.0}, "growth_factor must be above 1, not 1.0"),
        ({"backoff_factor": 2}, "backoff_factor must be between 0 and 1, not 2"),
        ({"growth_interval": 0}, "growth_interval must be an integer of at least 1, not 0"),
        ({"device": None}, 'device must be "cpu" or "cuda", not None'),
    ):
        with pytest.raises(ConfigError, match=message):
            flow.amp.GradScaler(**options)
    graph = nn.Graph()
    with pytest.raises(ConfigError, match=r"backoff_factor must be 1 / growth_factor = 0\.5 in a graph; got 0\.25"):
        graph.set_grad_scaler(flow.amp.GradScaler(backoff_factor=0.25))
    small = nn.Parameter(flow.ones(2, dtype=flow.float16))
    small.grad = flow.ones(2, dtype=flow.float16)
    with pytest.raises(DtypeError, match="keep parameters in float32"):
        flow.amp.GradScaler("cpu").step(flow.optim.SGD([small]))
