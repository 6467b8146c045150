"""flow.autograd.Function: arguments and results of its backward, and errors; on local and on split tensors."""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np
import pytest
from ranks import on_ranks

import jobflow as flow
from jobflow import nn

X = np.array([[-1.0, 2.0, 3.0], [0.5, -2.0, 1.0], [4.0, 1.5, -0.5], [1.0, 1.0, 2.0]])


def layouts_on(n: int) -> list[dict[str, Any]]:
    """Return the placements of a tensor on n ranks: local, and every layout."""
    here = flow.placement("cpu", range(n))
    return [{}, *({"placement": here, "sbp": how} for how in (flow.sbp.split(0), flow.sbp.split(1), flow.sbp.broadcast, flow.sbp.partial_sum))]


def everywhere(program: Any) -> None:
    """Run `program(place)` on one and on two ranks for every place."""
    for n in (1, 2):
        on_ranks(n, lambda rank, n=n: [program(placement_options) for placement_options in layouts_on(n)])


class Split(flow.autograd.Function):  # type: ignore[misc]
    """The outputs x^2, the mask of positive elements, and 3 x: one has no gradient, and one is not a tensor."""

    @staticmethod
    def forward(ctx: Any, x: Any, scale: float) -> Any:
        y, positive, z = x * x, flow.gt(x, 0).to(x.dtype), x * 3
        ctx.save_for_backward(x, y)
        ctx.mark_non_differentiable(positive)
        ctx.scale = scale
        return y, positive, "words", z

    @staticmethod
    def backward(ctx: Any, dy: Any, dpositive: Any, dwords: Any, dz: Any) -> Any:
        x, y = ctx.saved_tensors
        assert ctx.needs_input_grad == (True, False) and dwords is None
        assert dpositive.shape == x.shape and not dpositive.numpy().any()
        assert np.array_equal(y.detach().numpy(), x.detach().numpy() ** 2)
        return dy * x * ctx.scale + flow.where(flow.gt(x, 0), dz * 10, dz), None


def test_outputs_with_and_without_gradients() -> None:
    def program(placement_options: Any) -> None:
        x = flow.tensor(X, requires_grad=True, **placement_options)
        y, positive, words, z = Split.apply(x, 5.0)
        assert words == "words" and y.requires_grad and z.requires_grad and not positive.requires_grad and positive.is_leaf
        np.testing.assert_array_equal(positive.numpy(), X > 0)
        (y.sum() * 2).backward(retain_graph=True)
        np.testing.assert_allclose(x.grad.numpy(), 10 * X)  # no function uses z: its gradient is zeros
        x.grad = None
        ((y + positive).sum() + z.sum()).backward()
        np.testing.assert_allclose(x.grad.numpy(), 5 * X + np.where(X > 0, 10, 1))
        assert x.grad.is_global == bool(placement_options) and (not placement_options or x.grad.sbp == x.sbp)

    everywhere(program)


class Lazy(flow.autograd.Function):  # type: ignore[misc]
    """Two outputs; backward receives None for unused ones."""

    calls: ClassVar[list[tuple[bool, bool]]] = []

    @staticmethod
    def forward(x: Any, y: Any) -> Any:
        return x + y, x * y

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        ctx.save_for_backward(*inputs)
        ctx.set_materialize_grads(False)

    @staticmethod
    def backward(ctx: Any, da: Any, db: Any) -> Any:
        x, y = ctx.saved_tensors
        Lazy.calls.append((da is None, db is None))
        none = None
        dx = da if db is None else db * y if da is None else da + db * y
        return dx if ctx.needs_input_grad[0] else none, (da if db is None else db * x) if ctx.needs_input_grad[1] else none


def test_backward_receives_none_for_unused_outputs() -> None:
    def program(placement_options: Any) -> None:
        x, y = flow.tensor(X, requires_grad=True, **placement_options), flow.tensor(2 * X, **placement_options)
        a, b = Lazy.apply(x, y)
        Lazy.calls.clear()
        b.sum().backward()
        assert Lazy.calls[0] == (True, False) and y.grad is None
        np.testing.assert_allclose(x.grad.numpy(), 2 * X)
        x.grad = None
        a, b = Lazy.apply(x, y)
        a.sum().backward()
        np.testing.assert_allclose(x.grad.numpy(), np.ones_like(X))

    for placement_options in layouts_on(1):
        program(placement_options)


class Cube(flow.autograd.Function):  # type: ignore[misc]
    @staticmethod
    def forward(ctx: Any, x: Any) -> Any:
        y = x**3
        ctx.save_for_backward(x, y)
        return y

    @staticmethod
    def backward(ctx: Any, dy: Any) -> Any:
        x, y = ctx.saved_tensors
        return dy * 3 * y / x


def test_second_gradients_pass_through_inputs_and_outputs() -> None:
    def program(placement_options: Any) -> None:
        x = flow.tensor(X, requires_grad=True, **placement_options)
        (first,) = flow.autograd.grad(Cube.apply(x).sum(), x, create_graph=True)
        (second,) = flow.autograd.grad(first.sum(), x, create_graph=True)
        (third,) = flow.autograd.grad(second.sum(), x)
        for results, value in ((first, 3 * X**2), (second, 6 * X), (third, np.full_like(X, 6))):
            np.testing.assert_allclose(results.detach().numpy(), value, atol=1e-12)

    everywhere(program)


class Fitted(flow.autograd.Function):  # type: ignore[misc]
    """The function x + row, whose backward returns a broadcast gradient for the row."""

    @staticmethod
    def forward(ctx: Any, x: Any, row: Any) -> Any:
        return x + row

    @staticmethod
    def backward(ctx: Any, dy: Any) -> Any:
        return dy, dy.to(flow.float32), None, None


def test_a_broadcast_gradient_is_summed_and_extra_nones_are_ignored() -> None:
    def program(placement_options: Any) -> None:
        x = flow.tensor(X, **placement_options)
        row = flow.tensor(X[0], requires_grad=True, **({**placement_options, "sbp": flow.sbp.broadcast} if placement_options else {}))
        Fitted.apply(x, row).sum().backward()
        assert row.grad.dtype is flow.float64
        np.testing.assert_allclose(row.grad.numpy(), [4, 4, 4])

    everywhere(program)


class Filled(flow.autograd.Function):  # type: ignore[misc]
    """A function that overwrites its argument."""

    @staticmethod
    def forward(ctx: Any, x: Any) -> Any:
        x.mul_(2)
        ctx.mark_dirty(x)
        ctx.save_for_backward(x)
        return x

    @staticmethod
    def backward(ctx: Any, dy: Any) -> Any:
        return dy * ctx.saved_tensors[0]


def test_a_dirty_argument_is_the_result() -> None:
    def program(placement_options: Any) -> None:
        x = flow.tensor(X, requires_grad=True, **placement_options)
        y = x * 1
        z = Filled.apply(y)
        assert z is y
        np.testing.assert_allclose(y.detach().numpy(), 2 * X)
        y.sum().backward()
        np.testing.assert_allclose(x.grad.numpy(), 2 * X)
        with pytest.raises(flow.JobError, match=r"Filled at test_users_functions.py:\d+: a leaf"):
            Filled.apply(x)

    for placement_options in layouts_on(1)[:-1]:
        program(placement_options)


class Tripled(flow.autograd.Function):  # type: ignore[misc]
    """Three times x, written over x, and the signs of x."""

    @staticmethod
    def forward(ctx: Any, x: Any) -> Any:
        signs = x.sign()
        ctx.mark_non_differentiable(signs)
        ctx.mark_dirty(x.mul_(3))
        return x, signs

    @staticmethod
    def backward(ctx: Any, dx: Any, dsigns: Any) -> Any:
        return (dx + dsigns).neg()


class Product(flow.autograd.Function):  # type: ignore[misc]
    """The product x w without a gradient for x, and an output that no function uses."""

    @staticmethod
    def forward(ctx: Any, x: Any, w: Any) -> Any:
        ctx.save_for_backward(x, w)
        return x @ w, x * 2

    @staticmethod
    def backward(ctx: Any, dy: Any, dz: Any) -> Any:
        assert ctx.needs_input_grad[1]
        return None, ctx.saved_tensors[0].t() @ dy.clamp(-0.5, 0.5) + dz.sum()


class Applied(nn.Module):  # type: ignore[misc]
    def __init__(self, **where: Any) -> None:
        super().__init__()
        self.w = nn.Parameter(flow.tensor(X.T[:, :3] * 0.1, **where))

    def forward(self, x: Any) -> Any:
        h = Product.apply(x, self.w)[0]
        tripled, signs = Tripled.apply(h + Lazy.apply(h, h * 2)[1] + Cube.apply(h + 2))
        return (Product.apply(tripled, self.w)[0] + signs).square().mean()


class AppliedGraph(nn.Graph):  # type: ignore[misc]
    def __init__(self, model: Any, optimizer: Any, microbatches: int) -> None:
        super().__init__()
        self.model = model
        self.add_optimizer(optimizer)
        if microbatches > 1:
            self.config.set_gradient_accumulation_steps(microbatches)

    def build(self, x: Any) -> Any:
        loss = self.model(x)
        loss.backward()
        return loss


def losses(microbatches: int, **where: Any) -> list[float]:
    """Return three losses of a graph with this number of microbatches, or of an eager loop for 0."""
    model = Applied(**({"placement": where["placement"], "sbp": flow.sbp.broadcast} if where else {}))
    optimizer = flow.optim.SGD(model.parameters(), lr=1e-4)
    graph = AppliedGraph(model, optimizer, microbatches) if microbatches else None
    result = []
    for _ in range(3):
        loss = model(flow.tensor(X, **where)) if graph is None else graph(flow.tensor(X, **where))
        result.append(float(loss.numpy().mean()))
        if graph is None:
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    return result


def test_graphs_equal_eager_execution() -> None:
    expected = losses(0)
    np.testing.assert_allclose([losses(1), losses(2)], [expected] * 2, rtol=1e-10)

    def program(rank: int) -> None:
        here = flow.placement("cpu", range(2))
        for microbatches, sbp in ((1, flow.sbp.split(1)), (2, flow.sbp.split(0))):
            np.testing.assert_allclose(losses(microbatches, placement=here, sbp=sbp), expected, rtol=1e-10)

    on_ranks(2, program)


def function_of(gradient: Any, keeps: bool = False) -> Any:
    """Return a function of one tensor with `gradient(dy)` as its backward."""

    class WithBackward(flow.autograd.Function):  # type: ignore[misc]
        @staticmethod
        def forward(ctx: Any, x: Any) -> Any:
            ctx.save_for_backward(x)
            return x * 2

        @staticmethod
        def backward(ctx: Any, dy: Any) -> Any:
            return gradient(ctx.saved_tensors[0] if keeps else dy)

    return WithBackward


@pytest.mark.parametrize(
    ("gradient", "facts"),
    [
        (lambda dy: (dy, dy), ["returns 2 gradients for 1 argument"]),
        (lambda dy: (), ["returns 0 gradients for 1 argument"]),
        (lambda dy: 3.0, ["gradient 0", "float", "float64[4,3]"]),
        (lambda dy: dy[:2], ["gradient 0", "float64[2,3]", "float64[4,3]"]),
        (lambda dy: dy.to_global(placement=flow.placement("cpu", [0]), sbp=flow.sbp.broadcast), ["gradient 0", "local"]),
    ],
)
def test_mismatched_gradients_raise(gradient: Any, facts: list[str]) -> None:
    x = flow.tensor(X, requires_grad=True)
    with pytest.raises((flow.ArgumentError, flow.ShapeError)) as raised:
        function_of(gradient).apply(x).sum().backward()
    for fact in ["WithBackward.backward", "test_users_functions.py", *facts]:
        assert fact in str(raised.value)


def test_a_gradient_for_a_non_tensor_argument_raises() -> None:
    class Scaled(flow.autograd.Function):  # type: ignore[misc]
        @staticmethod
        def forward(ctx: Any, x: Any, factor: float) -> Any:
            return x * factor

        @staticmethod
        def backward(ctx: Any, dy: Any) -> Any:
            return dy, dy

    with pytest.raises(flow.ArgumentError, match=r"gradient 1 .*not a tensor"):
        Scaled.apply(flow.tensor(X, requires_grad=True), 2.0).sum().backward()


@pytest.mark.parametrize(
    ("gradient", "facts"),
    [
        (lambda dy: dy * flow.rand(3), ["WithBackward at", "samples random numbers", "flow.compile"]),
        (lambda saved: saved.add_(1), ["in-place write at", "from outside", "clone()"]),
        (lambda dy: (dy, dy), ["returns 2 gradients for 1 argument"]),
    ],
)
def test_graphs_refuse_gradients(gradient: Any, facts: list[str]) -> None:
    model = Applied()
    function = function_of(gradient, keeps="from outside" in facts)
    model.forward = lambda x: function.apply(x @ model.w).sum()
    with pytest.raises(flow.JobflowError) as caught:
        AppliedGraph(model, flow.optim.SGD(model.parameters(), lr=0.1), 1)(flow.tensor(X))
    assert all(fact in str(caught.value) for fact in facts)


def test_overwriting_a_saved_tensor_raises() -> None:
    x = flow.tensor(X, requires_grad=True)
    y = x * 1
    z = function_of(lambda saved: saved, keeps=True).apply(y)
    y.add_(1)
    with pytest.raises(flow.JobError, match=r"WithBackward saved for its backward was overwritten"):
        z.sum().backward()


def test_hooks_and_backward_record_only_with_create_graph() -> None:
    observed: list[bool] = []
    w = flow.tensor(X, requires_grad=True)

    def noted(dy: Any) -> Any:
        observed.append(flow.autograd.is_grad_enabled() or (dy * w).requires_grad)
        return dy * w

    x = flow.tensor(X, requires_grad=True)
    x.register_hook(noted)
    function_of(noted).apply(x).sum().backward()
    assert observed == [False, False] and not x.grad.requires_grad
    (first,) = flow.autograd.grad(function_of(noted).apply(x).sum(), x, create_graph=True)
    assert observed[2:] == [True, True] and first.requires_grad
