"""backward adds into existing gradients; zero_grad writes zeros into them; gradients that are zero by formula are tensors."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from ranks import on_ranks, with_ranks

import jobflow as flow
from jobflow import nn
from jobflow.core.errors import ConfigError, JobError


def leaf(dtype: Any = None) -> Any:
    return flow.tensor([1.0, 2.0, 3.0], dtype=dtype or flow.float32, requires_grad=True)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32", "float64"])
def test_backward_adds_into_the_memory_of_an_assigned_gradient(dtype: str) -> None:
    kind = getattr(flow, dtype)
    p, flat = leaf(kind), flow.ones(6, dtype=kind)
    p.grad = flat[3:].view(3)
    saved = p.grad
    for _ in range(2):
        (p * 2).sum().backward()
    assert p.grad is saved
    assert flat.to(flow.float32).numpy().tolist() == [1, 1, 1, 5, 5, 5]


def test_backward_adds_into_a_gradient_with_strides() -> None:
    p, whole = flow.ones(2, 3, requires_grad=True), flow.zeros(3, 2)
    p.grad = whole.t()
    (p * flow.tensor([[1.0, 2.0, 3.0], [4.0, 5.0, 6.0]])).sum().backward()
    assert whole.numpy().tolist() == [[1, 4], [2, 5], [3, 6]]


def test_a_saved_reference_has_the_accumulated_gradient() -> None:
    p = leaf()
    p.sum().backward()
    saved, view = p.grad, p.grad[1:]
    (p * 3).sum().backward()
    assert saved.numpy().tolist() == [4, 4, 4]
    assert view.numpy().tolist() == [4, 4]


def test_gradients_that_began_as_one_tensor_do_not_share_memory() -> None:
    p, q = leaf(), leaf()
    for _ in range(2):
        (p + q).sum().backward()
    (p * 10).sum().backward()
    assert p.grad.numpy().tolist() == [12, 12, 12]
    assert q.grad.numpy().tolist() == [2, 2, 2]


def test_backward_does_not_overwrite_the_gradient_of_a_root() -> None:
    p, seed = leaf(), flow.ones(3)
    for _ in range(2):
        (p * 1.0).backward(seed)
        p.reshape(3).backward(seed)
    assert seed.numpy().tolist() == [1, 1, 1]
    assert p.grad.numpy().tolist() == [4, 4, 4]


@pytest.mark.parametrize("source", ["broadcast", "split"])
def test_gradients_of_global_tensors_do_not_share_memory(source: str) -> None:
    def program(rank: int) -> Any:
        placement_options = flow.placement("cpu", ranks=[0, 1])
        sbp = flow.sbp.broadcast if source == "broadcast" else flow.sbp.split(0)
        p, q = (flow.ones(4, placement=placement_options, sbp=sbp, requires_grad=True) for _ in range(2))
        y = flow.ones(4, placement=placement_options, sbp=flow.sbp.broadcast)
        ((p + q) * y).sum().backward()
        saved = p.grad
        (p * y * 10).sum().backward()
        assert p.grad is saved and p.grad.sbp == p.sbp
        return p.grad.numpy().tolist(), q.grad.numpy().tolist()

    assert on_ranks(2, program) == [([11] * 4, [1] * 4)] * 2


def test_recorded_gradients_are_added_to_new_tensors() -> None:
    p = leaf()
    (p**2).sum().backward(create_graph=True)
    first = p.grad
    (p**3).sum().backward(create_graph=True)
    assert first.detach().numpy().tolist() == [2, 4, 6]
    p.grad, total = None, p.grad.sum()
    total.backward()
    assert p.grad.numpy().tolist() == [8, 14, 20]


def fixed() -> Any:
    array = np.ones(3, np.float32)
    array.flags.writeable = False
    return flow.from_numpy(array)


def overlapping(shape: tuple[int, ...] = (3,), strides: tuple[int, ...] = (0,)) -> Any:
    return flow.from_numpy(np.lib.stride_tricks.as_strided(np.ones(8, np.float32), shape, strides))


READ_ONLY, SHARED = "has the memory of a read-only NumPy array", "share memory"


def with_gradient(gradient: Any) -> Any:
    p = leaf()
    p.grad = gradient
    return p


def parameter(memory: Any) -> Any:
    p = memory.requires_grad_()
    p.grad = flow.ones(3)
    return p


def layer(memory: Any) -> Any:
    linear = nn.Linear(3, 1, bias=False)
    linear.weight.data = memory.reshape(1, 3)
    return linear


def normalize(memory: Any) -> None:
    norm: Any = nn.BatchNorm1d(3)
    norm.running_mean = memory
    norm(flow.ones(2, 3))


#: every way in which the package overwrites the memory of a tensor, and the operation in the message
WRITERS: dict[str, Callable[[Any], Any]] = {
    "backward": lambda memory: with_gradient(memory).sum().backward(),
    "zero_grad": lambda memory: flow.optim.SGD([with_gradient(memory)], lr=0.1).zero_grad(set_to_none=False),
    "optim.SGD.step": lambda memory: flow.optim.SGD([parameter(memory)], lr=0.1).step(),
    "optim.Adam.step": lambda memory: flow.optim.Adam([parameter(memory)], lr=0.1).step(),
    "clip_grad_norm_": lambda memory: nn.utils.clip_grad_norm_([with_gradient(memory)], 0.1),
    "clip_grad_value_": lambda memory: nn.utils.clip_grad_value_([with_gradient(memory)], 0.1),
    "load_state_dict": lambda memory: layer(memory).load_state_dict({"weight": flow.ones(1, 3)}),
    "init.constant_": lambda memory: nn.init.ones_(memory),
    "comm.all_reduce": flow.comm.all_reduce,
    "update of running statistics": normalize,
    "add_": lambda memory: memory.add_(1),
    "x += y": lambda memory: memory.__iadd__(1),
    "copy_": lambda memory: memory.copy_(flow.zeros(3)),
    "uniform_": lambda memory: memory.uniform_(),
    "x[...] = value": lambda memory: memory.__setitem__(0, 1.0),
}


@pytest.mark.parametrize(("memory", "reason"), [(fixed, READ_ONLY), (overlapping, SHARED)])
@pytest.mark.parametrize("operation", WRITERS)
def test_writes_to_read_only_and_shared_memory_are_errors(operation: str, memory: Callable[[], Any], reason: str) -> None:
    with pytest.raises(JobError, match=rf"{re.escape(operation)} at test_accumulated.*:\d+: .*float32\[.*{reason}.*; clone\(\) it first"):
        WRITERS[operation](memory())


@pytest.mark.parametrize(
    ("shape", "strides", "is_shared"),
    [
        ((3, 2), (4, 4), True),
        ((2, 3), (12, 4), False),
        ((3, 2), (8, 12), False),
        ((2, 2), (2, 8), True),
        ((1,), (0,), False),
        ((2, 0), (0, 4), False),
    ],
)
def test_elements_share_memory(shape: tuple[int, ...], strides: tuple[int, ...], is_shared: bool) -> None:
    """Strides 8 and 12 interleave without sharing memory."""
    x = overlapping(shape, strides)
    if is_shared:
        with pytest.raises(JobError, match=SHARED):
            x.add_(1)
    else:
        assert x.add_(1).numpy().tolist() == np.full(shape, 2).tolist()


# -------------------------------------------------------------------- gradients of computed tensors


@pytest.mark.parametrize("by", ["retain_grad", "inputs", "both"])
def test_a_saved_gradient_of_a_computed_tensor_keeps_its_values(by: str) -> None:
    """As in PyTorch, the sum is a new tensor; the sum of a leaf is written in place."""
    w = flow.tensor([1.0, 2.0], requires_grad=True)
    y = w * 2
    if by != "inputs":
        y.retain_grad()
    saved = []
    for _ in range(2):
        (y * y).sum().backward(retain_graph=True, inputs=None if by == "retain_grad" else [w, y])
        saved.append((y.grad, w.grad))
    assert saved[0][0].numpy().tolist() == [4, 8] and saved[1][0].numpy().tolist() == [8, 16]
    assert saved[0][1] is saved[1][1] and w.grad.numpy().tolist() == [16, 32]


def test_an_assigned_gradient_of_a_computed_tensor_is_not_written_to() -> None:
    y, old = leaf() * 2, flow.ones(3)
    y.retain_grad()
    y.grad = old
    y.sum().backward()
    assert old.numpy().tolist() == [1, 1, 1] and y.grad.numpy().tolist() == [2, 2, 2]


def test_retained_gradients_on_the_way_to_the_inputs() -> None:
    """`grad` and `inputs=` fill the retained gradients of tensors between the inputs and the outputs, but of no other tensors."""
    x, other = leaf(), leaf()
    a, b = x * 2, other * 3
    c = a * b
    for y in (a, b, c):
        y.retain_grad()
    flow.autograd.grad(c.sum(), x, retain_graph=True)
    assert c.grad.numpy().tolist() == [1, 1, 1] and a.grad.numpy().tolist() == [3, 6, 9]
    assert b.grad is None and x.grad is None


WRITTEN: dict[str, tuple[Callable[[Any], Any], list[float]]] = {
    "mul_": (lambda y: y.mul_(3), [2, 2, 2]),
    "setitem": (lambda y: y.__setitem__(0, 5.0), [2, 2, 2]),
    "fill_": (lambda y: y.fill_(5.0), [2, 2, 2]),
    "copy_": (lambda y: y.copy_(leaf() * 1), [2, 2, 2]),
    "view": (lambda y: y[1:].mul_(3), [2, 2, 2]),
}


@pytest.mark.parametrize("write", WRITTEN)
def test_retain_grad_follows_in_place_writes(write: str) -> None:
    y = leaf() * 2
    y.retain_grad()
    WRITTEN[write][0](y)
    (y * 2).sum().backward()
    assert y.grad.numpy().tolist() == WRITTEN[write][1]


def test_retain_grad_of_a_view_follows_its_base() -> None:
    y = leaf() * 2
    part = y[1:]
    part.retain_grad()
    y.mul_(3)
    (part * 2).sum().backward()
    assert part.grad.numpy().tolist() == [2, 2]


def test_copy_does_not_share_hooks_and_retained_gradients_with_its_source() -> None:
    v, x, shown = leaf() * 1, flow.zeros(3), []
    x.copy_(v)
    for y in (v, x):
        y.retain_grad()
        y.register_hook(lambda gradient: shown.append(gradient.numpy().tolist()))
    (x.sum() + (v * 3).sum()).backward()
    assert v.grad.numpy().tolist() == [4, 4, 4] and x.grad.numpy().tolist() == [1, 1, 1]
    assert shown == [[1, 1, 1], [4, 4, 4]]


def test_a_retained_gradient_that_is_zero_by_formula_is_zeros() -> None:
    y = leaf() * 2
    y.retain_grad()
    (y**0).sum().backward()
    assert y.grad.numpy().tolist() == [0, 0, 0]


@pytest.mark.parametrize("door", ["optimizer", "module"])
def test_zero_grad_writes_zeros_into_the_memory_of_gradients(door: str) -> None:
    layer = nn.Linear(3, 1, bias=False)
    zeroed: Any = flow.optim.SGD(layer.parameters(), lr=0.1) if door == "optimizer" else layer
    flat = flow.ones(3)
    layer.weight.grad = flat.view(1, 3)
    saved = layer.weight.grad
    zeroed.zero_grad(set_to_none=False)
    assert layer.weight.grad is saved
    assert flat.numpy().tolist() == [0, 0, 0]
    layer(flow.ones(1, 3)).sum().backward()
    assert flat.numpy().tolist() == [1, 1, 1]
    zeroed.zero_grad()
    assert layer.weight.grad is None
    assert flat.numpy().tolist() == [1, 1, 1]


ZERO: dict[str, Callable[[Any], Any]] = {
    "x ** 0": lambda x: x**0,
    "x ** 0 of a computed tensor": lambda x: (x * 2 + 1) ** 0,
    "norm(0)": lambda x: x.norm(0),
    "floor": flow.floor,
    "ceil": flow.ceil,
    "x * 0": lambda x: x * 0,
    "one element of x ** 0": lambda x: (x**0)[1],
}


@pytest.mark.parametrize("name", ZERO)
def test_gradients_that_are_zero_by_formula_are_zeros(name: str) -> None:
    x = leaf()
    ZERO[name](x).sum().backward()
    assert x.grad.numpy().tolist() == [0, 0, 0]
    (x * 2).sum().backward()
    assert x.grad.numpy().tolist() == [2, 2, 2]
    (slope,) = flow.autograd.grad(ZERO[name](x).sum(), x)
    assert slope.numpy().tolist() == [0, 0, 0]


def test_zero_gradients_of_computed_tensors_and_hooks() -> None:
    x, shown = leaf(), []
    y = x * 2
    (slope,) = flow.autograd.grad((y**0).sum(), y, retain_graph=True)
    assert slope.numpy().tolist() == [0, 0, 0]
    x.register_hook(lambda gradient: shown.append(gradient.numpy().tolist()))
    (y**0).sum().backward()
    assert shown == [[0, 0, 0]]


@with_ranks(2)
def test_zero_gradients_of_global_tensors_have_the_layout_of_the_tensor() -> None:
    x = flow.ones(4, placement=flow.placement("cpu", ranks=[0, 1]), sbp=flow.sbp.split(0), requires_grad=True)
    (x**0).sum().backward()
    assert x.grad.sbp == x.sbp
    assert x.grad.numpy().tolist() == [0, 0, 0, 0]


def test_a_gradient_of_none_from_a_user_function_is_none() -> None:
    class NoGradient(flow.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Any) -> Any:
            return x * 1

        @staticmethod
        def backward(ctx: Any, dy: Any) -> Any:
            return None

    x = leaf()
    NoGradient.apply(x).sum().backward()
    assert x.grad is None


def test_the_gradient_of_an_unused_parameter_is_none() -> None:
    x, unused = leaf(), leaf()
    (x**0 + unused.detach()).sum().backward()
    assert unused.grad is None


@pytest.mark.parametrize("kind", [set, frozenset])
def test_optimizers_raise_for_sets(kind: type) -> None:
    p = leaf()
    for params in (kind([p]), [{"params": kind([p])}]):
        with pytest.raises(ConfigError, match=f"params is a {kind.__name__}, whose order differs between runs; pass a list"):
            flow.optim.SGD(params, lr=0.1)
    optimizer = flow.optim.SGD([p], lr=0.1)
    with pytest.raises(ConfigError, match="pass a list"):
        optimizer.add_param_group({"params": kind([leaf()])})
