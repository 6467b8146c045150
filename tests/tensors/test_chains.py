"""Chains: operations that eager mode runs as one have the results of the operations one after another, at every run."""

from __future__ import annotations

import numpy as np
import pytest

import jobflow as flow
from jobflow.core.errors import JobError
from jobflow.nn import functional as F

#: more runs than operations need to be prepared, chained and compiled
RUNS = 36


def tensors(*shapes, dtype=np.float64, seed=0, turned=False):
    random = np.random.RandomState(seed)
    arrays = [random.standard_normal(shape).astype(dtype) for shape in shapes]
    if turned:  # the first tensor is a view with other strides
        arrays[0] = np.asfortranarray(arrays[0])
    return [flow.from_numpy(array).requires_grad_() for array in arrays]


def linear(x, w, b):
    return F.linear(x, w, b)


def separate_linear(x, w, b):
    return flow.matmul(x, w.transpose(0, 1)) + b


def batch_norm(x, w, b):
    return F.batch_norm(x, None, None, w, b, training=True)


def separate_batch_norm(x, w, b):
    axes = [i for i in range(x.ndim) if i != 1]
    wide = [1, -1] + [1] * (x.ndim - 2)
    mean = x.mean(axes, keepdim=True)
    variance = ((x - mean) ** 2).mean(axes, keepdim=True)
    return (x - mean) / (variance + 1e-5).sqrt() * w.reshape(wide) + b.reshape(wide)


CASES = {
    "linear": (linear, separate_linear, [(5, 3), (4, 3), (4,)]),
    "linear of more axes": (linear, separate_linear, [(2, 5, 3), (4, 3), (4,)]),
    "linear of one row": (linear, separate_linear, [(3,), (4, 3), (4,)]),
    "large linear": (linear, separate_linear, [(80, 64), (48, 64), (48,)]),
    "linear without rows": (linear, separate_linear, [(0, 3), (4, 3), (4,)]),
    "batch norm": (batch_norm, separate_batch_norm, [(6, 3), (3,), (3,)]),
    "batch norm of images": (batch_norm, separate_batch_norm, [(4, 3, 5, 2), (3,), (3,)]),
    "large batch norm": (batch_norm, separate_batch_norm, [(64, 40), (40,), (40,)]),
}


@pytest.mark.parametrize("turned", [False, True], ids=["dense", "turned"])
@pytest.mark.parametrize("name", CASES)
def test_a_chain_equals_its_operations_at_every_run(name, turned):
    function, separate, shapes = CASES[name]
    for run in range(RUNS):
        inputs = tensors(*shapes, seed=run, turned=turned)
        others = [x.detach().clone().requires_grad_() for x in inputs]
        y, z = function(*inputs), separate(*others)
        np.testing.assert_allclose(y.numpy(), z.numpy(), rtol=1e-10, atol=1e-12)
        weights = flow.from_numpy(np.random.RandomState(run + 1).standard_normal(y.shape))
        (y * weights).sum().backward()
        (z * weights).sum().backward()
        for x, other in zip(inputs, others, strict=True):
            np.testing.assert_allclose(x.grad.numpy(), other.grad.numpy(), rtol=1e-9, atol=1e-10)


@pytest.mark.parametrize("name", ["linear", "batch norm"])
def test_gradients_of_gradients_pass_through_a_chain(name):
    function, separate, shapes = CASES[name]
    answers = []
    for each in (function, separate):
        inputs = tensors(*shapes)
        gradients = flow.autograd.grad((each(*inputs) ** 3).sum(), inputs, create_graph=True)
        second = flow.autograd.grad(sum((g**2).sum() for g in gradients), inputs, allow_unused=True)
        answers.append([g.numpy() for g in second])
    for a, b in zip(*answers, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-7, atol=1e-8)


def test_only_the_requested_gradients_are_computed():
    for run in range(RUNS):
        x, w, b = tensors((5, 3), (4, 3), (4,), seed=run)
        w.requires_grad = False
        F.linear(x, w, b).sum().backward()
        np.testing.assert_allclose(x.grad.numpy(), np.ones((5, 4)) @ w.numpy())
        np.testing.assert_allclose(b.grad.numpy(), np.full(4, 5.0))
        assert w.grad is None


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32"])
def test_running_statistics_move_at_every_run(dtype):
    layer = flow.nn.BatchNorm1d(3, momentum=0.25)
    mean, variance = np.zeros(3), np.ones(3)
    for run in range(RUNS):
        x = flow.from_numpy(np.random.RandomState(run).standard_normal((8, 3)) + 2).to(getattr(flow, dtype))
        layer(x)
        exact = x.to(flow.float64).numpy()
        mean, variance = 0.75 * mean + 0.25 * exact.mean(0), 0.75 * variance + 0.25 * exact.var(0, ddof=1)
    np.testing.assert_allclose(layer.running_mean.numpy(), mean, rtol=1e-4)
    np.testing.assert_allclose(layer.running_var.numpy(), variance, rtol=1e-4)
    assert layer.num_batches_tracked.item() == RUNS


def test_running_statistics_in_one_memory_are_updated_one_after_another():
    shared = flow.zeros(3)
    for _ in range(RUNS):
        before = shared.numpy().copy()
        x = flow.randn(8, 3)
        F.batch_norm(x, shared, shared, training=True, momentum=0.5)
        mean, variance = x.numpy().mean(0), x.numpy().var(0, ddof=1)
        np.testing.assert_allclose(shared.numpy(), 0.5 * (0.5 * before + 0.5 * mean) + 0.5 * variance, rtol=1e-4)


def test_backward_names_linear_if_its_input_changed():
    x, w, b = tensors((5, 3), (4, 3), (4,))
    z = x * 2
    y = F.linear(z, w, b)
    with flow.no_grad():
        z.add_(1)
    with pytest.raises(JobError, match="gradient of linear needs was overwritten"):
        y.sum().backward()
