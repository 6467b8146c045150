"""Sparse tensors: products with dense tensors in every layout and kind of program, conversions, and unsupported uses."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from ranks import on_ranks

import jobflow as flow

INDICES, VALUES, SHAPE = [[0, 2, 1, 2, 2], [1, 0, 3, 2, 0]], np.array([1.5, -2.0, 0.5, 3.0, 4.0]), (4, 5)
DENSE = np.zeros(SHAPE)
np.add.at(DENSE, tuple(INDICES), VALUES)
X = np.random.default_rng(3).standard_normal((5, 3))
LAYOUTS = [flow.sbp.broadcast, flow.sbp.split(0), flow.sbp.split(1), flow.sbp.partial_sum]


def matrix(**options: Any) -> Any:
    return flow.sparse_coo_tensor(INDICES, VALUES, SHAPE, dtype=flow.float64, **options)


def csr() -> Any:
    return flow.sparse_csr_tensor([0, 1, 2, 4, 4], [1, 3, 0, 2], [1.5, 0.5, 2.0, 3.0], SHAPE, dtype=flow.float64)


PRODUCTS: dict[str, Callable[[Any, Any], Any]] = {
    "operator": lambda a, x: a @ x,
    "mm": flow.mm,
    "matmul": flow.matmul,
    "spmm": flow.spmm,
    "sparse.mm": flow.sparse.mm,
    "method": lambda a, x: a.mm(x),
    "vectors": lambda a, x: flow.stack([a.mv(x[:, i]) for i in range(3)], 1),
    "from the right": lambda a, x: (x.t() @ a.t()).t(),
    "addmm": lambda a, x: flow.sparse.addmm(flow.zeros(4, 3, dtype=flow.float64), a, x, alpha=2.0) / 2,
    "rows": lambda a, x: a.to_sparse_csr() @ x,
    "scaled": lambda a, x: (-(a * 2) / 2) @ (-x),
}


@pytest.mark.parametrize("name", PRODUCTS)
def test_products_equal_those_of_dense_matrices(name: str) -> None:
    for a, expected in ((matrix(), DENSE), (csr(), np.abs(DENSE))):
        x = flow.tensor(X, requires_grad=True)
        y = PRODUCTS[name](a, x)
        np.testing.assert_allclose(y.detach().numpy(), expected @ X, atol=1e-12)
        y.sum().backward()
        np.testing.assert_allclose(x.grad.numpy(), np.broadcast_to(expected.sum(0)[:, None], X.shape), atol=1e-12)


def test_products_are_equal_in_every_layout_and_program() -> None:
    def program(rank: int) -> None:
        here = flow.placement("cpu", range(2))
        for a in (matrix(), flow.sparse_coo_tensor(INDICES, flow.tensor(VALUES, placement=here, sbp=flow.sbp.split(0)), SHAPE)):
            for sbp in LAYOUTS:
                x = flow.tensor(X, placement=here, sbp=flow.sbp.broadcast).to_global(sbp=sbp).requires_grad_()
                y = a @ x
                np.testing.assert_allclose(y.detach().numpy(), DENSE @ X, atol=1e-12)
                (y * y).sum().backward()
                np.testing.assert_allclose(x.grad.numpy(), 2 * DENSE.T @ DENSE @ X, atol=1e-12)
                for run in (flow.compile(lambda x, a=a: a @ x), _graph(a)):
                    np.testing.assert_allclose(run(x.detach()).numpy(), DENSE @ X, atol=1e-12)

    on_ranks(2, program)


def _graph(a: Any) -> Any:
    class Product(flow.nn.Graph):
        def build(self, x: Any) -> Any:
            return a @ x

    return Product()


def test_values_receive_gradients() -> None:
    values = flow.tensor(VALUES, requires_grad=True)
    a = flow.sparse_coo_tensor(INDICES, values, SHAPE)
    (a.coalesce() @ flow.tensor(X)).sum().backward()
    np.testing.assert_allclose(values.grad.numpy(), X.sum(1)[INDICES[1]])


def test_conversions_preserve_values_and_indices() -> None:
    a = matrix()
    assert a.is_sparse and not a.is_coalesced() and a.shape == SHAPE and a._nnz() == 5
    np.testing.assert_array_equal(a.to_dense().numpy(), DENSE)
    unique = a.coalesce()
    assert unique.indices().tolist() == [[0, 1, 2, 2], [1, 3, 0, 2]] and unique.values().tolist() == [1.5, 0.5, 2.0, 3.0]
    np.testing.assert_array_equal(a.t().coalesce().to_dense().numpy(), DENSE.T)
    again = flow.tensor(DENSE).to_sparse()
    assert again.indices().tolist() == unique.indices().tolist() and not flow.tensor(DENSE).is_sparse
    rows = flow.tensor(DENSE).to_sparse(1)
    assert rows.indices().tolist() == [[0, 1, 2]] and rows.values().shape == (3, 5) and rows.dense_dim() == 1
    np.testing.assert_array_equal(rows.to_dense().numpy(), DENSE)
    compressed = flow.tensor(DENSE).to_sparse_csr()
    assert compressed.crow_indices().tolist() == [0, 1, 2, 4, 4] and compressed.col_indices().tolist() == [1, 3, 0, 2]
    by_class = flow.sparse.DoubleTensor(flow.LongTensor(INDICES), flow.tensor(VALUES), flow.Size(SHAPE))
    assert (
        isinstance(by_class, flow.sparse.DoubleTensor)
        and not isinstance(by_class, flow.sparse.FloatTensor)
        and flow.sparse.IntTensor(2, 3)._nnz() == 0
    )
    np.testing.assert_array_equal(by_class.to_dense().numpy(), DENSE)
    assert compressed.is_sparse_csr and compressed.float().dtype is flow.float32 and a.sum().item() == VALUES.sum()


REFUSED: list[tuple[Callable[[], Any], str]] = [
    (lambda: flow.relu(matrix()), r"relu.*to_dense"),
    (lambda: matrix().relu(), r"relu.*to_dense"),
    (lambda: matrix() + 1, r"add.*to_dense"),
    (lambda: matrix()[0], r"getitem.*to_dense"),
    (lambda: matrix() @ matrix(), r"matmul.*sparse.*to_dense"),
    (lambda: matrix() * flow.tensor(DENSE), r"mul.*number"),
    (lambda: matrix() @ flow.tensor(X[:4]), r"5 rows"),
    (lambda: matrix() @ flow.tensor(X).float(), r"float64.*float32"),
    (lambda: matrix().values(), r"coalesce"),
    (lambda: matrix().crow_indices(), r"to_sparse_csr"),
    (lambda: matrix(requires_grad=True), r"requires_grad"),
    (lambda: flow.sparse_coo_tensor([[0], [5]], [1.0], (2, 2)), r"index 5.*axis 1"),
    (lambda: flow.sparse_coo_tensor([[0], [-1]], [1.0], (2, 2)), r"contains -1"),
    (lambda: flow.sparse_coo_tensor([[0.5], [1]], [1.0]), r"integers"),
    (lambda: flow.sparse_coo_tensor([[0], [1]], [1.0, 2.0]), r"1 indices"),
    (lambda: flow.sparse_coo_tensor([[0], [1]], [1.0], "ab"), r"size"),
    (lambda: flow.sparse_csr_tensor([0, 2], [0], [1.0]), r"crow_indices"),
    (lambda: flow.tensor(X).to_sparse(3), r"sparse_dim"),
    (lambda: flow.sparse.FloatTensor(1.5), r"sparse.FloatTensor.*sizes; got \(1.5,\)"),
    (lambda: flow.spmm(matrix(), matrix()), r"must be a dense tensor"),
    (lambda: flow.spmm(flow.tensor(X), 2.0), r"Tensor and float"),
]


@pytest.mark.parametrize("number", range(len(REFUSED)))
def test_unsupported_uses_raise_errors(number: int) -> None:
    call, message = REFUSED[number]
    with pytest.raises((flow.JobflowError, AttributeError), match=message):
        call()


def test_data_parallel_runs_the_module_on_one_device() -> None:
    module = flow.nn.Linear(3, 2)
    wrapped = flow.nn.DataParallel(module, device_ids=[0])
    assert list(wrapped.state_dict()) == ["module.weight", "module.bias"] and wrapped.module is module
    np.testing.assert_array_equal(wrapped(flow.ones(4, 3)).detach().numpy(), module(flow.ones(4, 3)).detach().numpy())
    with pytest.raises(flow.JobflowError, match=r"2 devices.*DistributedDataParallel"):
        flow.nn.DataParallel(module, device_ids=[0, 1])
    with pytest.raises(flow.JobflowError, match="device_ids"):
        flow.nn.DataParallel(module, device_ids="all")


def test_spmm_multiplies_dense_matrices() -> None:
    a, b = flow.tensor(X), flow.tensor(X.T.copy())
    np.testing.assert_array_equal(flow.spmm(a, b).numpy(), (a @ b).numpy())


def test_products_follow_writes_to_values() -> None:
    """On ranks, the values have a placement without the first rank."""

    def program(rank: int) -> None:
        here = flow.placement("cpu", [1, 2])
        for options in ({}, {"placement": here, "sbp": flow.sbp.split(0)}):
            values = flow.tensor([1.0, 2.0], **options)
            a, x = flow.sparse_coo_tensor([[0, 1], [0, 0]], values, (2, 2)).coalesce(), flow.ones(2, 1, **options)
            for call in (lambda x, a=a: a @ x, flow.compile(lambda x, a=a: a @ x, fullgraph=True)):
                first = call(x).numpy()
                a.values().mul_(2)
                np.testing.assert_array_equal(call(x).numpy(), 2 * first)

    on_ranks(3, program)
