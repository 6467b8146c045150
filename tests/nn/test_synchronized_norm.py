"""SyncBatchNorm on ranks equals BatchNorm of the whole batch, also in gradients and running statistics."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from ranks import on_ranks

import jobflow as flow
import jobflow.distributed as dist
from jobflow import nn
from jobflow.core.errors import ArgumentError, JobError, ShapeError
from jobflow.nn.parallel import DistributedDataParallel

#: rows of each rank, which differ
SIZES = (3, 1, 2)
SHAPES = {"[n, c]": (4,), "[n, c, l]": (4, 5), "[n, c, h, w]": (4, 2, 3)}


def samples(shape: tuple[int, ...]) -> tuple[Any, Any]:
    rng = np.random.default_rng(3)
    return rng.standard_normal((sum(SIZES), *shape)) + 2, rng.standard_normal((sum(SIZES), *shape))


def own(values: Any, rank: int) -> Any:
    start = sum(SIZES[:rank])
    return flow.tensor(values[start : start + SIZES[rank]])


def trained(norm: Any, x: Any, weight: Any) -> dict[str, Any]:
    """Return the results of a step in training, and the running statistics."""
    x.requires_grad_()
    y = norm(x)
    (y * weight).sum().backward()
    layer = getattr(norm, "module", norm)
    values = {"y": y, "x": x.grad, "weight": layer.weight.grad, "bias": layer.bias.grad, "mean": layer.running_mean, "var": layer.running_var}
    return {name: value.detach().numpy().copy() for name, value in values.items()}


def layer(kind: Any, **options: Any) -> Any:
    norm = kind(4, **options).to(flow.float64)
    with flow.no_grad():
        norm.weight.copy_(flow.tensor([1.0, -2.0, 0.5, 3.0]))
    return norm


@pytest.mark.parametrize("momentum", [0.3, None])
@pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES)
def test_ranks_equal_one_process_with_the_whole_batch(shape: tuple[int, ...], momentum: float | None) -> None:
    values, weights = samples(shape)
    kind = {1: nn.BatchNorm1d, 2: nn.BatchNorm1d, 3: nn.BatchNorm2d}[len(shape)]
    whole = trained(layer(kind, momentum=momentum), flow.tensor(values), flow.tensor(weights))
    on_each = on_ranks(3, lambda rank: trained(layer(nn.SyncBatchNorm, momentum=momentum), own(values, rank), own(weights, rank)))
    for name in ("y", "x"):
        np.testing.assert_allclose(np.concatenate([each[name] for each in on_each]), whole[name], rtol=1e-10, atol=1e-12, err_msg=name)
    for name in ("weight", "bias"):
        np.testing.assert_allclose(sum(each[name] for each in on_each), whole[name], rtol=1e-10, atol=1e-12, err_msg=name)
    for name in ("mean", "var"):
        for each in on_each:
            np.testing.assert_allclose(each[name], whole[name], rtol=1e-12, err_msg=name)


def test_data_parallel_training_equals_one_process() -> None:
    """The mean of the ranks' losses is the loss of the whole batch if the batches are equal."""
    rng = np.random.default_rng(0)
    values, target = rng.standard_normal((8, 4)), rng.standard_normal((8, 1))

    def model() -> Any:
        flow.manual_seed(1)
        return nn.Sequential(nn.Linear(4, 6), nn.BatchNorm1d(6), nn.ReLU(), nn.Linear(6, 1)).to(flow.float64)

    def steps(net: Any, x: Any, y: Any) -> list[Any]:
        optimizer = flow.optim.SGD(net.parameters(), lr=0.2, momentum=0.9)
        for _ in range(3):
            optimizer.zero_grad()
            nn.functional.mse_loss(net(x), y).backward()
            optimizer.step()
        net.eval()
        return [*(p.detach().numpy().copy() for p in net.parameters()), net(x).detach().numpy()]

    def program(rank: int) -> Any:
        part = slice(rank * 4, rank * 4 + 4)
        net = DistributedDataParallel(
            nn.SyncBatchNorm.convert_sync_batchnorm(model()), device_ids=[0], output_device="cpu", process_group=dist.group.WORLD, bucket_cap_mb=1
        )
        return steps(net, flow.tensor(values[part]), flow.tensor(target[part]))

    alone = steps(model(), flow.tensor(values), flow.tensor(target))
    ranks = on_ranks(2, program)
    for each in ranks:
        for here, there in zip(each[:-1], alone[:-1], strict=True):
            np.testing.assert_allclose(here, there, rtol=1e-9, atol=1e-12)
    np.testing.assert_allclose(np.concatenate([each[-1] for each in ranks]), alone[-1], rtol=1e-9)


def test_a_group_has_its_own_statistics_and_gradients() -> None:
    values, weights = samples((4,))

    def program(rank: int) -> Any:
        group = dist.new_group([0, 2])
        if rank == 1:
            return None
        norm = DistributedDataParallel(layer(nn.SyncBatchNorm, process_group=group), process_group=group)
        return trained(norm, own(values, rank), own(weights, rank))

    first, _, last = on_ranks(3, program)
    rows = [0, 1, 2, 4, 5]
    whole = trained(layer(nn.BatchNorm1d), flow.tensor(values[rows]), flow.tensor(weights[rows]))
    np.testing.assert_allclose(np.concatenate([first["y"], last["y"]]), whole["y"], rtol=1e-10)
    np.testing.assert_allclose(first["weight"], whole["weight"] / 2, rtol=1e-10)


def test_conversion_keeps_parameters_buffers_and_modes() -> None:
    net = nn.Sequential(nn.Conv2d(1, 2, 1), nn.BatchNorm2d(2), nn.Sequential(nn.BatchNorm1d(3, affine=False).eval()))
    converted: Any = nn.SyncBatchNorm.convert_sync_batchnorm(net)
    assert converted is net and isinstance(net[1], nn.SyncBatchNorm) and isinstance(net[2][0], nn.SyncBatchNorm)
    assert net[1].training and not net[2][0].training and net[2][0].weight is None
    assert sorted(net.state_dict()) == sorted(nn.Sequential(nn.Conv2d(1, 2, 1), nn.BatchNorm2d(2), net[2]).state_dict())
    alone = nn.SyncBatchNorm.convert_sync_batchnorm(nn.BatchNorm1d(3))
    assert isinstance(alone, nn.SyncBatchNorm) and nn.SyncBatchNorm.convert_sync_batchnorm(alone) is alone


class Graph(nn.Graph):
    """A graph of one module."""

    def __init__(self, module: Any) -> None:
        super().__init__()
        self.module = module

    def build(self, x: Any) -> Any:
        return self.module(x)


def test_invalid_arguments_raise() -> None:
    norm = nn.SyncBatchNorm(4)
    for kind, words, call in (
        (ShapeError, "2 axes", lambda: norm(flow.zeros(4))),
        (ArgumentError, "new_group", lambda: nn.SyncBatchNorm(4, process_group=3)),
        (ArgumentError, "nn.Module", lambda: nn.SyncBatchNorm.convert_sync_batchnorm(3)),  # type: ignore[arg-type]
        (ArgumentError, "device_ids", lambda: DistributedDataParallel(norm, device_ids=[0, 1])),
        (ArgumentError, "dim", lambda: DistributedDataParallel(norm, dim=1)),
        (ArgumentError, "bucket_cap_mb", lambda: DistributedDataParallel(norm, bucket_cap_mb=0)),
        (ArgumentError, "process_group", lambda: DistributedDataParallel(norm, process_group="world")),
        (ArgumentError, "mixed_precision", lambda: DistributedDataParallel(norm, mixed_precision=True)),
    ):
        with pytest.raises(kind, match=words):
            call()

    def program(rank: int) -> None:
        norm = nn.SyncBatchNorm(4)
        with pytest.raises(ShapeError, match="4 channels"):
            norm(flow.zeros(2, 3))
        with pytest.raises(JobError, match="global"):
            Graph(norm)(flow.zeros(2, 4))

    on_ranks(2, program)
