"""DistributedDataParallel: gradients are means over the ranks, for every parameter that at least one rank used."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from ranks import on_ranks, with_ranks

import jobflow as flow
from jobflow import nn
from jobflow.core.errors import ArgumentError, DivergedError, JobError
from jobflow.core.layout import B, Layout, Placement
from jobflow.nn.parallel import DistributedDataParallel

PARTS = 4


class Parts(nn.Module):
    """A chain of layers, of which a call uses some, with an unused buffer and an unused parameter."""

    def __init__(self, seed: int) -> None:
        super().__init__()
        rng = np.random.default_rng(seed)
        self.parts = nn.ModuleList([nn.Linear(3, 3) for _ in range(PARTS)])
        self.spare = nn.Parameter(flow.ones(3, dtype=flow.float64))
        self.register_buffer("calls", flow.tensor(np.full(2, float(seed))))
        self.to(flow.float64)
        with flow.no_grad():
            for p in self.parts.parameters():
                p.copy_(flow.tensor(rng.standard_normal(tuple(p.shape))))

    def forward(self, x: Any, uses: list[int]) -> Any:
        for i in uses:
            x = flow.tanh(self.parts[i](x))
        return x


def rows(rank: int, step: int) -> Any:
    return flow.tensor(np.random.default_rng([rank, step]).standard_normal((2, 3)))


def array(x: Any) -> Any:
    return None if x is None else x.numpy().copy()


def optimizers() -> dict[str, Callable[[Any], Any]]:
    return {
        "sgd": lambda p: flow.optim.SGD(p, lr=0.1, momentum=0.9, weight_decay=0.1),
        "adamw": lambda p: flow.optim.AdamW(p, lr=0.1, weight_decay=0.1),
    }


def plan_of(seed: int, n: int, steps: int = 4) -> list[dict[str, Any]]:
    """Return random steps: the parts that each pass uses by rank, accumulation, and the part that changes its requires_grad."""
    rng = random.Random(seed)
    return [
        {
            "uses": [[sorted(rng.sample(range(PARTS), rng.randint(0, PARTS))) for _ in range(n)] for _ in range(rng.choice([1, 1, 2, 3]))],
            "frozen": sorted(rng.sample(range(PARTS), rng.choice([0, 0, 1, 2]))),
            "direct": rng.random() < 0.2,
            "to_none": rng.random() < 0.6,
        }
        for _ in range(steps)
    ]


def freeze(model: Parts, frozen: list[int]) -> None:
    for i, part in enumerate(model.parts):
        part.requires_grad_(i not in frozen)


def parallel(rank: int, plan: list[dict[str, Any]], optimizer_of: Callable[[Any], Any], options: dict[str, Any]) -> Any:
    """Return the weights and gradients of one rank after every step."""
    model = Parts(seed=rank)
    freeze(model, plan[0]["frozen"])
    wrapped = DistributedDataParallel(model, **options)
    optimizer, steps = optimizer_of(list(model.parameters())), []
    for step, each in enumerate(plan):
        freeze(model, each["frozen"])
        optimizer.zero_grad(set_to_none=each["to_none"])
        for i, uses in enumerate(each["uses"]):
            x = rows(rank, 10 * step + i)
            x.requires_grad = True  # a rank that uses no part has a gradient too
            if i + 1 < len(each["uses"]):
                with wrapped.no_sync():
                    wrapped(x, uses[rank]).sum().backward()
            else:
                (model if each["direct"] else wrapped)(x, uses[rank]).sum().backward()
        steps.append([(array(p), array(p.grad)) for p in model.parameters()])
        optimizer.step()
    return steps


def alone(plan: list[dict[str, Any]], optimizer_of: Callable[[Any], Any], n: int) -> Any:
    """Return the same training without DistributedDataParallel, with the passes of all ranks one after another on one rank."""
    model = Parts(seed=0)
    optimizer, steps = optimizer_of(list(model.parameters())), []
    for step, each in enumerate(plan):
        freeze(model, each["frozen"])
        optimizer.zero_grad(set_to_none=each["to_none"])
        for i, by_rank in enumerate(each["uses"]):
            for rank, uses in enumerate(by_rank):
                x = rows(rank, 10 * step + i)
                x.requires_grad = True
                (model(x, uses).sum() / n).backward()
        steps.append([(array(p), array(p.grad)) for p in model.parameters()])
        optimizer.step()
    return steps


def compare(seed: int, n: int, optimizer: str, options: dict[str, Any]) -> None:
    plan, make = plan_of(seed, n), optimizers()[optimizer]
    (expected,) = on_ranks(1, lambda _: alone(plan, make, n))
    for steps in on_ranks(n, parallel, plan, make, options):
        for step, (ours, theirs) in enumerate(zip(steps, expected, strict=True)):
            for (p, gradient), (q, mean) in zip(ours, theirs, strict=True):
                assert (gradient is None) == (mean is None), f"step {step} of {plan}"
                np.testing.assert_allclose(p, q, rtol=1e-7, atol=1e-9, err_msg=f"step {step} of {plan}")
                if mean is not None:
                    np.testing.assert_allclose(gradient, mean, rtol=1e-7, atol=1e-9, err_msg=f"step {step} of {plan}")


OPTIONS: list[dict[str, Any]] = [
    {},
    {"bucket_size": 1, "gradient_as_bucket_view": True},
    {"bucket_size": 3, "find_unused_parameters": True},
    {"bucket_size": 2, "static_graph": True, "gradient_as_bucket_view": True},
]


@pytest.mark.parametrize("seed", range(12))
def test_training_with_unused_parts_equals_training_on_one_rank(seed: int) -> None:
    compare(seed, 2 + seed % 2, ["sgd", "adamw"][seed // 2 % 2], OPTIONS[seed % 4])


@pytest.mark.full
@pytest.mark.parametrize("optimizer", ["sgd", "adamw"])
@pytest.mark.parametrize("options", OPTIONS, ids=str)
@pytest.mark.parametrize("seed", range(100, 112))
def test_every_combination_with_unused_parts_equals_training_on_one_rank(seed: int, options: dict[str, Any], optimizer: str) -> None:
    compare(seed, 2 + seed % 3, optimizer, options)


@pytest.mark.parametrize("bucket_size", [1, 2, 10])
@pytest.mark.parametrize("n", [1, 2, 3])
def test_gradients_are_means_and_a_second_pass_adds(n: int, bucket_size: int) -> None:
    def program(rank: int) -> Any:
        model = Parts(seed=rank)
        wrapped = DistributedDataParallel(model, bucket_size=bucket_size)
        for step in range(2):
            model.calls.array += rank
            wrapped(rows(rank, step), [0, 2]).sum().backward()
        return [array(p.grad) for p in model.parameters()], array(model.calls)

    def expected(_: int) -> Any:
        model = Parts(seed=0)
        for step in range(2):
            for rank in range(n):
                (model(rows(rank, step), [0, 2]).sum() / n).backward()
        return [array(p.grad) for p in model.parameters()]

    (means,) = on_ranks(1, expected)
    for gradients, buffer in on_ranks(n, program):
        for gradient, mean in zip(gradients, means, strict=True):
            assert (gradient is None) == (mean is None)
            if mean is not None:
                np.testing.assert_allclose(gradient, mean, rtol=1e-12)
        np.testing.assert_array_equal(buffer, np.zeros(2))


def test_parameters_added_or_unfrozen_after_wrapping_are_averaged() -> None:
    def program(rank: int) -> Any:
        model = Parts(seed=rank)
        model.parts[1].requires_grad_(False)
        wrapped = DistributedDataParallel(model)
        wrapped(rows(rank, 0), [0, 1]).sum().backward()
        assert model.parts[1].weight.grad is None
        model.parts[1].requires_grad_(True)
        model.parts.append(nn.Linear(3, 3).to(flow.float64))
        wrapped(rows(rank, 1), [1, PARTS]).sum().backward()
        return [array(x) for x in (model.parts[1].weight.grad, model.parts[PARTS].weight, model.parts[PARTS].weight.grad)]

    first, second = on_ranks(2, program)
    for a, b in zip(first, second, strict=True):
        np.testing.assert_array_equal(a, b)


def test_unfreezing_a_parameter_between_forward_and_backward_raises() -> None:
    def program(rank: int) -> None:
        model = Parts(seed=0)
        model.spare.requires_grad_(False)
        output = DistributedDataParallel(model)(rows(rank, 0), [0])
        model.spare.requires_grad_(True)
        (output.sum() + model.spare.sum()).backward()

    with pytest.raises(JobError, match="did not require one when the module was last called"):
        on_ranks(2, program, anew=True)


def test_ranks_with_different_trained_parameters_raise() -> None:
    def program(rank: int) -> None:
        model = Parts(seed=0)
        model.parts[1].requires_grad_(rank == 0)
        DistributedDataParallel(model)(rows(rank, 0), [0]).sum().backward()

    with pytest.raises(DivergedError):
        on_ranks(2, program, anew=True)


def test_a_failed_backward_does_not_change_the_next_one() -> None:
    def program(rank: int) -> Any:
        model = Parts(seed=0)
        wrapped = DistributedDataParallel(model, bucket_size=1)
        x = rows(rank, 0)
        x.requires_grad = True

        def fail(_: Any) -> None:
            raise ValueError("a hook fails")

        handle = x.register_hook(fail)
        with pytest.raises(ValueError, match="a hook fails"):
            wrapped(x, [0, 1]).sum().backward()
        handle.remove()
        model.zero_grad()
        wrapped(rows(rank, 1), [1, 2]).sum().backward()
        return [array(p.grad) for p in model.parameters()]

    first, second = on_ranks(2, program)
    assert [g is None for g in first] == [True, True, True, False, False, False, False, True, True]
    for a, b in zip(first, second, strict=True):
        np.testing.assert_array_equal(a, b)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32"])
def test_gradients_of_every_float_type_are_averaged(dtype: str) -> None:
    def program(rank: int) -> Any:
        layer = nn.Linear(2, 1, bias=False).to(getattr(flow, dtype))
        DistributedDataParallel(layer)(flow.full((1, 2), float(rank), dtype=getattr(flow, dtype))).sum().backward()
        return layer.weight.grad.to(flow.float32).numpy().tolist()

    assert on_ranks(2, program) == [[[0.5, 0.5]], [[0.5, 0.5]]]


def test_gradients_are_views_of_one_array_under_gradient_as_bucket_view() -> None:
    def program(rank: int) -> Any:
        model = Parts(seed=0)
        wrapped = DistributedDataParallel(model, gradient_as_bucket_view=True)
        wrapped(rows(rank, 0), [0]).sum().backward()
        saved = model.parts[0].weight.grad
        wrapped(rows(rank, 1), [0]).sum().backward()
        weight, bias = model.parts[0].weight.grad, model.parts[0].bias.grad
        return saved is weight, np.may_share_memory(weight.numpy(), bias.numpy().base), np.array_equal(saved.numpy(), weight.numpy())

    assert on_ranks(2, program) == [(True, True, True)] * 2


def test_module_is_the_wrapped_module_and_names_have_its_prefix() -> None:
    model = Parts(seed=0)
    wrapped = DistributedDataParallel(model)
    assert wrapped.module is model
    assert list(wrapped.state_dict()) == [f"module.{name}" for name in model.state_dict()]
    assert wrapped.eval().module.training is False


def test_arguments_other_than_modules_raise() -> None:
    with pytest.raises(ArgumentError, match=r"module is int; pass an nn\.Module"):
        DistributedDataParallel(3)


@with_ranks(2)
def test_global_modules_raise() -> None:
    model = Parts(seed=0)
    model.spare.layout = Layout(Placement("cpu", (0, 1)), (B,))
    with pytest.raises(JobError, match="omit DistributedDataParallel"):
        DistributedDataParallel(model)
