"""Checks of each run on an imitated GPU with kernels compiled by g++: NaN, kernels that fail late, and values that do not fit."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import fake_nvrtc
import fake_streams
import host_cuda
import numpy as np
import pytest

import jobflow as flow
import jobflow.typing as tp
from jobflow import nn
from jobflow.core.errors import AxisError, JobError, JobflowError, PlanError
from jobflow.core.types import DType, bfloat16, float16, float32, float64
from jobflow.engine.session import current_session
from jobflow.kernels.cuda.anomaly_kernels import PART, anomaly_search
from jobflow.ops.runtime_assertions import RuntimeAssertion
from jobflow.program.commands import executors_of
from jobflow.runtime.comm import nccl_order
from jobflow.runtime.device.cuda_device import CudaDevice
from jobflow.runtime.device.cuda_errors import KernelFailure
from jobflow.runtime.executor import Executor

X = np.arange(1, 13, dtype=np.float32).reshape(4, 3)

pytestmark = pytest.mark.skipif(host_cuda.COMPILER is None, reason="there is no g++")


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    with fake_nvrtc.session_of_one_gpu(monkeypatch):
        yield


def train_job() -> Callable[[Any], Any]:
    @flow.global_function(type="train")
    def train(x: tp.Numpy.Placeholder((4, 3))) -> tp.Numpy:
        hidden = flow.layers.dense(x, 3, kernel_initializer=flow.ones_initializer(), name="dense")
        loss = flow.math.reduce_mean(flow.math.log(hidden))
        flow.optimizer.SGD(flow.optimizer.PiecewiseConstantScheduler([], [0.1]), momentum=0.9).minimize(loss)
        return loss

    return train


def variables() -> dict[str, Any]:
    return {name: np.array(value.numpy()) for name, value in flow.get_all_variables().items()}


def executors() -> list[Executor]:
    world = current_session().world
    assert world is not None
    return list(executors_of(world.ranks[0]).values())


class Failing:
    """A launch after which the next wait reports an error of the kernel, as a GPU does."""

    capturable = True

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.launched = False
        for kind in (fake_streams.Stream, fake_streams.Event):
            monkeypatch.setattr(kind, "synchronize", self._raising(kind.synchronize))

    def _raising(self, original: Callable[[Any], None]) -> Callable[[Any], None]:
        def synchronize(point: Any) -> None:
            original(point)
            if self.launched:
                error = fake_streams.CUDARuntimeError("cudaErrorIllegalAddress: an illegal memory access was encountered")
                error.status = 700  # type: ignore[attr-defined]
                raise error

        return synchronize

    def __call__(self) -> None:
        self.launched = True


def test_nan_is_named_before_variables_change(gpu: None) -> None:
    train = train_job()
    with flow.autograd.detect_anomaly():
        for step in range(3):
            train(X + step)
        before = variables()
        with pytest.raises(JobError, match=r"log_0 at test_checked_runs.py:\d+: NaN in the result .*, in the forward pass of job train; no variable"):
            train(-X)
        for name, value in variables().items():
            np.testing.assert_array_equal(value, before[name], err_msg=name)
        with pytest.raises(JobError, match=r'job train: argument "x" contains NaN before the run'):
            train(X * np.nan)
        train(X)
    assert any(not np.array_equal(value, before[name]) for name, value in variables().items())


def test_synchronous_run_names_the_instruction_of_a_failed_kernel(gpu: None, monkeypatch: pytest.MonkeyPatch) -> None:
    train = train_job()
    for setting, pattern in {
        "off": r"job train: a kernel failed in an instruction from \S+ at \S+ to \S+ at \S+, or in earlier work of the GPU: cudaError.*; run again",
        "sync": r"^\S*log_0 at test_checked_runs.py:\d+: cudaErrorIllegalAddress: .*; the process cannot use the GPU any more$",
    }.items():
        flow.config.debug(setting)
        train(X)
        executor = executors()[-1]
        at = next(k for k, instruction in enumerate(executor.call_instructions) if "log" in instruction.name)
        failing = Failing(monkeypatch)
        executor.body[at] = (failing, ())
        executor.replays = executor._replays_of(executor.device)
        with pytest.raises(KernelFailure, match=pattern):
            train(X)
        failing.launched = False


@pytest.mark.parametrize("dtype", [float32, bfloat16, *(pytest.param(dtype, marks=pytest.mark.full) for dtype in (float64, float16))], ids=str)
def test_search_finds_nan_and_infinity_in_arrays_of_any_layout_and_type(gpu: None, dtype: DType) -> None:
    device = CudaDevice(0)
    device.activate()
    whole = device.constant(np.zeros((2, PART // 2 + 5, 6), np.float32).astype(dtype.numpy))
    views = [whole[:, :, :3], whole[1, ::2, 3:].T, whole[:1, :7, ::2]]
    for view, value in ((views[0], np.nan), (views[1], np.inf), (views[2], -np.inf), (views[2], np.nan)):
        flags = device.constant(np.zeros(2, np.int64))
        call = anomaly_search(0, views, flags, device.constant)
        assert call is not None
        whole[0, 0, 5] = np.nan  # in no view
        call[0](*call[1])
        assert not device.to_host(flags).any(), "the arrays are finite"
        view[(-1,) * view.ndim] = value
        call[0](*call[1])
        assert device.to_host(flags).tolist() == [np.isnan(value), np.isinf(value)], value
        whole[...] = 0


@pytest.mark.full
def test_memory_that_a_kernel_cannot_allocate_is_reported_with_the_largest_values(gpu: None, monkeypatch: pytest.MonkeyPatch) -> None:
    train = train_job()
    train(X)
    executor = executors()[-1]

    def allocate() -> None:
        raise MemoryError("Out of memory allocating 4,096 bytes")

    executor.body[1] = (allocate, ())
    executor.replays = executor._replays_of(executor.device)
    with pytest.raises(
        MemoryError, match=r"(?s)log_0 at \S+: temporary memory: Out of memory allocating .*; use smaller .*largest values .*MiB.*0\.00 +float32\["
    ):
        train(X)
    executor.epilogue[0] = (allocate, ())
    executor.body[1] = (np.copyto, (np.zeros(1), np.zeros(1)))
    executor.replays = executor._replays_of(executor.device)
    with pytest.raises(MemoryError) as raised:
        train(X)
    assert "the updates of job train had begun" in raised.value.__notes__[0]


class Masked(nn.Graph):
    """A step with dropout, a schedule and checked labels."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(3, 3).to("cuda")
        self.optimizer = flow.optim.SGD(self.linear.parameters(), lr=0.1)
        self.schedule = flow.optim.lr_scheduler.StepLR(self.optimizer, 2)
        self.add_optimizer(self.optimizer, lr_sch=self.schedule)

    def build(self, x: Any, y: Any) -> Any:
        loss = nn.functional.cross_entropy(nn.functional.dropout(self.linear(x), 0.5), y)
        loss.backward()
        return loss

    def counters(self) -> tuple[Any, ...]:
        assert self._bound is not None
        draws = [draw.generator.draws for draw in self._bound.built.draws]
        return self.schedule.last_epoch, self.optimizer.param_groups[0]["lr"], *draws


@pytest.mark.full
def test_refused_step_of_a_graph_moves_neither_masks_nor_rates(gpu: None) -> None:
    step = Masked()
    x = flow.tensor(X, device="cuda")
    good, bad = (flow.tensor(labels, device="cuda") for labels in ([0, 1, 2, 0], [0, 1, 2, 7]))
    for _ in range(3):
        step(x, good)
    before, weight = step.counters(), step.linear.weight.numpy().copy()
    with pytest.raises(ValueError, match=r"label 7 at \[3\] is outside"):
        step(x, bad)
        step(x, good)  # refused, too
        step.linear.weight.numpy()
    assert step.counters() == before, "the draws and rates of the refused steps"
    np.testing.assert_array_equal(step.linear.weight.numpy(), weight)
    step(x, good)
    assert step.counters() != before and not np.array_equal(step.linear.weight.numpy(), weight)


def test_write_at_a_wrong_index_changes_no_element(gpu: None) -> None:
    x = flow.zeros(5, device="cuda")
    for write in (lambda i: x.__setitem__(i, 5.0), lambda i: x.index_fill_(0, i, 5.0), lambda i: x.scatter_(0, i, 5.0)):
        with pytest.raises(AxisError, match=r"index 7 at \[1\] is out of range"):
            write(flow.tensor([0, 7], device="cuda"))
        assert not x.numpy().any()


def test_deterministic_programs_launch_equal_lists_and_refuse_atomic_additions(gpu: None) -> None:
    flow.use_deterministic_algorithms(True)
    lists = []
    for _ in range(2):
        train = train_job()
        train(X)
        (executor,) = executors()
        lists.append(launches(executor))
        flow.clear_default_session()
        flow.config.gpu_device_num(1)
        flow.use_deterministic_algorithms(True)
    assert lists[0] == lists[1] and len(lists[0]) > 5

    @flow.global_function()
    def sums(x: tp.Numpy.Placeholder((4, 3)), ids: tp.Numpy.Placeholder((4,), dtype=flow.int32)) -> tp.Numpy:
        return flow.math.unsorted_segment_sum(x, ids, 2)

    flow.config.kernels("numpy")
    ids = np.array([0, 1, 1, 0], np.int32)
    with pytest.raises(PlanError, match=r"unsortedsegmentsum_0 at test_checked_runs.py:\d+: .*CuPy adds at computed indices by atomic additions"):
        sums(X, ids)
    flow.config.kernels("auto")
    np.testing.assert_array_equal(sums(X, ids), [X[0] + X[3], X[1] + X[2]])


def launches(executor: Executor) -> list[tuple[str, ...]]:
    """Return the instruction, the kind of call, the kernel's text, and the numbers of blocks and threads of each call."""
    calls = zip(executor.call_instructions, [*executor.body, *executor.epilogue], strict=True)
    return [
        (
            str(each),
            type(call).__name__,
            getattr(getattr(call, "function", None), "text", ""),
            str(arguments[:2] if hasattr(call, "function") else ""),
        )
        for each, (call, arguments) in calls
    ]


def test_sums_of_nccl_are_fixed_before_its_start_only(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    for name in nccl_order.SETTINGS:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("NCCL_PROTO", "LL")
    monkeypatch.setattr(nccl_order, "_started", [])
    monkeypatch.setattr(nccl_order.os, "environ", dict(nccl_order.os.environ))
    nccl_order.fix_order()
    assert {name: nccl_order.os.environ[name] for name in nccl_order.SETTINGS} == nccl_order.SETTINGS | {"NCCL_PROTO": "LL"}
    nccl_order.note_start()
    nccl_order.fix_order()
    assert capsys.readouterr().err == "", "the variables are set"
    del nccl_order.os.environ["NCCL_ALGO"]
    nccl_order.fix_order()
    assert "comes too late for the sums of NCCL" in capsys.readouterr().err


@pytest.mark.full
@pytest.mark.usefixtures("gpu")
def test_eager_assertions_on_rows_and_triangles_report_the_first_element(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(RuntimeAssertion, "note", None)  # array functions

    def tensor(*rows: list[float]) -> Any:
        return flow.tensor(np.array(rows, np.float32), device="cuda")

    assert flow.multinomial(tensor([0, 1, 0], [3, 0, 0]), 1).tolist() == [[1], [0]]
    for weights, message in (([3, 0, 0], r"fewer than 2 weights of row \[1\] are positive"), ([3, -1, 5], r"weight -1.0 at \[1, 1\] is negative")):
        with pytest.raises(JobflowError, match=message):
            flow.multinomial(tensor([0, 1, 2], weights), 2).tolist()
    flow.linalg.eigh(tensor([1, np.nan], [0, 2])).eigenvalues.tolist()
    with pytest.raises(JobflowError, match=r"element nan at \[1, 0\] of A is NaN or infinite"):
        flow.linalg.eigh(tensor([1, 0], [np.nan, 2])).eigenvalues.tolist()
