"""Compiled training steps equal eager ones to 1e-12 in float64: optimizers, schedules, layers, gradients, layouts, modules."""

from __future__ import annotations

import copy
import pickle
import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from ranks import on_ranks

import jobflow as flow
import jobflow.nn.functional as F
from jobflow import nn
from jobflow.core.errors import ArgumentError, JobError
from jobflow.nn.utils import clip_grad_norm_, clip_grad_value_
from jobflow.optim import LAMB, SGD, Adadelta, Adagrad, Adam, AdamW, RMSprop
from jobflow.optim.lr_scheduler import CosineAnnealingLR, LambdaLR, StepLR

CLOSE = 1e-12
ROWS = (5, 5, 5, 3, 5)


class Net(nn.Module):
    def __init__(self, drop: float = 0.0, tied: bool = False, norm: bool = True) -> None:
        super().__init__()
        self.conv = nn.Conv2d(2, 4, 3, padding=1, bias=False)
        self.norm = nn.BatchNorm2d(4) if norm else None
        self.hidden = nn.Linear(36, 36)
        self.drop = nn.Dropout(drop)
        self.out = nn.Linear(36, 3)
        self.tied, self.scale = tied, 1.0

    def forward(self, x: Any) -> Any:
        x = self.conv(x)
        if self.norm is not None:
            x = self.norm(x)
        x = self.hidden(F.relu(x).mean(1).flatten(1))
        if self.tied:
            x = F.linear(x, self.hidden.weight)
        return self.out(self.drop(x)) * self.scale


class Loop:
    """A model, an optimizer and a training step, whose parts the cases replace."""

    def __init__(self, **net: Any) -> None:
        flow.manual_seed(3)
        self.net = Net(**net).to(flow.float64)
        self.optimizer: Any = Adam(self.net.parameters(), 0.01)
        self.schedule: Any = None
        self.clip: Callable[[], Any] = lambda: None
        self.averages = [p.detach().clone() for p in self.net.parameters()]

    def step(self, x: Any, y: Any) -> Any:
        self.optimizer.zero_grad()
        loss = F.cross_entropy(self.net(x), y)
        loss.backward()
        norm = self.clip()
        self.optimizer.step()
        if self.schedule is not None:
            self.schedule.step()
        return loss if norm is None else (loss, norm)

    def before(self, i: int) -> None:
        """Run the change of the case between steps."""

    def state(self) -> list[Any]:
        net, slots = self.net, self.optimizer.state
        slots_of_all = [x for p in net.parameters() for x in slots.get(p, {}).values()]
        grads = [p.grad for p in net.parameters() if p.grad is not None]
        return [*net.parameters(), *net.buffers(), *slots_of_all, *grads, *self.averages, *[group["lr"] for group in self.optimizer.param_groups]]


class ZeroLast(Loop):
    def step(self, x: Any, y: Any) -> Any:
        loss = F.cross_entropy(self.net(x), y)
        loss.backward()
        self.optimizer.step()
        self.optimizer.zero_grad()
        return loss.detach()


class Zeros(Loop):
    def step(self, x: Any, y: Any) -> Any:
        self.optimizer.zero_grad(set_to_none=False)
        loss = F.cross_entropy(self.net(x), y)
        loss.backward()
        self.optimizer.step()
        return {"loss": loss}


class Accumulated(Loop):
    def step(self, x: Any, y: Any) -> Any:
        self.optimizer.zero_grad()
        for part, truth in zip(x.chunk(2), y.chunk(2), strict=True):
            loss = F.cross_entropy(self.net(part), truth) / 2
            loss.backward()
        self.optimizer.step()
        return loss


class Micro(Loop):
    """A loop that accumulates gradients over two calls, and steps outside of the plan."""

    def step(self, x: Any, y: Any) -> Any:
        loss = F.cross_entropy(self.net(x), y) / 2
        loss.backward()
        return loss

    def before(self, i: int) -> None:
        if i and i % 2 == 0:
            self.optimizer.step()
            self.optimizer.zero_grad()


class Averaged(Loop):
    def step(self, x: Any, y: Any) -> Any:
        result = super().step(x, y)
        with flow.no_grad():
            for average, p in zip(self.averages, self.net.parameters(), strict=True):
                average.mul_(0.9).add_(p, alpha=0.1)
        return result


class Twice(Loop):
    """A loop with two optimizers; the second loss reads parameters that the first optimizer changed."""

    def __init__(self) -> None:
        super().__init__()
        self.second = SGD(self.net.out.parameters(), 0.1, momentum=0.5)

    def step(self, x: Any, y: Any) -> Any:
        first = super().step(x, y)
        self.second.zero_grad()
        loss = F.cross_entropy(self.net(x), y)
        loss.backward()
        self.second.step()
        return first, loss


class Grads(Loop):
    """A loop that computes gradients by flow.autograd.grad, changes them and assigns them."""

    def step(self, x: Any, y: Any) -> Any:
        parameters = list(self.net.parameters())
        loss = F.cross_entropy(self.net(x), y)
        for p, gradient in zip(parameters, flow.autograd.grad(loss, parameters), strict=True):
            p.grad = gradient * 0.5
        parameters[0].grad.mul_(2.0)
        self.optimizer.step()
        return loss


class Sharpness(Loop):
    """Take the gradient at parameters that are moved along the gradient and then restored."""

    def step(self, x: Any, y: Any) -> Any:
        parameters = list(self.net.parameters())
        F.cross_entropy(self.net(x), y).backward()
        with flow.no_grad():
            before = [p.clone() for p in parameters]
            for p in parameters:
                p.add_(p.grad, alpha=0.05)
        self.optimizer.zero_grad()
        loss = F.cross_entropy(self.net(x), y)
        loss.backward()
        with flow.no_grad():
            for p, old in zip(parameters, before, strict=True):
                p.copy_(old)
        self.optimizer.step()
        self.optimizer.zero_grad()
        return loss


class Penalty(Loop):
    """A loop with the norm of a gradient in the loss."""

    def step(self, x: Any, y: Any) -> Any:
        self.optimizer.zero_grad()
        x = x.detach().requires_grad_()
        loss = F.cross_entropy(self.net(x), y)
        (gradient,) = flow.autograd.grad(loss, [x], create_graph=True)
        total = loss + gradient.square().sum()
        total.backward()
        self.optimizer.step()
        return total


def loop_of(kind: type[Loop] = Loop, change: Callable[[Any, int], Any] | None = None, **parts: Any) -> Callable[[], Loop]:
    """Return a builder of loops of a class, with replaced parts and a change before every step."""

    def build() -> Loop:
        net = parts.get("net", {})
        loop = kind(**net) if net else kind()
        if "optimizer" in parts:
            loop.optimizer = parts["optimizer"](loop.net.parameters())
        if "schedule" in parts:
            loop.schedule = parts["schedule"](loop.optimizer)
        if "clip" in parts:
            loop.clip = lambda: parts["clip"](loop.net.parameters())
        if change is not None:
            loop.before = lambda i: change(loop, i)  # type: ignore[method-assign]
        return loop

    return build


#: (builder, most traces)
CASES: dict[str, tuple[Callable[[], Loop], int]] = {
    "adam": (loop_of(), 2),
    "sgd": (loop_of(optimizer=lambda p: SGD(p, 0.1)), 2),
    "momentum": (loop_of(optimizer=lambda p: SGD(p, 0.1, momentum=0.9, weight_decay=0.01, nesterov=True)), 2),
    "adamw": (loop_of(optimizer=lambda p: AdamW(p, 0.01, weight_decay=0.1)), 2),
    "rmsprop": (loop_of(optimizer=lambda p: RMSprop(p, 0.01)), 2),
    "adagrad": (loop_of(optimizer=lambda p: Adagrad(p, 0.1)), 2),
    "adadelta": (loop_of(optimizer=lambda p: Adadelta(p, 0.1)), 2),
    "lamb": (loop_of(optimizer=lambda p: LAMB(p, 0.01, weight_decay=0.1)), 2),
    "step schedule": (loop_of(schedule=lambda o: StepLR(o, 2, 0.5)), 2),
    "cosine schedule": (loop_of(schedule=lambda o: CosineAnnealingLR(o, 10)), 2),
    "lambda schedule": (loop_of(schedule=lambda o: LambdaLR(o, lambda t: 1 / (1 + t))), 2),
    "dropout": (loop_of(net={"drop": 0.5}), 2),
    "tied weights": (loop_of(net={"tied": True}), 2),
    "without norm": (loop_of(net={"norm": False}), 2),
    "clipped norm": (loop_of(clip=lambda p: clip_grad_norm_(p, 0.1)), 2),
    "largest norm": (loop_of(clip=lambda p: clip_grad_norm_(p, 0.01, float("inf"))), 2),
    "clipped values": (loop_of(clip=lambda p: clip_grad_value_(p, 0.01)), 2),
    "gradients are zeroed last": (loop_of(ZeroLast), 2),
    "gradients become zeros": (loop_of(Zeros), 3),
    "parts of the batch": (loop_of(Accumulated), 2),
    "gradients add up over calls": (loop_of(Micro), 4),
    "averages": (loop_of(Averaged), 2),
    "two optimizers": (loop_of(Twice), 2),
    "gradients are assigned": (loop_of(Grads), 2),
    "gradient penalty": (loop_of(Penalty, net={"norm": False}), 2),
    "sharpness": (loop_of(Sharpness), 2),
    "changed rate": (loop_of(change=lambda loop, i: loop.optimizer.param_groups[0].update(lr=0.01 / (i + 1))), 2),
    "changed betas": (loop_of(change=lambda loop, i: loop.optimizer.param_groups[0].update(betas=(0.9 if i < 2 else 0.8, 0.99))), 4),
    "changed attribute": (loop_of(change=lambda loop, i: setattr(loop.net, "scale", 1.0 if i < 2 else 0.5)), 3),
    "changed dropout": (loop_of(change=lambda loop, i: setattr(loop.net.drop, "p", 0.1 * (i // 2)), net={"drop": 0.5}), 4),
    "evaluation by turns": (loop_of(change=lambda loop, i: loop.net.train(i % 2 == 0), net={"drop": 0.5}), 4),
    "frozen": (loop_of(change=lambda loop, i: loop.net.conv.weight.requires_grad_(i < 2)), 4),
    "changed parameters": (loop_of(change=lambda loop, i: loop.net.hidden.weight.data.mul_(0.9)), 2),
    "loaded optimizer": (loop_of(change=lambda loop, i: loop.optimizer.load_state_dict(copy.deepcopy(loop.optimizer.state_dict()))), 6),
    "seeds": (loop_of(change=lambda loop, i: flow.manual_seed(i // 2), net={"drop": 0.5}), 4),
}


def _arrays(x: Any) -> list[Any]:
    """Return the values of nested tensors."""
    if isinstance(x, dict | list | tuple):
        return [array for each in (x.values() if isinstance(x, dict) else x) for array in _arrays(each)]
    return [x.detach().numpy().copy() if isinstance(x, flow.Tensor) else np.array(x)]


def _trained(build: Callable[[], Loop], compiled: bool) -> tuple[list[Any], list[str]]:
    loop, random = build(), np.random.RandomState(0)
    step = flow.compile(loop.step, fullgraph=True) if compiled else loop.step
    results: list[Any] = []
    for i, n in enumerate(ROWS):
        loop.before(i)
        x, y = flow.tensor(random.standard_normal((n, 2, 6, 6))), flow.tensor(random.randint(0, 3, n))
        results += _arrays(step(x, y))
    return results + _arrays(loop.state()), step.traces if compiled else []


def _close(got: list[Any], want: list[Any]) -> None:
    assert len(got) == len(want)
    for a, b in zip(got, want, strict=True):
        np.testing.assert_allclose(a, b, rtol=CLOSE, atol=CLOSE)


@pytest.mark.parametrize("case", CASES)
def test_a_compiled_step_equals_the_eager_step(case: str) -> None:
    build, most = CASES[case]
    got, traces = _trained(build, True)
    _close(got, _trained(build, False)[0])
    assert len(traces) <= most, traces


# -------------------------------------------------------------------- results that are differentiated outside


def _outside(compiled: bool, how: str) -> list[Any]:
    flow.manual_seed(0)
    net = Net(drop=0.3).to(flow.float64)
    first = nn.Conv2d(2, 2, 1).to(flow.float64)
    optimizer = Adam([*net.parameters(), *first.parameters()], 0.01)
    call: Any = flow.compile(net, fullgraph=True) if compiled else net
    if how == "in place":
        call = net
        if compiled:
            net.compile(fullgraph=True)
    random, results = np.random.RandomState(0), []
    for n in ROWS:
        optimizer.zero_grad()
        x = flow.tensor(random.standard_normal((n, 2, 6, 6)), requires_grad=how == "leaf")
        y = call(first(x) if how == "inner" else x)
        y = y + call(x * 2) if how == "twice" else y
        y.square().sum().backward()
        optimizer.step()
        results += _arrays([y, x.grad if how == "leaf" else y])
    with flow.no_grad():
        results += _arrays(call(flow.ones(2, 2, 6, 6, dtype=flow.float64)))
    return results + _arrays([*net.state_dict().values(), *first.state_dict().values()])


@pytest.mark.parametrize("how", ["plain", "leaf", "inner", "twice", "in place"])
def test_results_can_be_differentiated_outside(how: str) -> None:
    _close(_outside(True, how), _outside(False, how))


def test_a_compiled_module_shares_everything_with_the_module() -> None:
    net = Net()
    compiled = flow.compile(net)
    assert list(compiled.state_dict()) == list(net.state_dict())
    assert isinstance(compiled, Net) and [id(p) for p in compiled.parameters()] == [id(p) for p in net.parameters()]
    compiled.scale = 2.0
    compiled.eval()
    assert net.scale == 2.0 and not net.training
    outer = nn.Sequential(compiled)
    assert list(outer.state_dict()) == [f"0.{name}" for name in net.state_dict()]
    x = flow.ones(2, 2, 6, 6)
    for other in (copy.deepcopy(compiled), pickle.loads(pickle.dumps(compiled))):
        np.testing.assert_allclose(other(x).numpy(), net(x).numpy(), rtol=1e-5, atol=1e-6)  # compiled sums have another order


def test_backward_through_changed_parameters_raises() -> None:
    layer = nn.Linear(3, 2)
    y = flow.compile(layer)(flow.ones(1, 3, requires_grad=True))
    with flow.no_grad():
        layer.weight.mul_(2.0)
    with pytest.raises(JobError, match="overwritten"):
        y.sum().backward()


def test_backward_of_a_released_loss_raises() -> None:
    loop = Loop()
    loss = flow.compile(loop.step)(flow.ones(2, 2, 6, 6, dtype=flow.float64), flow.tensor([0, 1]))
    assert loss.requires_grad
    with pytest.raises(JobError, match="freed its saved values"):
        loss.backward()


def test_user_references_to_gradients_do_not_change() -> None:
    loop = Loop()
    step = flow.compile(loop.step)
    held = []
    for i in range(3):
        step(flow.full((2, 2, 6, 6), float(i + 1), dtype=flow.float64), flow.tensor([0, 1]))
        gradient = loop.net.out.weight.grad
        held.append((gradient, (gradient * 1).numpy()))
    for gradient, elements in held:
        np.testing.assert_array_equal(gradient.numpy(), elements)


def test_explain_shows_the_lines_of_the_program() -> None:
    compiled = flow.compile(lambda x: x.tanh())
    assert "no plan yet" in compiled.explain()
    compiled(flow.ones(2))
    assert "Tanh" in compiled.explain() and "test_compile.py" in compiled.explain()
    assert "body" in compiled.explain(["plan"])


# -------------------------------------------------------------------- ranks

B, S0, S1 = flow.sbp.broadcast, flow.sbp.split(0), flow.sbp.split(1)


def _on_rank(rank: int, n: int, compiled: bool, data: Any, weight: Any, outside: bool) -> tuple[list[Any], list[str]]:
    devices, random = flow.placement("cpu", range(n)), np.random.RandomState(0)
    flow.manual_seed(0)
    net = nn.Sequential(nn.Linear(6, 8, bias=False), nn.BatchNorm1d(8), nn.Tanh(), nn.Dropout(0.3), nn.Linear(8, 4)).to(flow.float64)
    for p in net.parameters():
        p.data.copy_(flow.tensor(random.standard_normal(tuple(p.shape)) * 0.3))
    net.to_global(devices, sbp=B)
    net[4].weight = nn.Parameter(net[4].weight.detach().to_global(sbp=weight))
    optimizer = Adam(net.parameters(), 0.01)
    call = flow.compile(net, fullgraph=True) if compiled and outside else net

    def step(x: Any, y: Any) -> Any:
        optimizer.zero_grad()
        loss = (call(x) - y).square().mean()
        loss.backward()
        clip_grad_norm_(net.parameters(), 0.1)
        optimizer.step()
        return loss

    run = flow.compile(step, fullgraph=True) if compiled and not outside else step
    results = []
    for rows in (8, 8, 4, 8):
        x, y = (flow.tensor(random.standard_normal((rows, k)), placement=devices, sbp=B).to_global(sbp=data) for k in (6, 4))
        results += _arrays(run(x, y))
    grads = [p.grad for p in net.parameters()]
    layouts = [str(x.sbp) for x in (*net.parameters(), *grads)]
    return results + _arrays([*net.parameters(), *net.buffers(), *grads]), layouts


@pytest.mark.parametrize("outside", [False, True])
@pytest.mark.parametrize("data, weight", [(B, B), (S0, B), (S0, S0), (S1, S1)], ids=str)
def test_global_tensors_on_two_ranks(data: Any, weight: Any, outside: bool) -> None:
    got, want = (on_ranks(2, _on_rank, 2, compiled, data, weight, outside) for compiled in (True, False))
    for (a, layouts), (b, expected) in zip(got, want, strict=True):
        _close(a, b)
        assert layouts == expected


def test_one_function_accepts_local_and_global_tensors() -> None:
    def program(rank: int) -> None:
        double = flow.compile(lambda x: x * 2, fullgraph=True)
        for _ in range(2):
            np.testing.assert_array_equal(double(flow.ones(4) * rank).numpy(), np.full(4, 2.0 * rank))
            split = flow.ones(4, placement=flow.placement("cpu", [0, 1]), sbp=S0)
            np.testing.assert_array_equal(double(split).numpy(), np.full(4, 2.0))
        assert len(double.traces) == 2

    on_ranks(2, program)


@pytest.mark.full
@pytest.mark.parametrize("outside", [False, True])
@pytest.mark.parametrize("n", [1, 4])
def test_global_tensors_on_more_ranks(n: int, outside: bool) -> None:
    for data, weight in ((S0, B), (S1, S1)):
        got, want = (on_ranks(n, _on_rank, n, compiled, data, weight, outside) for compiled in (True, False))
        for (a, layouts), (b, expected) in zip(got, want, strict=True):
            _close(a, b)
            assert layouts == expected


def test_a_numpy_view_of_a_gradient_keeps_its_elements() -> None:
    layer = nn.Linear(3, 2)
    optimizer = flow.optim.SGD(layer.parameters(), lr=0.1)

    @flow.compile(fullgraph=True)
    def step(x: Any) -> Any:
        optimizer.zero_grad()
        layer(x).square().sum().backward()
        optimizer.step()

    step(flow.ones(4, 3))
    gradient = layer.weight.grad
    assert gradient is not None
    views = [gradient.numpy(), np.asarray(gradient)]
    before = views[0].copy()
    step(2 * flow.ones(4, 3))
    assert layer.weight.grad is not None and (layer.weight.grad.numpy() != before).all()
    for view in views:
        np.testing.assert_array_equal(view, before)


@pytest.mark.parametrize(("name", "value"), [("mode", "fast"), ("mode", 3), ("backend", None), ("options", [1]), ("dynamic", "yes")])
def test_compile_raises_for_unknown_options(name: str, value: Any) -> None:
    with pytest.raises(ArgumentError, match=rf"compile at test_compile\.py:\d+: {name} must be .*; got {re.escape(repr(value))}"):
        flow.compile(lambda x: x, **{name: value})
