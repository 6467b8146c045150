"""Writes through views update the base and its other views: eager, in graphs and in jobs, with gradients."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from ranks import on_ranks

import jobflow as flow
import jobflow.typing as tp
from jobflow import nn
from jobflow.core.layout import B, S
from jobflow.engine.placements import placement

W = np.random.default_rng(1).uniform(0.5, 2, (4, 6)).astype(np.float32)
X = np.random.default_rng(2).uniform(-1, 1, (4, 6)).astype(np.float32)
Function = Callable[[Any, Any], Any]


def chained(w: Any, x: Any) -> Any:
    z = w * 1
    part = z.t()[1:4].unsqueeze(0)
    part[0, 1].mul_(x[:, 1])
    return z, part * 2


def read_after(w: Any, x: Any) -> Any:
    """Read views that were created before a write to their base."""
    z = w * 1
    row, turned = z[2], z.transpose(0, 1)
    z.mul_(x)
    row.add_(1)
    return row * 3, turned + 0, z


def copies(w: Any, x: Any) -> Any:
    """Return a tensor, and copies of the tensor after writes to the copies."""
    z = w * 1
    flat, order = z.t().reshape(-1), z.t().contiguous()
    flat.mul_(2)
    order.add_(x.t())
    return z, flat, order


def unbound(w: Any, x: Any) -> Any:
    z = w * 1
    for i, row in enumerate(z.unbind(0)):
        row.mul_(i + 1)
    for part in z.chunk(2, 1):
        part[:, 0] = 0.25
    return z


def unrecorded(w: Any, x: Any) -> Any:
    """Write where no gradients are recorded; the gradient passes unchanged."""
    z = w * x
    z.detach().mul_(2)
    z[1].data.add_(1)
    with flow.no_grad():
        z[0].mul_(3)
    z.t().detach()[2:4] = 0.5
    return z, z.square()


def one(write: Callable[[Any, Any], Any]) -> Function:
    def function(w: Any, x: Any) -> Any:
        z = w * 2
        write(z, x)
        return z

    return function


FUNCTIONS: dict[str, Function] = {
    "slice": one(lambda z, x: z[1:, ::2].mul_(x[1:, ::2])),
    "select": one(lambda z, x: z.select(1, 2).add_(x[:, 0])),
    "narrow": one(lambda z, x: z.narrow(0, 1, 2).exp_()),
    "view": one(lambda z, x: z.view(-1)[3:9].mul_(2)),
    "flatten": one(lambda z, x: z.flatten().__setitem__(0, 7.0)),
    "transpose": one(lambda z, x: z.t().mul_(x.t())),
    "squeeze": one(lambda z, x: z.unsqueeze(1).squeeze(1).add_(x)),
    "unflatten": one(lambda z, x: z.unflatten(1, (2, 3))[:, 1].mul_(x[:, :3])),
    "mask": one(lambda z, x: z[2].masked_fill_(x[2] > 0, 0.5)),
    "chained": chained,
    "read after": read_after,
    "copies": copies,
    "unbound": unbound,
    "unrecorded": unrecorded,
}


class Model(nn.Module):  # type: ignore[misc]
    def __init__(self, function: Function, **where: Any) -> None:
        super().__init__()
        self.w = nn.Parameter(flow.tensor(W, **where))
        self.function = function

    def forward(self, x: Any) -> list[Any]:
        output = self.function(self.w, x)
        several = list(output) if isinstance(output, tuple) else [output]
        loss = sum(y.square().sum() for y in several)
        return [loss, *several]


class TrainingGraph(nn.Graph):  # type: ignore[misc]
    def __init__(self, model: Model) -> None:
        super().__init__()
        self.model = model
        self.add_optimizer(flow.optim.SGD(model.parameters(), lr=0.01))

    def build(self, x: Any) -> list[Any]:
        output: list[Any] = self.model(x)
        output[0].backward()
        return output


def at_once(function: Function) -> list[np.ndarray]:
    model = Model(function)
    output = model(flow.tensor(X))
    output[0].backward()
    return [*(y.detach().numpy() for y in output), W - 0.01 * model.w.grad.numpy()]


def same(arguments: list[Any], expected: list[np.ndarray]) -> None:
    for one, other in zip(arguments, expected, strict=True):
        np.testing.assert_allclose(one, other, rtol=2e-5, atol=1e-6)


@pytest.mark.parametrize("name", ["slice", "transpose"])
def test_eager_writes_equal_numpy(name: str) -> None:
    """Eager results, the reference of the other modes, equal those of NumPy's views."""
    z = W * 2
    {"slice": lambda: z[1:, ::2].__imul__(X[1:, ::2]), "transpose": lambda: z.T.__imul__(X.T)}[name]()
    np.testing.assert_allclose(at_once(FUNCTIONS[name])[1], z, rtol=1e-6)


@pytest.mark.parametrize("name", FUNCTIONS)
def test_graphs_equal_eager_writes(name: str) -> None:
    expected = at_once(FUNCTIONS[name])

    def program(rank: int) -> None:
        here = placement("cpu", [0, 1])
        for w, x in ((B, S(0)), (S(0), B), (S(1), S(1))):
            model = Model(FUNCTIONS[name], placement=here, sbp=w)
            output = TrainingGraph(model)(flow.tensor(X, placement=here, sbp=x))
            same([*(y.numpy() for y in output), model.w.detach().numpy()], expected)

    on_ranks(2, program)
    model = Model(FUNCTIONS[name])
    output = TrainingGraph(model)(flow.tensor(X))
    same([*(y.numpy() for y in output), model.w.detach().numpy()], expected)


@pytest.mark.parametrize("name", FUNCTIONS)
def test_jobs_equal_eager_writes(name: str) -> None:
    model = Model(FUNCTIONS[name])
    flow.config.cpu_device_num(2)

    @flow.global_function(type="train")
    def job(x: tp.Numpy.Placeholder((4, 6))) -> list[tp.Numpy]:
        output: list[Any] = model(x)
        flow.optimizer.SGD(flow.optimizer.PiecewiseConstantScheduler([], [0.01]), momentum=0).minimize(output[0])
        return output

    output = job(X)
    same([output[0].reshape(()), *output[1:], model.w.detach().numpy()], at_once(FUNCTIONS[name]))


class Buffered(nn.Module):  # type: ignore[misc]
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("rows", flow.zeros(3, 2))

    def forward(self, x: Any) -> Any:
        self.rows[1].add_(x)
        self.rows.data[2].sub_(x)
        return self.rows.sum(0) * 1


def test_writes_through_views_of_buffers() -> None:
    class Called(nn.Graph):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.model = Buffered()

        def build(self, x: Any) -> Any:
            return self.model(x)

    graph, once, x = Called(), Buffered(), flow.tensor([1.0, 2.0])
    for _ in range(3):
        np.testing.assert_array_equal(graph(x).numpy(), once(x).numpy())
        np.testing.assert_array_equal(graph.model.rows.numpy(), once.rows.numpy())
    np.testing.assert_array_equal(once.rows.numpy(), [[0, 0], [3, 6], [-3, -6]])


@pytest.mark.parametrize(
    ("shape", "sbp", "copy"),
    [
        ((3, 2), S(0), lambda z: z.t().contiguous()),
        ((2, 2, 3), S(1), lambda z: z.permute(1, 0, 2).reshape(4, 3)),
        ((2, 2, 3), S(1), lambda z: z.detach().permute(1, 0, 2).data.reshape(4, 3)),
    ],
)
def test_copies_are_copies_on_every_rank(shape: tuple[int, ...], sbp: Any, copy: Callable[[Any], Any]) -> None:
    """This includes ranks whose piece is so small that its strides would allow a view."""

    def program(rank: int) -> None:
        split = flow.ones(shape, placement=placement("cpu", [0, 1]), sbp=sbp)
        for gradients in (True, False):
            with flow.set_grad_enabled(gradients):
                output = copy(split)
                output.mul_(2)
                np.testing.assert_array_equal(split.numpy(), np.ones(shape))
                np.testing.assert_array_equal(output.numpy(), np.full(output.shape, 2))

    on_ranks(2, program)


def test_ranks_outside_the_placement_follow_writes() -> None:
    """Ranks outside the placement of a tensor also have its views, and raise its errors."""

    def program(rank: int) -> None:
        z = flow.tensor(W, placement=placement("cpu", [2, 0]), sbp=S(0)) * 1
        part = z.t()[1:3]
        part.mul_(2)
        np.testing.assert_array_equal(z.numpy()[:, 1:3], 2 * W[:, 1:3])
        assert not part.is_contiguous()
        with pytest.raises(flow.JobflowError, match="would be lost"):
            z[1].t().mul_(2)
        w = flow.tensor(W, placement=placement("cpu", [2, 0]), sbp=B, requires_grad=True)
        z = w * 1
        z[0:] *= 3
        z.sum().backward()
        np.testing.assert_array_equal(w.grad.numpy(), np.full((4, 6), 3))

    on_ranks(3, program)


@pytest.mark.parametrize(
    "write",
    [
        lambda z: z[1].mul_(2),
        lambda z: z.narrow(0, 1, 2).zero_(),
        lambda z: z[1:].__setitem__(0, 3.0),
        lambda z: z[1:].detach().add_(1),
        lambda z: z[1:].data.add_(1),
        lambda z: z[1:].t().add_(1),
        lambda z: z[1].__imul__(2),
    ],
)
def test_writes_to_a_copied_part_raise(write: Callable[[Any], Any]) -> None:
    """A write to a slice along a split axis would be lost on some ranks."""

    def program(rank: int) -> None:
        here = placement("cpu", [0, 1])
        split = flow.tensor(W, placement=here, sbp=S(0)) * 1
        with pytest.raises(flow.JobflowError, match=r"at test_writing_through_views.py:\d+: .* would be lost; assign to the tensor itself"):
            write(split)
        np.testing.assert_array_equal(split.numpy(), W)
        split[1] = split[1] * 2
        other = split.to_global(sbp=S(1))
        write(other)
        assert (other.numpy() != split.numpy()).any()

    on_ranks(2, program)


@pytest.mark.parametrize("read", [lambda x: x + 1, lambda x: x.numpy(), lambda x: x.to_global(sbp=flow.sbp.broadcast), lambda x: x.to_local()])
def test_reading_an_outdated_copied_part_raises(read: Callable[[Any], Any]) -> None:
    def program(rank: int) -> None:
        split = flow.tensor(W, placement=placement("cpu", [0, 1]), sbp=S(0)) * 1
        part, copy = split[1:], split[1:].clone()
        np.testing.assert_array_equal(part.numpy(), W[1:])
        split.mul_(2)
        with pytest.raises(flow.JobflowError, match=r"test_writing_through_views.py:\d+: .* out of date; select it again"):
            read(part)
        read(copy)
        np.testing.assert_array_equal(split[1:].numpy(), 2 * W[1:])

    on_ranks(2, program)
