"""Failed assertions on an imitated GPU with kernels compiled by g++: updates read a flag, and the host does not wait."""

from __future__ import annotations

import gc
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import fake_nccl
import fake_nvrtc
import fake_streams
import host_cuda
import numpy as np
import pytest
from labelled_step import BAD, GOOD, MESSAGE, X, declared, loss_of, variables

import jobflow as flow
import jobflow.typing as tp
from jobflow.engine.session import current_session
from jobflow.kernels.cuda.guarded_launches import guarded_text
from jobflow.program.commands import executors_of
from jobflow.runtime.comm.nccl_calls import Started
from jobflow.runtime.comm.nccl_communicator import NcclCommunicator
from jobflow.runtime.device.cuda_graph import CapturedGraph

pytestmark = pytest.mark.skipif(host_cuda.COMPILER is None, reason="there is no g++")


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    with fake_nvrtc.session_of_one_gpu(monkeypatch):
        yield


def waits(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Return a list to which each wait of the host is added from now on."""
    log: list[str] = []
    for kind in (fake_streams.Event, fake_streams.Stream):
        synchronize = kind.synchronize

        def logged(self: Any, original: Any = synchronize, name: str = kind.__name__) -> None:
            log.append(name)
            original(self)

        monkeypatch.setattr(kind, "synchronize", logged)
    return log


@pytest.mark.full
def test_refused_step_changes_no_variable_and_only_the_fetch_waits(
    gpu: None, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    train = declared()
    losses = [train(X, GOOD).get().numpy() for _ in range(3)]
    log = waits(monkeypatch)
    future = train(X, GOOD)
    assert log == []
    losses.append(future.get().numpy())
    assert log == ["Event"], "one wait for the loss, none for the assertion"
    before = variables()
    refused = train(X, BAD)
    with pytest.raises(ValueError, match=MESSAGE):
        refused.get()
    assert_equal(variables(), before)
    losses.append(train(X, GOOD).get().numpy())
    assert len({loss.tobytes() for loss in losses}) == 5, "each accepted step has updated the variables"
    before = variables()
    train(X, BAD)
    with pytest.raises(ValueError, match=MESSAGE):
        variables()
    assert_equal(variables(), before)
    train(X, BAD)
    del refused
    flow.clear_default_session()
    gc.collect()  # the errors above refer to the program
    assert re.search(MESSAGE, capsys.readouterr().err), "nothing has read the result of the last run"


def test_future_of_a_refused_step_raises_at_every_read(gpu: None, monkeypatch: pytest.MonkeyPatch) -> None:
    train = declared()
    first = train(X, GOOD)
    first.get()
    monkeypatch.setattr(fake_streams.Event, "done", False)
    bad = [train(X, BAD), train(X, BAD)]
    with pytest.raises(ValueError, match=MESSAGE):
        train(X, GOOD)  # two calls later
    for future in (*bad, *bad):
        with pytest.raises(ValueError, match=MESSAGE):
            future.get()
    assert train(X, GOOD).get().numpy().shape == first.get().numpy().shape


@pytest.mark.full
def test_ranks_with_a_gpu_each_refuse_a_step_without_a_wait(gpu: None, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Expect one error of all ranks two runs later, no change of a variable, and no barrier or exchange of hosts in a step."""
    monkeypatch.setattr(fake_streams.Gpus, "count", 2)
    fake_nccl.install(tmp_path)
    monkeypatch.setattr(fake_nccl.Communicator, "delay", 1e-3)
    flow.config.gpu_device_num(2)

    @flow.global_function(type="train")
    def train(x: tp.Numpy.Placeholder((4, 3)), y: tp.Numpy.Placeholder((4,), dtype=flow.int32)) -> None:
        loss_of(x, y)

    for _ in range(3):
        train(X, GOOD)
    before = variables()
    world = current_session().world
    assert world is not None and {type(rank.comm) for rank in world.ranks} == {NcclCommunicator}
    met: list[str] = []
    for rank in world.ranks:
        monkeypatch.setattr(rank.comm, "barrier", lambda: met.append("barrier"))
        monkeypatch.setattr(rank.comm, "exchange", lambda item: met.append("exchange"))
    log = waits(monkeypatch)
    train(X, BAD)
    train(X, GOOD)
    assert log == [] and met == []
    with pytest.raises(ValueError, match=MESSAGE + r".* \(on rank 1\)") as caught:
        train(X, GOOD)
    assert caught.value.__notes__ == ["1 later run of the job did not change variables either"]
    assert_equal(variables(), before)
    train(X, GOOD)
    assert any(not np.array_equal(value, before[name]) for name, value in variables().items())


@pytest.mark.full
def test_step_of_two_ranks_is_one_graph_with_its_collectives(gpu: None, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def trained(ranks: int) -> tuple[np.ndarray, list[list[Any]]]:
        flow.clear_default_session()
        flow.config.gpu_device_num(ranks)

        @flow.global_function(type="train")
        def train(x: tp.Numpy.Placeholder((4, 3))) -> None:
            w, v = (flow.get_variable(name, (3,), initializer=flow.ones_initializer()) for name in ("w", "v"))
            loss = flow.math.reduce_mean(flow.math.square(x * w + v))
            flow.optimizer.SGD(flow.optimizer.PiecewiseConstantScheduler([], [0.01]), momentum=0.9).minimize(loss)

        for step in range(4):
            train(X + step)
        world = current_session().world
        assert world is not None
        replays = [each for rank in world.ranks for executor in executors_of(rank).values() for each in executor.replays]
        return variables()["w"], [[launch for launch, _ in each.launches()] for each in replays]

    fake_nccl.install(tmp_path)
    monkeypatch.setattr(fake_nccl.Communicator, "delay", 1e-3)
    monkeypatch.setattr(fake_streams.Gpus, "count", 2)
    weights, launches = trained(2)
    assert [[type(launch) for launch in each] for each in launches] == [[CapturedGraph], [CapturedGraph]]
    assert sum(isinstance(call, Started) for call, _ in launches[0][0].calls) >= 2
    np.testing.assert_allclose(weights, trained(1)[0], rtol=1e-6)


def assert_equal(values: dict[str, Any], expected: dict[str, Any]) -> None:
    for name, value in values.items():
        np.testing.assert_array_equal(value, expected[name], err_msg=name)


def test_later_runs_launch_graphs_and_wait_when_a_future_is_read(gpu: None, monkeypatch: pytest.MonkeyPatch) -> None:
    @flow.global_function(type="predict")
    def squares(x: tp.Numpy.Placeholder((4, 3))):
        return flow.math.reduce_sum(flow.math.square(x) + 1, axis=[1])

    expected = [((X + step) ** 2 + 1).sum(1) for step in range(4)]
    for step in range(3):
        np.testing.assert_allclose(squares(X + step).get().numpy(), expected[step], rtol=1e-6)
    log = waits(monkeypatch)
    first, last = squares(X), squares(X + 3)
    assert log == [], "the runs are launched only"
    passed: list[Any] = []
    for future, values in ((first, expected[0]), (last, expected[3])):
        np.testing.assert_allclose(future.get().numpy(), values, rtol=1e-6)
        future.async_get(passed.append)
    assert log == ["Event", "Event"] and [blob.numpy().tolist() for blob in passed] == [first.get().numpy().tolist(), last.get().numpy().tolist()]
    world = current_session().world
    assert world is not None
    (executor,) = executors_of(world.ranks[0]).values()
    assert executor.replays


@pytest.mark.parametrize("parameters", ["const float *x, float *y", "\n    const float *x,\n    float *y"])
def test_guarded_kernels_read_the_flag_first(parameters: str) -> None:
    text = f'static int helper(int x) {{ return x; }}\n\nextern "C" __global__ void __launch_bounds__(256) k({parameters}) {{\n  y[0] = x[0];\n}}\n'
    guarded = guarded_text(text)
    assert guarded is not None and guarded.endswith(f"k({parameters}, const long long *halted) {{\n  if (*halted) return;\n  y[0] = x[0];\n}}\n")


@pytest.mark.parametrize("path", sorted(Path(host_cuda.__file__).with_name("golden").glob("*.cu")), ids=lambda path: path.stem)
def test_printed_kernels_can_be_guarded(path: Path) -> None:
    guarded = guarded_text(path.read_text())
    assert guarded is not None and guarded.count("if (*halted) return;") == path.read_text().count("__global__")


def test_kernels_of_another_form_are_not_guarded() -> None:
    assert guarded_text("__global__ void k(float *x) { *x = 0; }") is None
