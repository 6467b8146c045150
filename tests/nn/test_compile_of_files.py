"""Compiled functions as other people's programs write them: helper modules, in-place activations, attributes named like global variables."""

from __future__ import annotations

import importlib
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import jobflow as flow
from jobflow import nn

HOLDER = SimpleNamespace(loss=lambda y: y.sum())
#: named like the attribute above
loss: Any = None

ACTIVATIONS: dict[str, Any] = {
    "relu": nn.ReLU(True),
    "leaky relu": nn.LeakyReLU(0.2, True),
    "elu": nn.ELU(1.0, True),
    "hardtanh": nn.Hardtanh(inplace=True),
    "relu6": nn.ReLU6(True),
    "silu": nn.SiLU(True),
}


@pytest.mark.parametrize("name", ACTIVATIONS)
def test_in_place_activations_compile_with_the_gradients_of_eager_code(name: str) -> None:
    model = nn.Sequential(nn.Linear(4, 5), ACTIVATIONS[name], nn.Linear(5, 1)).double()
    x = flow.tensor(np.linspace(-3.0, 3.0, 12).reshape(3, 4))

    def step(x: Any) -> Any:
        model.zero_grad()
        y = (model(x) ** 2).sum()
        y.backward()
        return y

    expected, gradient = step(x).item(), model[0].weight.grad.numpy().copy()
    compiled = flow.compile(step)
    assert compiled(x).item() == pytest.approx(expected) and len(compiled.traces) == 1
    np.testing.assert_allclose(model[0].weight.grad.numpy(), gradient)


#: writes to y, or to w, that no gradient records
WRITES: dict[str, Any] = {
    "masked_fill_": lambda y, w: y.data.masked_fill_(y > 0.5, 0.0),
    "detach": lambda y, w: y.detach().mul_(2.0),
    "part": lambda y, w: y[1:].data.zero_(),
    "reshaped part": lambda y, w: y.reshape(-1)[1:3].data.mul_(2.0),
    "element": lambda y, w: y.data.__setitem__(0, 0.3),
    "then recorded": lambda y, w: (y.data.clamp_(max=0.3), y.mul_(2.0)),
    "read only": lambda y, w: y.mul_(w.detach().sum()),
}


@pytest.mark.parametrize("name", WRITES)
def test_writes_to_data_keep_the_gradient_in_compiled_functions(name: str) -> None:
    w = nn.Parameter(flow.tensor(np.linspace(0.1, 0.9, 6).reshape(3, 2)))
    unused = nn.Parameter(flow.ones(2))
    optimizer = flow.optim.Adam([w, unused], lr=0.1, weight_decay=0.5)

    def step(x: Any) -> Any:
        optimizer.zero_grad()
        y = x * w
        WRITES[name](y, w)
        loss = (y.exp() + unused.detach().sum()).sum()
        loss.backward()
        optimizer.step()
        return loss

    x, before = flow.tensor(np.linspace(0.5, 1.0, 6).reshape(3, 2)), w.detach().clone()
    expected, after = [step(x).item() for _ in range(2)], w.detach().numpy().copy()
    with flow.no_grad():
        w.copy_(before)
    optimizer.state.clear()
    compiled = flow.compile(step)
    np.testing.assert_allclose([compiled(x).item() for _ in range(2)], expected)
    np.testing.assert_allclose(w.detach().numpy(), after)
    assert len(compiled.traces) == 1 and unused.grad is None and unused.tolist() == [1.0, 1.0]


class Clip(flow.autograd.Function):  # type: ignore[misc]
    """The sign of x; the gradient is 0 where |x| > limit."""

    @staticmethod
    def forward(ctx: Any, x: Any, limit: float) -> Any:
        ctx.save_for_backward(x)
        ctx.limit = limit
        return x.sign()

    @staticmethod
    def backward(ctx: Any, dy: Any) -> Any:
        (x,) = ctx.saved_tensors
        dx = dy.clone()
        dx[x.abs() > ctx.limit] = 0.0
        return dx, None


class Triple(flow.autograd.Function):  # type: ignore[misc]
    """Three times x, in place."""

    @staticmethod
    def forward(ctx: Any, x: Any) -> Any:
        ctx.mark_dirty(x.mul_(3.0))
        return x

    @staticmethod
    def backward(ctx: Any, dy: Any) -> Any:
        return dy * 30.0


class Pair(flow.autograd.Function):  # type: ignore[misc]
    """The outputs x w and x + w, of which one may be unused; gradients of gradients differentiate `backward`."""

    @staticmethod
    def forward(x: Any, w: Any) -> Any:
        return x * w, x + w

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        ctx.save_for_backward(*inputs)

    @staticmethod
    def backward(ctx: Any, dy: Any, dz: Any) -> Any:
        x, w = ctx.saved_tensors
        return dy * w**2 + dz, dy * x - dz


def test_users_functions_compile_with_their_gradients() -> None:
    w = nn.Parameter(flow.tensor([[-1.5, 0.25], [0.5, 2.0]]))

    def step(x: Any) -> Any:
        w.grad = None
        product, total = Pair.apply(x, w)
        Triple.apply(product[0])
        (slope,) = flow.autograd.grad(Pair.apply(w, w)[0].sum(), w, create_graph=True)
        loss = (Clip.apply(w, 1.0) * product).sum() + (total * slope).sum()
        loss.backward()
        return loss

    x = flow.tensor([[1.0, 2.0], [3.0, 4.0]])
    expected, gradient = step(x).item(), w.grad.numpy().copy()
    compiled = flow.compile(step)
    assert compiled(x).item() == pytest.approx(expected) and len(compiled.traces) == 1
    np.testing.assert_allclose(w.grad.numpy(), gradient, rtol=1e-6)


class Branching(nn.Module):
    """Python numbers that depend on tensors of the module: flags of columns, a number of repetitions, indices."""

    def __init__(self) -> None:
        super().__init__()
        self.flags = flow.tensor([True, False, True])
        self.register_buffer("times", flow.tensor(2))
        self.order = flow.tensor([2, 0])

    def forward(self, x: Any) -> Any:
        columns = [x[:, i] * 2.0 if flag else x[:, i] for i, flag in enumerate(self.flags)]
        y = flow.stack(columns, 1)[:, self.order.tolist()]
        return y.repeat(int(self.times), 1) if (self.order + self.times).sum() > 0 else y


def test_python_numbers_of_outer_tensors_compile_and_are_compared() -> None:
    model = Branching()
    step = flow.compile(model.forward)
    x = flow.tensor([[1.0, 2.0, 3.0]])
    assert [step(x).tolist() for _ in range(2)] == [[[6.0, 2.0]] * 2] * 2 and len(step.traces) == 1
    model.flags.numpy()[2] = False
    assert step(x).tolist() == [[3.0, 2.0]] * 2 and len(step.traces) == 2
    model.times.fill_(1)
    assert step(x).tolist() == [[3.0, 2.0]] and len(step.traces) == 3


def test_a_branch_on_a_tensor_that_the_function_changes_runs_eagerly() -> None:
    count = flow.tensor(0)

    def step(x: Any) -> Any:
        y = x * 2.0 if count < 2 else x
        count.add_(1)
        return y

    compiled = flow.compile(step)
    assert [compiled(flow.ones(1)).item() for _ in range(4)] == [2.0, 2.0, 1.0, 1.0] and not compiled.traces


def test_products_in_place_keep_the_old_value_for_the_gradient() -> None:
    x, w = flow.tensor([1.0, 2.0]), flow.tensor([3.0, 4.0], requires_grad=True)

    @flow.compile
    def gradient(x: Any) -> Any:
        w.grad = None
        y = x * 1.0
        y.mul_(w).mul_(w)
        y.sum().backward()
        return w.grad.clone()

    np.testing.assert_allclose(gradient(x).numpy(), 2 * x.numpy() * w.detach().numpy())
    assert len(gradient.traces) == 1


def test_functions_of_an_imported_module_compile(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "helper_of_a_file.py").write_text("FACTOR = 2.0\n\n\ndef twice(x):\n    return x * FACTOR\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    helper = importlib.import_module("helper_of_a_file")
    step = flow.compile(lambda x: helper.twice(x) + 1)
    assert step(flow.ones(2)).tolist() == [3.0, 3.0] and len(step.traces) == 1
    helper.FACTOR = 3.0
    assert step(flow.ones(2)).tolist() == [4.0, 4.0] and len(step.traces) == 2


def test_an_attribute_with_the_name_of_a_global_variable_causes_no_trace() -> None:
    global loss
    step = flow.compile(lambda x: HOLDER.loss(x))
    for _ in range(3):
        loss = step(flow.ones(2))
    assert loss.item() == 2.0 and len(step.traces) == 1


def _moving_average(y: Any, buffer: Any) -> Any:
    buffer.data.mul_(0.5).add_(y.sum(0), alpha=0.1)
    return buffer * y


def _copied(y: Any, buffer: Any) -> Any:
    data = buffer.data
    data.copy_(y.mean(0))
    return data * y + buffer


def _form(y: Any, _: Any) -> Any:
    best, index = y.max(0, keepdim=True)
    best.squeeze_(0)
    index.squeeze_(0).unsqueeze_(1)
    z = y * y
    z.t_().mul_(2.0).unsqueeze_(0)
    return z * index + best.sum()


#: parts of models: functions of a traced tensor [3, 2] and a buffer [2]
PARTS: dict[str, Any] = {
    "moving average": _moving_average,
    "copy into data": _copied,
    "shape in place": _form,
    "array": lambda y, _: y + flow.from_numpy(np.eye(3)[:, :2].copy()).repeat(1, 1),
    "mask of an array": lambda y, _: y[flow.from_numpy(np.arange(6).reshape(3, 2) > 2)],
}


class Part(nn.Module):
    def __init__(self, name: str) -> None:
        super().__init__()
        self.part = PARTS[name]
        self.w = nn.Parameter(flow.tensor(np.linspace(0.1, 0.9, 6).reshape(3, 2)))
        self.register_buffer("buffer", flow.ones(2, dtype=flow.float64))

    def forward(self, x: Any) -> Any:
        return self.part(x * self.w, self.buffer).exp().mean()


def _trained(name: str, mode: str) -> list[Any]:
    model = Part(name)
    optimizer = flow.optim.SGD(model.parameters(), lr=0.1)

    def step(x: Any) -> Any:
        optimizer.zero_grad()
        loss = model(x)
        loss.backward()
        optimizer.step()
        return loss

    class Training(nn.Graph):
        def __init__(self) -> None:
            super().__init__()
            self.model = model
            self.add_optimizer(optimizer)

        def build(self, x: Any) -> Any:
            loss = self.model(x)
            loss.backward()
            return loss

    run: Any = {"eager": lambda: step, "compiled": lambda: flow.compile(step, fullgraph=True), "graph": Training}[mode]()
    x = flow.tensor(np.linspace(0.5, 1.0, 6).reshape(3, 2))
    return [*(run(x).item() for _ in range(2)), *model.w.detach().reshape(-1).tolist(), *model.buffer.tolist()]


@pytest.mark.parametrize("name", PARTS)
def test_parts_of_models_train_alike_eagerly_compiled_and_in_graphs(name: str) -> None:
    expected = _trained(name, "eager")
    np.testing.assert_allclose(_trained(name, "compiled"), expected)
    if name != "mask of an array":  # in a graph the array is a variable, which shares its memory
        np.testing.assert_allclose(_trained(name, "graph"), expected)


ARRAY = np.zeros(2)


@pytest.mark.parametrize(
    "function",
    [
        lambda x: x + flow.from_numpy(ARRAY).add_(1.0),
        lambda x: x + flow.from_numpy(ARRAY).view(2, 1).mul_(2.0).sum(),
    ],
)
def test_compiled_functions_do_not_write_to_arrays(function: Any) -> None:
    with pytest.raises(flow.JobError, match=r"use flow.tensor\(array\)"):
        flow.compile(function, fullgraph=True)(flow.ones(2))


def test_graphs_refuse_to_overwrite_a_parameter_that_their_optimizer_updates() -> None:
    table = nn.Embedding(4, 3, max_norm=0.5)

    class Training(nn.Graph):
        def __init__(self) -> None:
            super().__init__()
            self.table = table
            self.add_optimizer(flow.optim.SGD(table.parameters(), lr=0.1))

        def build(self, ids: Any) -> Any:
            loss = self.table(ids).sum()
            loss.backward()
            return loss

    with pytest.raises(flow.JobError, match=r"in-place write at .*: an optimizer of the graph updates the parameter table.weight"):
        Training()(flow.tensor([0, 1]))
