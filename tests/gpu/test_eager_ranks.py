"""Eager communication of ranks on imitated GPUs: collectives of local tensors, and changes of layout."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import fake_nccl
import numpy as np
import pytest

import jobflow as flow
from jobflow import comm, distributed, nn, scope
from jobflow.core import notices
from jobflow.core.errors import DivergedError, JobError, PlacementError, RankError
from jobflow.runtime.comm.device_communicator import DeviceCommunicator
from jobflow.runtime.comm.nccl_communicator import NcclCommunicator
from jobflow.runtime.device import cuda_device as cuda
from jobflow.runtime.device.numpy_device import CpuDevice
from jobflow.runtime.world.threads import ThreadsWorld
from jobflow.runtime.world.world import Rank
from jobflow.tensors.state import EagerState, state


@pytest.fixture
def gpus(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[None]:
    """A machine that seems to have three GPUs and NCCL, whose collectives take random times."""
    monkeypatch.setenv("JOBFLOW_KERNELS", "numpy")
    with fake_nccl.gpus(monkeypatch, tmp_path, 3, delay=1e-3):
        yield


def on_devices(devices: tuple[int | None, ...], program: Callable[[int], Any]) -> list[Any]:
    """Return the results of `program(rank)` on ranks whose session uses these GPUs, or the host for None."""

    def command(rank: Rank, _: Any) -> Any:
        with scope.using(root=scope.Root(eager=EagerState(rank))):
            return program(rank.index)

    world = ThreadsWorld([CpuDevice() if number is None else cuda.CudaDevice(number) for number in devices])
    try:
        return list(world.call(command))
    finally:
        world.close()


class Doubled(nn.Graph):
    """A graph with communication on the host."""

    def build(self, x: Any) -> Any:
        return (x * 2).to_global(sbp=flow.sbp.broadcast)


@pytest.mark.parametrize("devices", [(0, 1, 2), (0, 0, 0), (0, None, 1)])
def test_tensors_of_the_host_are_exchanged_in_a_session_on_gpus(gpus: None, devices: tuple[int | None, ...]) -> None:
    def program(rank: int) -> list[Any]:
        assert isinstance(state().rank.comm, DeviceCommunicator) == (devices[rank] is not None)
        x = flow.tensor(np.full(3, rank + 1.0))
        comm.all_reduce(x)
        whole = flow.tensor([[float(rank)]]).to_global(placement=flow.placement("cpu", range(3)), sbp=flow.sbp.split(0))
        part = whole.to_global(placement=flow.placement("cpu", [0, 2]), sbp=flow.sbp.split(0))
        return [x.numpy().tolist(), whole.numpy().tolist(), Doubled()(part).numpy().tolist()]

    assert on_devices(devices, program) == [[[6.0] * 3, [[0.0], [1.0], [2.0]], [[0.0], [2.0], [4.0]]]] * 3


# Collectives of local tensors ----------------------------------------------------------------------------------------

HOSTS = (None, None, None)


def groups() -> dict[tuple[int, ...], bool]:
    """Return the groups of this rank that have exchanged tensors on GPUs, and True for those with NCCL."""
    return {ranks: isinstance(group, NcclCommunicator) for ranks, group in state().nccl_groups.items()}


class Waits:
    """The number of waits of each thread for a GPU."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self._own = threading.local()
        original = cuda.CudaDevice.wait

        def wait(device: cuda.CudaDevice, point: Any) -> None:
            self._own.count = self.count + 1
            original(device, point)

        monkeypatch.setattr(cuda.CudaDevice, "wait", wait)

    @property
    def count(self) -> int:
        return getattr(self._own, "count", 0)


def tensor(values: Any, type: str, dtype: Any = flow.float32) -> Any:
    return flow.tensor(np.asarray(values), dtype=dtype).to(type)


def collectives(rank: int, type: str, dtype: Any, group: Any = None) -> list[Any]:
    """Call each collective once, and return the tensors that it has written."""
    ranks = group.ranks if group is not None else range(state().rank.size)
    n, last, kind = len(ranks), ranks[-1], np.arange(6).reshape(2, 3)

    def new(k: int = 0) -> Any:
        return tensor((kind + k + 2 * rank) % 5, type, dtype)

    ops = ["sum", "max", "min", "product"] + (["avg"] if dtype.is_float else ["band", "bor", "bxor"])
    reduced = {op: new() for op in ops}
    written = list(reduced.values())
    for op, x in reduced.items():
        distributed.all_reduce(x, op, group=group)
    to_last, view, spread = new(), new().t(), new()
    distributed.reduce(to_last, last, group=group)
    distributed.all_reduce(view, group=group)
    distributed.broadcast(spread, last, group=group)
    pieces, at_last, flat = [new(9) for _ in ranks], [new(9) for _ in ranks], flow.cat([new(k) for k in range(n)])
    distributed.all_gather(pieces, new(), group=group)
    distributed.gather(new(), at_last if rank == last else None, last, group=group)
    dealt, summed, part, folded = new(9), new(9), new(9), new(9)
    distributed.scatter(dealt, [new(k) for k in range(n)] if rank == last else None, last, group=group)
    distributed.reduce_scatter(summed, [new(k) for k in range(n)], "max", group=group)
    distributed.reduce_scatter_tensor(part, flat, group=group)
    distributed.reduce_scatter_tensor(folded, flat, "product", group=group)
    exchanged, parts, together = [new(9) for _ in ranks], flow.zeros_like(flat), flow.zeros_like(flat)
    distributed.all_to_all(exchanged, [new(k) for k in range(n)], group=group)
    distributed.all_to_all_single(parts, flat, group=group)
    distributed.all_gather_into_tensor(together, new(), group=group)
    received, nothing = new(9), tensor(np.zeros((0, 2)), type, dtype)
    distributed.all_reduce(nothing, group=group)
    if rank == last:
        distributed.send(new(), ranks[0], tag=3)
    elif rank == ranks[0]:
        distributed.recv(received, last, tag=3)
    written += [to_last, view, spread, *pieces, *at_last, dealt, summed, part, folded, *exchanged, parts, together, received]
    return written


@pytest.mark.parametrize(("dtype", "ranks"), [("float32", None), ("int16", None), ("bool", [0, 2]), ("float16", [0, 2])])
def test_collectives_on_gpus_use_nccl_without_waits(gpus: None, monkeypatch: pytest.MonkeyPatch, dtype: str, ranks: list[int] | None) -> None:
    """Expect the results of the hosts; NCCL cannot reduce int16, and moves it."""
    waits = Waits(monkeypatch)

    def program(rank: int, type: str) -> list[Any]:
        group = None if ranks is None else distributed.new_group(ranks)
        if ranks is not None and rank not in ranks:
            return []
        before = waits.count
        results = collectives(rank, type, getattr(flow, "bool" if dtype == "bool" else dtype), group)
        assert dtype == "int16" or waits.count == before
        assert all(x.device.type == type for x in results)
        if type == "cuda":
            members = tuple(range(3) if ranks is None else ranks)
            assert groups() == ({members: True} | ({(0, 2): True} if rank in (0, 2) else {}))
        return [x.numpy() for x in results]

    expected = on_devices(HOSTS, lambda rank: program(rank, "cpu"))
    for ours, theirs in zip(on_devices(HOSTS, lambda rank: program(rank, "cuda")), expected, strict=True):
        for k, (mine, host) in enumerate(zip(ours, theirs, strict=True)):
            np.testing.assert_array_equal(mine, host, err_msg=f"tensor {k}")


def test_groups_that_share_a_gpu_use_the_hosts(gpus: None, capsys: pytest.CaptureFixture[str]) -> None:
    """Expect NCCL only in the group of ranks with a GPU each, and one notice."""
    notices.forget()

    def program(rank: int) -> list[float]:
        x, y = (tensor([rank + 1.0], "cuda") for _ in range(2))
        comm.all_reduce(x)
        comm.all_reduce(x)
        if rank < 2:
            distributed.all_reduce(y, group=distributed.new_group([0, 1], use_local_synchronization=True))
        assert groups() == {(0, 1, 2, 3): False} | ({(0, 1): True} if rank < 2 else {})
        return [x.item(), y.item()]

    assert on_devices((None,) * 4, program) == [[40.0, 3.0], [40.0, 3.0], [40.0, 3.0], [40.0, 4.0]]
    assert capsys.readouterr().err.count("GPUs exchange tensors through the host: ranks 0 and 3 share a GPU") == 1


@pytest.mark.parametrize(
    ("devices", "shift", "nccl"), [((0, 1, 2), 0, True), ((0, 1, 2), 1, False), ((0, 0, 0), 0, True)], ids=["same", "others", "shared"]
)
def test_sessions_on_gpus_share_their_communicator(gpus: None, devices: tuple[int, ...], shift: int, nccl: bool) -> None:
    """Expect NCCL unless tensors are on other GPUs than those of the session's communicator."""

    def program(rank: int) -> float:
        x = tensor([rank + 1.0], f"cuda:{(rank + shift) % 3}")
        comm.all_reduce(x)
        assert groups() == {(0, 1, 2): nccl}
        here = state()
        assert not nccl or here.nccl_groups[0, 1, 2] is (here.rank.comm if devices == (0, 1, 2) else here.rank.gpu_comm)
        return float(x.item())

    assert on_devices(devices, program) == [6.0] * 3


def test_ranks_without_a_gpu_take_part_through_the_hosts(gpus: None, capsys: pytest.CaptureFixture[str]) -> None:
    notices.forget()

    def program(rank: int) -> Any:
        state().gpu_count = 0 if rank == 1 else None
        x = tensor([rank + 1.0], "cuda")
        comm.all_reduce(x)
        model = nn.parallel.DistributedDataParallel(nn.Linear(2, 1).to("cuda"))
        model(tensor(np.full((1, 2), rank), "cuda")).sum().backward()
        whole = x.to_global(placement=flow.placement("cuda", range(3)), sbp=flow.sbp.split(0)).to_global(sbp=flow.sbp.broadcast)
        assert groups() == {(0, 1, 2): False}
        return [x.item(), model.module.weight.grad.numpy().tolist(), whole.to_local().numpy().tolist()]

    assert on_devices(HOSTS, program) == [[6.0, [[1.0, 1.0]], [6.0] * 3]] * 3
    assert "GPUs exchange tensors through the host: rank 1 has no GPU" in capsys.readouterr().err


# Refusals and failures -----------------------------------------------------------------------------------------------


def test_tensors_of_different_types_of_device_are_refused(gpus: None) -> None:
    """Expect the same error in the first collective and in a later one, and a working group afterwards."""

    def program(rank: int) -> float:
        x = tensor([rank + 1.0], "cuda")
        for _ in range(2):
            with pytest.raises(DivergedError, match=r"all_reduce of tensors? .*on GPUs|all_reduce of float32\[1\] on GPUs"):
                comm.all_reduce(x if rank else x.cpu())
            comm.all_reduce(x)
        return float(x.item())

    assert on_devices((None, None), program) == [6.0, 6.0]


def test_a_tensor_on_another_gpu_is_refused(gpus: None) -> None:
    def program(rank: int) -> None:
        comm.all_reduce(tensor([1.0], "cuda"))
        with pytest.raises(PlacementError, match=rf"all_reduce at .*a tensor is on cuda:2, .*ranks \[0, 1\] on cuda:{rank}; move the tensor there"):
            comm.all_reduce(tensor([1.0], "cuda:2"))

    on_devices((None, None), program)


def test_a_dead_rank_ends_the_wait_of_the_others(gpus: None) -> None:
    """Rank 1 fails after the hosts have compared the collective; expect an error of the waiting rank and of its later reads."""
    messages: list[str] = []

    def program(rank: int) -> None:
        x = tensor([1.0], "cuda")
        comm.all_reduce(x)
        if rank == 1:
            state().nccl_groups[0, 1].start = dies
        comm.all_reduce(x)
        for _ in range(2):
            try:
                x.numpy()
            except Exception as error:  # noqa: BLE001 - compared below
                messages.append(str(error))
        raise JobError("rank 0 ends")

    def dies(*_: Any) -> Any:
        time.sleep(0.1)
        raise ArithmeticError("it fails")

    began = time.monotonic()
    with pytest.raises(RankError, match="it fails"):
        on_devices((None, None), program)
    assert time.monotonic() - began < 10
    assert len(messages) == 2 and "it fails" in messages[0] and "start a new session" in messages[1], messages


def test_an_error_of_nccl_ends_the_communication(gpus: None, monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*_: Any) -> None:
        raise RuntimeError("NCCL_ERROR_SYSTEM_ERROR: no socket")

    def program(rank: int) -> None:
        x = tensor([1.0], "cuda")
        comm.all_reduce(x)
        monkeypatch.setattr(fake_nccl.Communicator, "allReduce", fails)
        with pytest.raises(JobError, match=r"NCCL failed on rank \d in all_reduce .*no socket\); set NCCL_DEBUG=WARN"):
            comm.all_reduce(x)
        with pytest.raises(JobError, match="start a new session"):
            comm.all_reduce(x)

    on_devices((None, None), program)


# DistributedDataParallel ---------------------------------------------------------------------------------------------


class Parts(nn.Module):
    """Layers of which a call uses some, with a buffer and parameters of two element types."""

    def __init__(self, rank: int) -> None:
        super().__init__()
        self.parts = nn.ModuleList([nn.Linear(3, 3) for _ in range(4)])
        self.scale = nn.Parameter(flow.ones(3, dtype=flow.float64))
        self.register_buffer("calls", flow.tensor([float(rank)]))
        for k, p in enumerate(self.parts.parameters()):
            p.data = flow.tensor(np.random.RandomState(k + rank).randn(*p.shape).astype(np.float32))

    def forward(self, x: Any, uses: list[int]) -> Any:
        for k in uses:
            x = flow.tanh(self.parts[k](x))
        return (x * self.scale.to(flow.float32)).sum() + 0 * self.calls.sum()


#: the layers that each rank uses in a step, and True for a pass that fails
STEPS = [([[0, 1, 2], [0, 2], [2]], False), ([[0], [0], [0]], True), ([[1, 0], [], [0, 1]], False), ([[3], [3, 2, 1, 0], [0]], False)]


def trained(rank: int, type: str, **options: Any) -> list[Any]:
    model = Parts(rank).to(type)
    parallel = nn.parallel.DistributedDataParallel(model, bucket_size=2, **options)
    optimizer = flow.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    for step, (uses, fails) in enumerate(STEPS):
        x = tensor(np.random.RandomState(10 * step + rank).randn(2, 3), type).requires_grad_()
        if fails:
            x.register_hook(interrupt)
            with pytest.raises(ArithmeticError):
                parallel(x, uses[rank]).backward()
            optimizer.zero_grad()
            continue
        with parallel.no_sync():
            parallel(x, uses[rank]).backward()
        parallel(x, uses[rank]).backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=step == 0)
    return [x.detach().cpu().numpy() for x in (*model.parameters(), model.calls)]


def interrupt(gradient: Any) -> None:
    raise ArithmeticError("the pass fails")


@pytest.mark.parametrize("as_view", [False, True])
def test_gradients_are_averaged_by_nccl_without_waits(gpus: None, monkeypatch: pytest.MonkeyPatch, as_view: bool) -> None:
    waits = Waits(monkeypatch)

    def program(rank: int) -> list[Any]:
        before = waits.count
        results = trained(rank, "cuda", gradient_as_bucket_view=as_view)
        assert waits.count - before == len(results)  # the reads at the end
        assert groups() == {(0, 1, 2): True} and not state().nccl_groups[0, 1, 2]._started
        return results

    expected = on_devices(HOSTS, lambda rank: trained(rank, "cpu", gradient_as_bucket_view=as_view))
    for ours, theirs in zip(on_devices(HOSTS, program), expected, strict=True):
        for mine, host in zip(ours, theirs, strict=True):
            np.testing.assert_allclose(mine, host, rtol=1e-5, atol=1e-6)


def test_sums_of_gradients_start_during_the_backward_pass(gpus: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """Expect a sum when the gradients of its bucket are complete, and its completion at the end of the pass."""
    events: dict[int, list[str]] = {0: [], 1: []}
    original = fake_nccl.Communicator.allReduce
    monkeypatch.setattr(fake_nccl.Communicator, "allReduce", lambda self, *a: (events[self._rank].append("sum"), original(self, *a))[1])

    def program(rank: int) -> None:
        model = nn.Sequential(*[nn.Linear(3, 3) for _ in range(3)]).to("cuda")
        for layer in model:
            layer.weight.register_hook(lambda _: events[rank].append("weight"))
        nn.parallel.DistributedDataParallel(model, bucket_size=2)(tensor(np.ones((2, 3)), "cuda")).sum().backward()

    on_devices((None, None), program)
    assert all(names.index("sum") < len(names) - 1 - names[::-1].index("weight") and names.count("sum") == 3 for names in events.values()), events


# Changes of layout ---------------------------------------------------------------------------------------------------

B, P, MAX = flow.sbp.broadcast, flow.sbp.partial_sum, flow.sbp.partial_max


def S(axis: int) -> Any:
    return flow.sbp.split(axis)


#: ranks, nested for a mesh, and sbp
LINE: list[tuple[Any, list[Any]]] = [([0, 1, 2], [sbp]) for sbp in (S(0), S(1), B, P)]
MESH: list[tuple[Any, list[Any]]] = [([[0, 1], [2, 3]], list(sbp)) for sbp in ((S(0), P), (B, S(0)), (S(1), S(1)), (P, P), (B, B))]
PARTS: list[tuple[Any, list[Any]]] = [([0], [B]), ([1, 2], [S(1)]), ([0, 1, 2], [S(0)]), ([2, 0], [P]), ([0, 2], [B])]


def converted(rank: int, type: str, layouts: list[tuple[Any, list[Any]]], dtype: str) -> list[Any]:
    """Return this rank's pieces after changes between all pairs of layouts."""
    values = np.arange(35).reshape(5, 7) % 11
    pieces = []
    for ranks, sbp in layouts:
        x = flow.tensor(values, dtype=getattr(flow, dtype), placement=flow.placement(type, ranks), sbp=sbp)
        for others, target in layouts:
            y = x.to_global(placement=flow.placement(type, others), sbp=target)
            assert y.device.type == type
            pieces.append(y.to_local())
    return pieces


@pytest.mark.parametrize(("layouts", "dtype", "count"), [(LINE, "float32", 3), (LINE, "int16", 3), (PARTS, "float64", 3), (MESH, "float32", 4)])
def test_layouts_change_by_nccl(
    gpus: None, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, layouts: list[tuple[Any, list[Any]]], dtype: str, count: int
) -> None:
    """Expect the pieces of the hosts; NCCL cannot reduce int16, and moves it."""
    hosts, waits = (None,) * count, Waits(monkeypatch)

    def program(rank: int, type: str) -> list[Any]:
        converted(rank, type, layouts, dtype)
        before = waits.count
        pieces = converted(rank, type, layouts, dtype)
        assert waits.count == before or dtype == "int16"
        assert set(groups().values()) == ({True} if type == "cuda" else set())
        return [x.numpy() for x in pieces]

    expected = on_devices(hosts, lambda rank: program(rank, "cpu"))
    with fake_nccl.gpus(monkeypatch, tmp_path, 4, delay=1e-3):
        for ours, theirs in zip(on_devices(hosts, lambda rank: program(rank, "cuda")), expected, strict=True):
            for mine, host in zip(ours, theirs, strict=True):
                np.testing.assert_array_equal(mine, host)
