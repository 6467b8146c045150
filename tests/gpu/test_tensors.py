"""Tensors, modules and graphs on pretended GPUs: values are those of the host, and results stay on the GPU."""

from __future__ import annotations

import runpy
import sys
import threading
from collections.abc import Callable, Iterator
from contextvars import copy_context
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import fake_cupy
import fake_nvrtc
import host_cuda
import numpy as np
import pytest
from document_programs import PROGRAMS, compare, results
from tensor_cases import CASES, LAUNCHES, Trained, on

import jobflow as flow
from jobflow import nn, scope
from jobflow.core import notices
from jobflow.core.errors import AxisError, PlacementError
from jobflow.engine.options import EnvSettings
from jobflow.engine.session import Session
from jobflow.ops.arithmetic import Add
from jobflow.tensors.eager_gpu import EagerGpu
from jobflow.tensors.gpus import own_index
from jobflow.tensors.state import state

TABLE = Path(__file__).with_name("data") / "tensor_launches.txt"
EXAMPLES = Path(__file__).parents[2] / "examples"


@pytest.fixture
def gpus(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Simulate a machine with two GPUs, for a program that has not used them."""
    for name, module in fake_cupy.modules(2).items():
        monkeypatch.setitem(sys.modules, name, module)
    pool = SimpleNamespace(used_bytes=lambda: 100, total_bytes=lambda: 512, free_all_blocks=lambda: None, set_limit=lambda size: None)
    vars(pool).update(get_limit=lambda: 0, free_bytes=lambda: 0)
    monkeypatch.setattr(sys.modules["cupy"], "get_default_memory_pool", lambda: pool, raising=False)
    monkeypatch.setenv("JOBFLOW_KERNELS", "numpy")
    before = fake_cupy.current.device
    session = Session()
    session.settings.kernels = "numpy"
    with scope.using(root=scope.Root(session, EnvSettings()), interpreter=None, placement=None):
        yield
        session.close()
    fake_cupy.current.device = before
    fake_cupy.current.streams.clear()


def fresh(kernels: str = "numpy") -> Any:
    """Return a scope with a new session."""
    session = Session()
    session.settings.kernels = kernels
    return scope.using(root=scope.Root(session, EnvSettings()), interpreter=None, placement=None)


def values(results: Any) -> list[Any]:
    return [x.numpy() for x in results]


@pytest.mark.parametrize("name", CASES)
def test_values_do_not_depend_on_the_device(gpus: None, name: str) -> None:
    with fresh():
        expected = values(CASES[name]("cpu"))
    results = CASES[name]("cuda")
    assert [x.device.type for x in results] == ["cuda"] * len(results)
    for k, (ours, theirs) in enumerate(zip(values(results), expected, strict=True)):
        assert (ours.shape, ours.dtype) == (theirs.shape, theirs.dtype), k
        tolerance = 1e-5 if ours.dtype.itemsize > 2 else 1e-2
        np.testing.assert_allclose(ours.astype(np.float64), theirs.astype(np.float64), rtol=tolerance, atol=tolerance / 10, err_msg=str(k))


#: single operations that need several launches: the sum of parts, statistics before the rows, and a copy of the result into the tensor
SEVERAL = {"sum of columns", "mean", "layer norm", "linear", "reshape of a transpose", "concatenate", "add in place", "fill in place", "where"}
#: operations that check values, or that CuPy computes by many kernels
UNPRINTED = {"uniform numbers", "gather", "cross entropy"}


def test_recorded_launches_of_operations() -> None:
    """One operation makes at most one launch and waits for nothing, except for those listed; `gpu_check dry` compares the table."""
    _, *lines = [line for line in TABLE.read_text().splitlines() if not line.startswith("#")]
    rows = {name: list(map(int, counts)) for *counts, name in (line.split(" ", 6) for line in lines)}
    assert list(rows)[: len(LAUNCHES)] == list(LAUNCHES)
    for name in LAUNCHES:
        kernels, products, waits, _, down, within = rows[name]
        if name not in UNPRINTED:
            assert (waits, down) == (0, 0) and kernels + products + within <= (3 if name in SEVERAL else 1), name
    assert all(rows[name][2] == 0 for name in list(rows)[len(LAUNCHES) :]), "a training step waits"


@pytest.mark.full
@pytest.mark.skipif(host_cuda.COMPILER is None, reason="there is no C++ compiler (g++)")
@pytest.mark.parametrize("name", sorted(CASES.keys() - {"autocast"}))  # the pretended cuBLAS has no bfloat16
def test_values_of_printed_kernels(gpus: None, name: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Compare the kernels of GPUs, compiled by g++, with the values of the host."""
    monkeypatch.setenv("JOBFLOW_CACHE", str(tmp_path))
    with fresh():
        expected = values(CASES[name]("cpu"))
    with fake_nvrtc.installed(monkeypatch, {}), fresh("auto"):
        for k, (ours, theirs) in enumerate(zip(values(CASES[name]("cuda")), expected, strict=True)):
            tolerance = 1e-4 if ours.dtype.itemsize > 2 else 2e-2
            np.testing.assert_allclose(ours.astype(np.float64), theirs.astype(np.float64), rtol=tolerance, atol=tolerance / 10, err_msg=str(k))


class TestDevices:
    def test_cuda_is_the_gpu_of_this_rank(self, gpus: None) -> None:
        x = flow.ones(2, device="cuda")
        assert str(x.device) == "cuda:0" and x.is_cuda and x.get_device() == 0 and flow.cuda.device_count() == 2 and flow.cuda.is_available()

    def test_a_tensor_moves_between_gpus(self, gpus: None) -> None:
        x = flow.arange(3, device="cuda:1")
        y = x.to("cuda:0") + 1
        assert (str(x.device), str(y.device)) == ("cuda:1", "cuda:0") and y.tolist() == [1, 2, 3] and (x * 2).tolist() == [0, 2, 4]

    def test_a_block_selects_the_current_device(self, gpus: None) -> None:
        with flow.cuda.device(1):
            assert str(flow.zeros(1, device="cuda").device) == "cuda:1" and flow.cuda.current_device() == 1
        assert str(flow.zeros(1, device="cuda").device) == "cuda:0"

    @pytest.mark.parametrize(("local_rank", "index"), [("1", 1), ("2", 0)])
    def test_local_rank_selects_the_gpu_of_a_process(self, gpus: None, monkeypatch: pytest.MonkeyPatch, local_rank: str, index: int) -> None:
        here = state()
        for name, value in {"MASTER_ADDR": "node", "MASTER_PORT": "1", "WORLD_SIZE": "8", "RANK": "5", "LOCAL_RANK": local_rank}.items():
            monkeypatch.setenv(name, value)
        assert own_index(here) == index

    def test_a_missing_gpu_raises(self, gpus: None) -> None:
        with pytest.raises(PlacementError, match=r"the device cuda:2 does not exist, because this process can use 2 GPUs; use a number from 0 to 1"):
            flow.ones(2, device="cuda:2")
        with pytest.raises(PlacementError, match=r"cuda\.set_device at .*cuda:5 does not exist"):
            flow.cuda.set_device(5)

    def test_operands_on_two_devices_raise(self, gpus: None) -> None:
        x, y = flow.ones(3, device="cuda"), flow.ones(3)
        with pytest.raises(PlacementError, match=r"add at .*: the inputs are on different devices \(cuda:0, cpu\); move them to one device"):
            x + y
        with pytest.raises(PlacementError, match=r"the inputs are on different devices \(cuda:0, cuda:1\)"):
            x + y.to("cuda:1")
        assert (y + 1).tolist() == [2, 2, 2]

    def test_a_host_tensor_of_one_element_is_updated_on_the_host(self, gpus: None) -> None:
        x = flow.ones(1)
        x.add_(flow.ones(1, device="cuda"))
        assert x.tolist() == [2] and str(x.device) == "cpu"
        x.requires_grad_()
        with pytest.raises(PlacementError, match=r"grad at .*: the gradient is on cuda:0, but the tensor float32\[1\] is on cpu"):
            x.grad = flow.ones(1, device="cuda")

    def test_a_graph_with_tensors_on_two_devices_raises(self, gpus: None) -> None:
        class Graph(nn.Graph):
            def __init__(self, device: str) -> None:
                super().__init__()
                self.linear = nn.Linear(3, 2).to(device)

            def build(self, x: Any) -> Any:
                return self.linear(x)

        graph = Graph("cpu")
        with pytest.raises(PlacementError, match=r"Graph.*: tensors of the graph are on different devices \(input0 float32\[2,3\] on cuda:0"):
            graph(flow.ones(2, 3, device="cuda"))
        graph = Graph("cuda")
        graph(flow.ones(2, 3, device="cuda"))
        with pytest.raises(PlacementError, match=r"input0 .* is on cpu, but the graph runs on cuda:0; move the input"):
            graph(flow.ones(2, 3))

    def test_a_graph_refuses_a_module_that_moved_after_its_first_call(self, gpus: None) -> None:
        class Graph(nn.Graph):
            def __init__(self) -> None:
                super().__init__()
                self.linear = nn.Linear(3, 2).to("cuda")

            def build(self, x: Any) -> Any:
                return self.linear(x)

        graph, x = Graph(), flow.ones(2, 3, device="cuda")
        expected = graph(x).tolist()
        graph.linear.cpu()
        with pytest.raises(PlacementError, match=r"linear\.\w+ float32\[.*\] is now on cpu, but the graph runs on cuda:0; move its module back"):
            graph(x)
        assert not graph.linear.weight.is_cuda
        graph.linear.cuda()
        assert graph(x).tolist() == expected

    def test_traced_tensors_have_the_device_of_the_inputs(self, gpus: None) -> None:
        devices: list[str] = []

        class Graph(nn.Graph):
            def build(self, x: Any) -> Any:
                devices.extend(map(str, (x.device, (x * 2).device)))
                return x + flow.ones(3, device=x.device)

        assert Graph()(flow.ones(3, device="cuda")).is_cuda and not Graph()(flow.ones(3)).is_cuda
        assert devices == ["cuda:0", "cuda:0", "cpu", "cpu"]

    def test_type_as_moves_to_the_device_of_the_other_tensor(self, gpus: None) -> None:
        x, y = flow.ones(2), flow.zeros(1, dtype=flow.float64, device="cuda:1")
        assert str(x.type_as(y).device) == "cuda:1" and x.type_as(y).dtype is flow.float64 and not y.type_as(x).is_cuda

    def test_a_gradient_on_another_device_is_rejected(self, gpus: None) -> None:
        p = nn.Parameter(flow.ones(3))
        (p * 2).sum().backward()
        p.data = p.data.to("cuda")
        with pytest.raises(
            PlacementError, match=r"backward at .*: the gradient float32\[3\] is on cuda:0, but grad is on cpu; set grad = None first"
        ):
            (p * 2).sum().backward()
        assert p.grad is not None and p.grad.tolist() == [2, 2, 2]
        with pytest.raises(PlacementError, match=r"grad at .*: the gradient is on cpu, but the tensor float32\[3\] is on cuda:0; use grad\.to\("):
            p.grad = flow.ones(3)

    def test_launches_that_accumulate_gradients_are_prepared_once(self, gpus: None, monkeypatch: pytest.MonkeyPatch) -> None:
        p = flow.ones(3, device="cuda", requires_grad=True)
        for _ in range(2):
            (p * 2).sum().backward()
        gpu, operations = state().gpus[0], []
        calls = gpu.calls
        monkeypatch.setattr(gpu, "calls", lambda op: operations.append(op) or calls(op))
        (p * 2).sum().backward()
        assert p.grad is not None and p.grad.tolist() == [6, 6, 6] and Add() not in operations

    def test_nested_blocks_of_one_device_restore_the_current_device(self, gpus: None) -> None:
        block = flow.cuda.device(1)
        with block, block:
            pass
        assert flow.cuda.current_device() == 0

    def test_the_default_device_can_be_a_gpu(self, gpus: None) -> None:
        flow.set_default_device("cuda")
        assert flow.ones(2).is_cuda and nn.Linear(2, 2).weight.is_cuda


class TestIndicesAndResults:
    def test_indices_on_the_host_select_elements_of_a_tensor_on_a_gpu(self, gpus: None) -> None:
        x, rows, mask = flow.arange(6.0, device="cuda").reshape(3, 2), flow.tensor([2, 0]), flow.tensor([True, False, True])
        assert x[rows].is_cuda and x[rows].tolist() == [[4, 5], [0, 1]] and x[mask].tolist() == [[0, 1], [4, 5]] and x[rows, 1].tolist() == [5, 1]
        x[rows], x[mask, 0] = 7.0, flow.tensor([8.0, 9.0])
        x[flow.zeros(3, 2) == 1] = -1.0
        x[mask] = 3.0
        assert x.tolist() == [[3, 3], [2, 3], [3, 3]]
        with pytest.raises(PlacementError, match=r"different devices \(cpu, cuda:0\)"):
            flow.ones(3)[rows.cuda()]
        with pytest.raises(PlacementError, match=r"gather at .*: the inputs are local and global tensors"):
            flow.ones(3, placement=flow.placement("cuda", [0]), sbp=flow.sbp.broadcast)[rows]
        y = flow.zeros(3, device="cuda").index_put((rows,), flow.ones(2, device="cuda"))
        assert y.tolist() == [1, 0, 1]

    def test_out_on_another_device_raises(self, gpus: None) -> None:
        x, out = flow.ones(2, device="cuda"), flow.zeros(2)
        with pytest.raises(PlacementError, match=r"add at .*: the result is on cuda:0, but out is on cpu; pass an out on cuda:0"):
            flow.add(x, x, out=out)
        assert out.tolist() == [0, 0] and flow.add(x, x, out=x).tolist() == [2, 2]
        filled = flow.ones(2, out=x)
        assert filled is x and x.is_cuda and x.tolist() == [1, 1]

    def test_an_exported_weight_keeps_its_memory_in_a_graph(self, gpus: None) -> None:
        model = nn.Linear(3, 2).to("cuda")
        pointers = [p.detach().__cuda_array_interface__["data"][0] for p in model.parameters()]  # other libraries may keep the address alone
        graph = Trained(model)
        before = model.weight.tolist()
        graph(flow.ones(4, 3, device="cuda"), flow.zeros(4, dtype=flow.int64, device="cuda"))
        assert [p.data_ptr() for p in model.parameters()] == pointers and model.weight.tolist() != before


class TestAssertions:
    def test_a_rejected_index_is_reported_with_its_line_when_values_are_read(self, gpus: None) -> None:
        (x,) = on("cuda", (3, 2))
        y = x[flow.tensor([0, 7], device="cuda")]
        with pytest.raises(AxisError, match=r"test_tensors.py:\d+: index 7 at \[1\] is out of range for an axis of 3 elements"):
            y.tolist()
        assert x.sum().item() > 0  # the error is reported once

    def test_synchronize_reports_rejected_labels(self, gpus: None) -> None:
        (x,) = on("cuda", (2, 3))
        nn.functional.cross_entropy(x, flow.tensor([0, 3], device="cuda"))
        with pytest.raises(Exception, match=r"label 3 at \[1\] is outside \[0, 3\)"):
            flow.cuda.synchronize()


class TestMemory:
    def test_statistics_are_those_of_the_memory_pool(self, gpus: None) -> None:
        flow.ones(2, device="cuda")
        assert flow.cuda.memory_allocated() == 100 and flow.cuda.memory_reserved("cuda:1") == 512 and flow.cuda.max_memory_allocated() == 100
        assert flow.cuda.memory_stats()["reserved_bytes.all.current"] == 512
        flow.cuda.empty_cache()
        flow.cuda.reset_peak_memory_stats()

    def test_views_share_memory(self, gpus: None) -> None:
        x = flow.zeros(2, 3, device="cuda")
        x[1][2] = 5
        x.T[0].add_(1)
        assert x.tolist() == [[1, 0, 0], [1, 0, 5]] and x[1].data_ptr() == x.data_ptr() + 12 and x[1].storage_offset() == 3 and x.T.stride() == (1, 3)

    def test_a_loader_returns_page_locked_batches(self, gpus: None) -> None:
        from jobflow.utils.data import DataLoader, TensorDataset

        loader = DataLoader(TensorDataset(flow.arange(6.0).reshape(6, 1), flow.arange(6)), batch_size=4, pin_memory=True)
        pinned = list(loader)
        assert all(x.is_pinned() and y.is_pinned() for x, y in pinned)
        batches = [(x.to("cuda", non_blocking=True), y.cuda(non_blocking=True)) for x, y in pinned]
        assert [x.tolist() for x, _ in batches] == [[[0], [1], [2], [3]], [[4], [5]]] and batches[1][1].tolist() == [4, 5]
        x = flow.ones(3).pin_memory()
        assert x.is_pinned() and x.tolist() == [1, 1, 1] and not flow.ones(3).is_pinned()


def test_an_optimizer_names_a_parameter_that_moved_after_its_steps(gpus: None) -> None:
    layer = nn.Linear(2, 1)
    optimizer = flow.optim.Adam(layer.parameters())
    layer.cuda()

    def step() -> None:
        optimizer.zero_grad()
        layer(flow.ones(1, 2, device=layer.weight.device)).sum().backward()
        optimizer.step()

    step()
    assert optimizer.state[layer.weight]["exp_avg"].is_cuda
    layer.cpu()
    moved = r"optim.Adam.step at test_tensors.py:\d+: the float32\[1,2\] parameter is on cpu, and its exp_avg is on cuda:0; move modules before"
    with pytest.raises(PlacementError, match=moved):
        step()
    optimizer.load_state_dict(optimizer.state_dict())
    step()
    assert not optimizer.state[layer.weight]["exp_avg"].is_cuda and optimizer.state[layer.weight]["step"] == 2


def test_index_put_promotes_under_autocast_on_a_gpu(gpus: None) -> None:
    with flow.autocast("cuda", dtype=flow.bfloat16):
        y = flow.zeros(3, device="cuda").index_put((flow.tensor([0, 2], device="cuda"),), flow.ones(2, dtype=flow.bfloat16, device="cuda"))
    assert y.dtype is flow.float32 and y.tolist() == [1, 0, 1]


def test_compiled_functions_of_tensors_on_a_gpu_run_eagerly(gpus: None) -> None:
    twice = flow.compile(lambda x: x * 2)
    assert twice(flow.ones(2, device="cuda")).tolist() == [2, 2]


def test_a_job_refuses_a_module_on_a_gpu(gpus: None) -> None:
    import jobflow.typing as tp

    layer = nn.Linear(2, 2).to("cuda")

    @flow.global_function()
    def job(x: tp.Numpy.Placeholder((1, 2))) -> tp.Numpy:
        return layer(x)

    with pytest.raises(PlacementError, match=r"the module is on cuda:0, but a job receives its parameters from the host; call module\.cpu"):
        job(np.ones((1, 2), np.float32))


def test_without_a_gpu_cuda_is_host_memory() -> None:
    with fresh():
        x = flow.ones(2)
        assert flow.as_tensor(x, device="cuda").is_cuda and not x.is_cuda and flow.as_tensor(x, device="cpu") is x
        assert not state().gpus and flow.ones(2, device="cuda").numpy().tolist() == [1, 1]


# -------------------------------------------------------------------- programs of documents


@pytest.mark.parametrize("program", PROGRAMS)
def test_programs_about_global_tensors_run_on_gpus(gpus: None, program: str) -> None:
    """The pieces of a rank are on its GPU, and values are those on CPUs."""
    compare(program, results(program, "cuda"), results(program, "cpu"))


@pytest.mark.parametrize("program", PROGRAMS)
def test_programs_about_global_tensors_run_without_a_gpu(program: str, capsys: pytest.CaptureFixture[str]) -> None:
    notices.forget()
    ours = results(program, "cuda")
    printed = capsys.readouterr().err
    assert printed.count("there is no GPU: tensors on cuda devices use the memory of the host") == (program != "global/one_device.py"), printed
    compare(program, ours, results(program, "cpu"))


@pytest.mark.parametrize("program", ["global_mlp", pytest.param("mixed_graph", marks=pytest.mark.full)])
def test_examples_of_tensors_train_alike_on_gpus(
    gpus: None, program: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.syspath_prepend(str(EXAMPLES))
    monkeypatch.setitem(sys.modules, "tqdm", None)  # its bar starts a thread
    monkeypatch.setattr(sys, "argv", [program, "--steps", "3", "--every", "1"])
    printed = []
    for device in ("cuda", "cpu"):
        monkeypatch.setattr(flow.cuda, "is_available", lambda device=device: device == "cuda")
        sys.modules.pop("global_mlp", None)
        with fresh():
            runpy.run_path(str(EXAMPLES / f"{program}.py"), run_name="__main__")
            assert bool(state().gpus) is (device == "cuda")
        printed.append(capsys.readouterr().out.rpartition("trained")[0])
    assert printed[0] == printed[1] and printed[0].count("loss") == 3


def test_clipping_to_another_norm_prepares_no_operation(gpus: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """Operations contain their numbers, so an operation with a new factor would be prepared at each step."""
    x = flow.ones(4, device="cuda", requires_grad=True)
    x.sum().backward()
    nn.utils.clip_grad_norm_([x], 1.5)
    created: list[str] = []
    calls = EagerGpu.calls
    monkeypatch.setattr(EagerGpu, "calls", lambda self, op: created.append(str(op)) or calls(self, op))
    nn.utils.clip_grad_norm_([x], 0.7)
    np.testing.assert_allclose(x.grad.numpy(), np.full(4, 0.35), rtol=1e-5)
    assert created == []


def timed() -> bool:
    event = flow.cuda.Event(enable_timing=True)
    event.record()
    event.synchronize()
    return event.query()


#: work of a thread on a tensor with four elements
WORK: dict[str, Callable[[Any], Any]] = {
    "operation": lambda x: x + 1,
    "operation in place": lambda x: x.add_(1),
    "fill": lambda x: x.fill_(7),
    "copy": lambda x: x.clone(),
    "write": lambda x: x[:2].copy_(x[2:]),
    "upload": lambda x: x.copy_(flow.tensor([4.0, 3, 2, 1])),
    "large upload": lambda x: flow.zeros(1 << 18).to(x.device),
    "number": lambda x: x[2].item(),
    "array": lambda x: x.numpy(),
    "runtime assertion": lambda x: flow.gather(x, 0, flow.tensor([1, 3]).to(x.device)),
    "wait": lambda x: flow.cuda.synchronize(),
    "query": lambda x: flow.cuda.current_stream().query(),
    "event": lambda x: timed(),
}


def test_work_of_other_threads_waits_for_the_end_of_a_capture(gpus: None) -> None:
    start = np.arange(4, dtype=np.float32)
    for name, work in WORK.items():
        expected, x = work(flow.tensor(start)), flow.tensor(start).cuda()
        device, results, alive = state().gpus[0].device, list[Any](), list[bool]()

        def run(work: Any = work, x: Any = x, results: list[Any] = results) -> None:
            results.append(work(x))

        thread = threading.Thread(target=copy_context().run, args=(run,))

        def wait(thread: threading.Thread = thread, alive: list[bool] = alive) -> None:
            thread.start()
            thread.join(0.02)
            alive.append(thread.is_alive())

        graph = device.capture([(wait, ())])
        thread.join(10)
        assert alive == [True], name
        (result,) = results
        np.testing.assert_array_equal(result.numpy() if isinstance(result, flow.Tensor) else result, np.asarray(expected), err_msg=name)
        outputs = [y for y in (x, result) if isinstance(y, flow.Tensor)]
        for y in outputs:
            y.fill_(-1)
        graph()
        assert all((y.numpy() == -1).all() for y in outputs), f"{name}: the graph contains work of the thread"
