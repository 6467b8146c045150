"""Names of the legacy API outside of families: their results and errors."""

from __future__ import annotations

import runpy
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from parts import declare

import jobflow as flow
import jobflow.typing as tp
from jobflow.core.errors import ArgumentError, DuplicateNameError


def test_of_the_installation(capsys: pytest.CaptureFixture[str]) -> None:
    assert flow.sysconfig.get_compile_flags() == flow.sysconfig.get_link_flags() == []
    assert "ops in C++ are not supported" in capsys.readouterr().err
    assert flow.sysconfig.get_include() == flow.sysconfig.get_lib() and flow.sysconfig.get_lib().endswith("jobflow")
    known = flow.sysconfig.has_rpc_backend_grpc, flow.sysconfig.has_rpc_backend_local, flow.sysconfig.with_cuda, flow.sysconfig.with_xla
    assert [ask() for ask in known][:2] == [False, True] and not flow.sysconfig.with_xla()
    flow.tensorrt.cache_int8_calibration()
    flow.tensorrt.write_int8_calibration("nowhere")
    assert "flow.tensorrt has no effect" in capsys.readouterr().err


def test_cases_of_a_folder(tmp_path: Path) -> None:
    """The calling file is not among them."""
    (tmp_path / "test_one.py").write_text("def test_here(case): case.ran = 1\ntest_there = lambda case: None\ntest_there.num_nodes_required = 2\n")
    asks = "import os\nimport jobflow as flow\nflow.unittest.register_test_cases(globals(), os.path.dirname(__file__), lambda nodes: nodes == 1)\n"
    (tmp_path / "test_all.py").write_text(asks)
    cases = runpy.run_path(str(tmp_path / "test_all.py"))["test_one"]
    assert [name for name in vars(cases) if name.startswith("test_")] == ["test_here"] and cases("test_here").run().wasSuccessful()


def test_of_processes_and_tensors(fresh: None) -> None:
    one, other = flow.util.unique_str("a"), flow.util.unique_str("a")
    assert one != other and one.startswith("a") and flow.current_machine_id() == 0
    flow.config.machine_num(3)
    assert flow.current_resource().machine_num == 3
    assert flow.is_deprecated(flow.name_scope) and flow.is_deprecated(flow.deprecated.init_worker) and not flow.is_deprecated(flow.matmul)
    flow.inter_job_reuse_mem_strategy("mem_size_first")
    assert flow.experimental.nn is flow.nn and flow.experimental.tensor is flow.tensor
    with pytest.raises(AttributeError, match=r"jobflow.experimental has no 'squar_sum'; did you mean \"square_sum\"\?"):
        _ = flow.experimental.squar_sum
    x = flow.ones(2)
    assert flow.to(x, flow.int32).dtype is flow.int32
    assert flow.eager_nccl_all_reduce(x, "").numpy().tolist() == x.numpy().tolist()


def test_modules_by_name(fresh: None) -> None:
    calls: list[int] = []

    def create() -> list[int]:
        calls.append(1)
        return calls

    @flow.global_function()
    def job(x: tp.Numpy.Placeholder((2,))) -> tp.Numpy:
        assert flow.find_or_create_module("m", create) is flow.find_or_create_module("m", create, reuse=True)
        with pytest.raises(DuplicateNameError, match=r"job job already requested module 'm'; pass reuse=True"):
            flow.find_or_create_module("m", create)
        return x

    job(np.ones(2, np.float32))
    assert len(calls) == 1


@pytest.mark.parametrize("devices", [1, 2])
def test_weights_of_earlier_runs(fresh: None, devices: int) -> None:
    flow.config.cpu_device_num(devices)

    @flow.global_function()
    def job() -> tuple[tp.Numpy, tp.Numpy]:
        w = flow.get_variable("w", (4,), initializer=flow.zeros_initializer())
        ref, value = flow.experimental.ssp_variable_proxy(w, 3)
        _, now = flow.experimental.ssp_variable_proxy(w)
        assert flow.system.assign(ref, ref + 1) is ref
        return value, now

    assert [tuple(x[0] for x in job()) for _ in range(5)] == [(0, 0), (0, 1), (0, 2), (1, 3), (2, 4)]
    assert list(flow.get_all_variables()) == ["w", "w-ssp-0", "w-ssp-1"]
    assert "w-ssp-1 <- %w-ssp-0" in str(flow.experimental.get_job_set())


def test_gradients_of_earlier_weights_are_those_of_the_weights(fresh: None) -> None:
    @flow.global_function("train")
    def job() -> tp.Numpy:
        w = flow.get_variable("w", (4,), initializer=flow.ones_initializer())
        _, value = flow.experimental.ssp_variable_proxy(w, 2)
        flow.optimizer.SGD(flow.optimizer.PiecewiseConstantScheduler([], [0.4]), momentum=0).minimize(flow.math.square(value))
        return value

    for expected in (1, 1, 0.8, 0.6):  # w loses 0.2 of the value, which is w of the run before
        np.testing.assert_allclose(job(), np.full(4, expected), rtol=1e-6)


def test_stages_read_weights_of_earlier_runs(fresh: None) -> None:
    """Stage 1 of 4 reads the weights of two runs ago, for trainable variables only."""

    @flow.global_function("train")
    def job() -> tp.Numpy:
        with flow.experimental.scope.config(ssp_num_stages=4, ssp_stage_id=1):
            w = flow.get_variable("w", (2,), initializer=flow.constant_initializer(3.0)) + 0
            flow.get_variable("fixed", (2,), initializer=flow.ones_initializer(), trainable=False)
        flow.optimizer.SGD(flow.optimizer.PiecewiseConstantScheduler([], [2.0]), momentum=0).minimize(w)
        return w

    assert [float(job()[0]) for _ in range(5)] == [3, 3, 3, 2, 1]
    assert [name for name in flow.get_all_variables() if "ssp" in name] == ["w-ssp-0", "w-ssp-1"]
    with pytest.raises(flow.ConfigError, match="ssp_stage_id must be 0 to ssp_num_stages - 1"):
        flow.experimental.scope.config(ssp_num_stages=2, ssp_stage_id=2)


def test_the_axis_of_the_samples(fresh: None) -> None:
    @flow.global_function()
    def job(x: tp.Numpy.Placeholder((4, 8))) -> None:
        w = flow.get_variable("w", (8, 6), initializer=flow.ones_initializer())
        y = flow.matmul(x.with_distribute(flow.distribute.split(0)), w)
        z = flow.transpose(y, [1, 0])
        assert [each.batch_axis for each in (x, w, y, z, flow.math.reduce_sum(y, 1), flow.math.reduce_sum(z, 1))] == [0, None, 0, 1, 0, None]

    job(np.ones((4, 8), np.float32))


@pytest.mark.parametrize("devices", [1, 2])
def test_tensors_of_the_devices_can_be_indexed(fresh: None, devices: int) -> None:
    """Items in the mirrored view are logical tensors with gradients, and the consistent view computes with them."""
    flow.config.cpu_device_num(devices)

    @flow.global_function("train")
    def job(x: tp.ListNumpy.Placeholder((2, 3))) -> tp.Bundle[tp.Numpy]:  # type: ignore[valid-type]
        w = flow.get_variable("w", (3,), initializer=flow.ones_initializer())
        each = (x * w).sub_consistent_blob_list
        assert [y.shape for y in each] == [(2, 3)] * devices and all(y.parallel_size == 1 for y in each)
        with flow.scope.consistent_view():
            loss = flow.math.reduce_sum(each[-1])
            flow.optimizer.SGD(flow.optimizer.PiecewiseConstantScheduler([], [1.0]), momentum=0).minimize(loss)
            with pytest.raises(AttributeError, match=r"one tensor on all devices; divide it with advanced.distribute_split\(x\)"):
                _ = w.sub_consistent_blob_list
            return [*each, loss]

    xs = [np.arange(6, dtype=np.float32).reshape(2, 3) + 10 * i for i in range(devices)]
    *each, loss = job(xs)
    for one, x in zip(each, xs, strict=True):
        np.testing.assert_array_equal(one, x)
    assert loss == xs[-1].sum()
    np.testing.assert_allclose(flow.get_all_variables()["w"].numpy(), 1 - xs[-1].sum(0))


DEFINITIONS = [(kind.Placeholder((4, 3), flow.int8), kind is not tp.Numpy) for kind in (tp.Numpy, tp.ListNumpy, tp.ListListNumpy)]
DEFINITIONS += [(flow.FixedTensorDef((4, 3), flow.int8), False), (flow.MirroredTensorListDef([4, 3], flow.int8), True)]


@pytest.mark.parametrize(("declared", "is_dynamic"), DEFINITIONS)
def test_declared_properties_of_an_argument(declared: Any, is_dynamic: bool) -> None:
    assert (declared.shape, declared.dtype, declared.is_dynamic) == ((4, 3), flow.int8, is_dynamic)
    with pytest.raises(AttributeError, match=r'a declaration has no "with_distribute", only shape, dtype and is_dynamic'):
        _ = declared.with_distribute


def test_earlier_values_need_a_variable(fresh: None) -> None:
    job = declare(lambda x: flow.experimental.ssp_variable_proxy(x)[1], tp.Numpy.Placeholder((2,)))
    with pytest.raises(ArgumentError, match=r"ssp_variable_proxy at .*: var must be a result of get_variable"):
        job(np.ones(2, np.float32))
