"""Training loops in the form of people's files: each compiles, and has the numbers of the eager loop."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import jobflow as flow
import jobflow.nn.functional as F
from jobflow import nn
from jobflow.core.errors import JobError

#: the function of a step, and the tensors that the loop changes
Loop = tuple[Callable[..., Any], list[Any]]
CALLS = 3


def _net(inputs: int, outputs: int) -> Any:
    return nn.Sequential(nn.Linear(inputs, 5), nn.LeakyReLU(0.2, True), nn.Linear(5, outputs)).double()


def _clipped_weights() -> Loop:
    net = _net(4, 1)
    optimizer = flow.optim.RMSprop(net.parameters(), lr=0.01)

    def step(x: Any) -> Any:
        optimizer.zero_grad()
        loss = -net(x).mean()
        loss.backward()
        optimizer.step()
        for p in net.parameters():
            p.data.clamp_(-0.2, 0.2)
        return loss

    return step, [*net.parameters()]


def _assigned_data() -> Loop:
    net = _net(4, 1)

    def step(x: Any) -> Any:
        loss = net(x).square().mean()
        loss.backward()
        for i, p in enumerate(net.parameters()):
            if i % 2:
                p.data -= 0.1 * p.grad.data
            else:
                value = p.data - 0.1 * p.grad
                p.data = value
                p.data.mul_(0.9)
                value.add_(0.01)
            p.grad.detach_().zero_()
        return loss

    return step, [*net.parameters()]


def _target_network() -> Loop:
    net, target = _net(4, 2), _net(4, 2)
    optimizer = flow.optim.SGD(net.parameters(), lr=0.1)

    def step(x: Any) -> Any:
        optimizer.zero_grad()
        loss = F.smooth_l1_loss(net(x), target(x).detach() + 1)
        loss.backward()
        optimizer.step()
        for slow, p in zip(target.parameters(), net.parameters(), strict=True):
            slow.data.copy_(0.1 * p.data + 0.9 * slow.data)
        return loss

    return step, [*net.parameters(), *target.parameters()]


def _frozen_critic() -> Loop:
    net, critic = _net(4, 4), _net(4, 1)
    first, second = (flow.optim.SGD(each.parameters(), lr=0.1) for each in (net, critic))

    def require(value: bool) -> None:
        for p in critic.parameters():
            p.requires_grad = value

    def step(x: Any) -> Any:
        fake = net(x)
        require(False)
        first.zero_grad()
        loss = -critic(fake).mean()
        loss.backward()
        first.step()
        require(True)
        second.zero_grad()
        (critic(fake.detach()).mean() - critic(x).mean()).backward()
        second.step()
        return loss.detach()

    return step, [*net.parameters(), *critic.parameters()]


def _retained_graph() -> Loop:
    net, critic = _net(4, 4), _net(4, 1)
    first, second = (flow.optim.SGD(each.parameters(), lr=0.1) for each in (net, critic))

    def step(x: Any) -> Any:
        fake = net(x)
        second.zero_grad()
        loss = critic(fake).mean() - critic(x).mean()
        loss.backward(retain_graph=True)
        second.step()
        first.zero_grad()
        later = -critic(fake).mean()
        later.backward()
        first.step()
        return loss, fake.mean()

    return step, [*net.parameters(), *critic.parameters()]


def _numpy_noise() -> Loop:
    net = _net(4, 1)

    def step(x: Any) -> Any:
        noise = flow.FloatTensor(2 * np.random.rand(*x.shape) - 1).double()
        loss = net(x + noise + flow.from_numpy(np.random.normal(0, 1, (1, 4)))).square().mean()
        net.zero_grad()
        loss.backward()
        return loss

    return step, [*net.parameters()]


LOOPS: dict[str, Callable[[], Loop]] = {
    "weights are clipped": _clipped_weights,
    "data is assigned": _assigned_data,
    "target network": _target_network,
    "requires_grad changes": _frozen_critic,
    "graph is retained": _retained_graph,
    "samples of NumPy": _numpy_noise,
}


def _results(build: Callable[[], Loop], compiled: bool) -> list[Any]:
    flow.manual_seed(0), np.random.seed(0)
    step, state = build()
    call, results = flow.compile(step, fullgraph=True) if compiled else step, []
    for i in range(CALLS):
        result = call(flow.tensor(np.linspace(-1.0, 1.0 + i, 12).reshape(3, 4)))
        results += [x.detach().numpy() for x in (result if isinstance(result, tuple) else (result,))]
    return [*results, *(x.detach().numpy() for x in state), *(x.grad.numpy() for x in state if x.grad is not None)]


@pytest.mark.parametrize("name", LOOPS)
def test_a_compiled_loop_has_the_numbers_of_the_eager_loop(name: str) -> None:
    got, expected = _results(LOOPS[name], True), _results(LOOPS[name], False)
    for a, b in zip(got, expected, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-12, atol=1e-12)


def test_backward_of_a_result_whose_graph_the_step_used_raises() -> None:
    step, _ = _retained_graph()
    for result in flow.compile(step, fullgraph=True)(flow.ones(3, 4).double()):
        with pytest.raises(JobError, match=r"backward at test_compile_loops.py:\d+: a result of the compiled function step has no gradient"):
            result.backward()


def test_backward_to_an_argument_with_a_graph_runs_eagerly() -> None:
    weight = flow.ones(2, requires_grad=True)
    step = flow.compile(lambda x: x.sum().backward())
    step(weight * 3)
    assert weight.grad is not None and weight.grad.tolist() == [3.0, 3.0] and "computed outside" in step.cache.eager


# -------------------------------------------------------------------- constants of the program

CONSTANTS: dict[str, Callable[[Any], Any]] = {
    "widths": lambda x: F.pad(x, [(d := flow.tensor([x.size(1) - 1])) // 2, d - d // 2]),
    "range and sizes": lambda x: sum(x * i for i in range(flow.tensor(x.size(0)) + 1)).reshape(flow.tensor(x.numel())),
    "numbers": lambda x: x * int(flow.tensor(2.5)) + (flow.tensor([4.0]) / 3).item() + flow.ones(flow.tensor(4)).tolist()[0],
    "branch": lambda x: x + 1 if flow.eye(2).sum() > 1 else x,
    "written constant": lambda x: x * float(flow.zeros(2).add_(3.0).sum()),
    "data": lambda x: x + flow.tensor([flow.tensor(1.0), 2.0, 3.0, 4.0]).add_(1.0),
    "mask": lambda x: x[:, ~flow.eye(4, dtype=flow.bool)[0]],
    "positions": lambda x: x[:, flow.nonzero(flow.tensor([1, 0, 1, 0])).squeeze(1)] * len(flow.unique(flow.tensor([3, 1, 1]))),
}


class Graph(nn.Graph):
    def __init__(self, function: Callable[[Any], Any]) -> None:
        super().__init__()
        self.function = function

    def build(self, x: Any) -> Any:
        return self.function(x)


@pytest.mark.parametrize("name", CONSTANTS)
def test_constants_of_a_program_are_python_results(name: str) -> None:
    function, x = CONSTANTS[name], flow.arange(8.0).reshape(2, 4)
    expected = function(x).numpy()
    for call in (flow.compile(function, fullgraph=True), Graph(function)):
        for _ in range(2):
            np.testing.assert_allclose(call(x).numpy(), expected)
