"""Habits of programs for PyTorch: sizes, NumPy functions, broadcast losses, einsum with lists, used graphs, sums of sparse tensors, and types."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import jobflow as flow

X = np.arange(1.0, 7.0).reshape(2, 3)


def test_slices_sums_and_multiples_of_a_size_are_sizes() -> None:
    shape = flow.ones(2, 3).shape
    one = (1,)
    results = {shape[1:]: (3,), shape[::-1]: (3, 2), shape + one: (2, 3, 1), one + shape: (1, 2, 3), shape * 2: (2, 3, 2, 3), 2 * shape: (2, 3) * 2}
    assert all(result == expected and type(result) is flow.Size for result, expected in results.items())
    assert shape[1:].numel() == 3 and type(shape[0]) is int


def test_numpy_functions_return_tensors() -> None:
    x = flow.tensor(X)
    for result, expected in ((np.sin(x), np.sin(X)), (np.add(X, x), 2 * X), (np.cumsum(x, 0), np.cumsum(X, 0)), (np.divmod(x, 2)[1], X % 2)):
        assert isinstance(result, flow.Tensor)
        np.testing.assert_allclose(result.numpy(), expected)
    assert np.sqrt(flow.tensor(4.0)).item() == 2 and type(np.array(x)) is np.ndarray
    with pytest.raises(flow.JobError, match=r"test_programs_of_pytorch.py:\d+.*x\.detach\(\)"):
        np.sin(flow.ones(2, requires_grad=True))


@pytest.mark.parametrize(
    ("name", "reference"),
    [("mse_loss", lambda d: d**2), ("l1_loss", np.abs), ("smooth_l1_loss", lambda d: np.abs(d) - 0.5), ("huber_loss", lambda d: np.abs(d) - 0.5)],
)
def test_losses_broadcast_with_a_notice(name: str, reference: Callable[[Any], Any], capsys: pytest.CaptureFixture[str]) -> None:
    input, target = flow.tensor(X, requires_grad=True), flow.tensor([[9.0], [20.0]]).double()
    loss = getattr(flow.nn.functional, name)(input, target)
    np.testing.assert_allclose(loss.item(), reference(X - target.numpy()).mean())
    loss.backward()
    assert input.grad.shape == (2, 3) and f"{name} at test_programs_of_pytorch.py" in capsys.readouterr().err
    with pytest.raises(flow.errors.ShapeError, match="must have the same shape"):
        getattr(flow.nn.functional, name)(input, target.expand(2, 2))


def test_einsum_accepts_lists_of_axes() -> None:
    x = flow.tensor(X)
    np.testing.assert_allclose(flow.einsum(x, [0, 1], x, [27, 1], [27, 0]).numpy(), X @ X.T)
    np.testing.assert_allclose(flow.einsum(x, [..., 1], flow.ones(3).double(), [1], [...]).numpy(), X.sum(1))
    for arguments in ((x, 3), (x, [0, 52]), (x, [0, True])):
        with pytest.raises(flow.errors.ArgumentError, match=r"einsum at .*(list of the numbers|from 0 to 51)"):
            flow.einsum(*arguments)


def test_graphs_without_saved_values_run_twice() -> None:
    x = flow.ones(2, 3, requires_grad=True)
    total = flow.cat([x + x, x.t().reshape(2, 3)]).sum(0).mean()
    total.backward()
    total.backward()
    np.testing.assert_allclose(x.grad.numpy(), 2.0)
    loss = (x.sum() * x).sum()
    loss.backward()
    with pytest.raises(flow.JobError, match="retain_graph"):
        loss.backward()


def test_sparse_tensors_add_up() -> None:
    a, b = (flow.tensor(x, requires_grad=True) for x in ([[1.0, 0.0], [2.0, 0.0]], [[0.0, 3.0], [4.0, 0.0]]))
    total = a.to_sparse() + b.to_sparse()
    assert total.is_sparse and total.is_coalesced() and total.indices().tolist() == [[0, 0, 1], [0, 1, 0]]
    flow.sub(total, b.to_sparse(), alpha=3).to_dense().sum().backward()
    assert a.grad.tolist() == [[1, 0], [1, 0]] and b.grad.tolist() == [[0, -2], [-2, 0]]
    np.testing.assert_array_equal((flow.ones(2, 2) + total).detach().numpy(), [[2, 4], [7, 1]])
    np.testing.assert_array_equal((flow.ones(2, 2) - total).detach().numpy(), [[0, -2], [-5, 1]])
    for other, text in ((a, "dense . sparse"), (1, "call to_dense"), (flow.ones(3, 3).to_sparse(), "same shape"), (a.to_sparse_csr(), "same shape")):
        with pytest.raises(flow.JobflowError, match=text):
            total + other


def test_types_and_ends_of_special_cases() -> None:
    half, double, integers = flow.ones(2).half(), flow.tensor(2.0, dtype=flow.float64), flow.ones(2, dtype=flow.int32)
    assert flow.kron(double, half).dtype is flow.float64 and flow.ldexp(double, integers).dtype is flow.float64
    assert flow.ldexp(half, integers).dtype is flow.float16 and flow.ldexp(integers, integers).dtype is flow.float32
    assert flow.lcm(flow.tensor([2**31 - 1, 4]).int(), flow.tensor([2, 6]).int()).tolist() == [2, 12]
    assert flow.ones(0).nanmedian().isnan().item() and flow.ones(0).median().isnan().item()
    with pytest.raises(flow.errors.DtypeError, match="ldexp"):
        flow.ldexp(half, integers.bool())


LAZY = (
    lambda: flow.nn.Sequential(flow.nn.LazyConv1d(3, 2), flow.nn.LazyBatchNorm1d(), flow.nn.ReLU()),
    lambda: flow.nn.LazyConv1d(2, 1, bias=False),
)


@pytest.mark.parametrize("assign", [False, True])
def test_lazy_modules_load_a_state_before_their_first_call(assign: bool) -> None:
    for create in LAZY:
        trained, loaded = create(), create()
        x = flow.rand(2, 4, 5)
        trained(x)
        assert repr(loaded.load_state_dict(trained.state_dict(), assign=assign)) == "<All keys matched successfully>"
        np.testing.assert_array_equal(loaded.eval()(x).detach().numpy(), trained.eval()(x).detach().numpy())
        assert repr(loaded) == repr(trained)
    wrong = flow.nn.LazyLinear(3)
    wrong.load_state_dict(flow.nn.Linear(4, 5).state_dict())
    with pytest.raises(flow.errors.ShapeError, match=r"the loaded weight is float32\[5,4\]"):
        wrong(flow.ones(1, 4))
