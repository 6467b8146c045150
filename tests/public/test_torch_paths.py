"""PyTorch's module paths and switches: every import form works, and switches check their values."""

from __future__ import annotations

import importlib
import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import jobflow as flow
from jobflow.compat.torch_paths import PATHS
from jobflow.core.errors import JobError, JobflowError

#: statements of programs for PyTorch, after `torch` was replaced
STATEMENTS = """
import jobflow.nn as nn, jobflow.nn.functional as F, jobflow.optim as optim, jobflow.distributed as dist
import jobflow.backends.cudnn as cudnn; cudnn.benchmark = True
import jobflow.multiprocessing as mp; mp.spawn, mp.Process, mp.set_start_method
import jobflow.cuda.amp as amp; amp.GradScaler
import jobflow.utils.data.distributed; jobflow.utils.data.distributed.DistributedSampler
from jobflow.utils.data.dataloader import DataLoader, default_collate
from jobflow.utils.data._utils.collate import default_collate
from jobflow.utils.data.sampler import Sampler
from jobflow.utils.data.dataset import Dataset
from jobflow.utils.tensorboard import SummaryWriter
from jobflow.nn.modules.linear import Linear
from jobflow.nn.modules.batchnorm import BatchNorm2d, _BatchNorm; assert issubclass(BatchNorm2d, _BatchNorm)
from jobflow.nn.modules.conv import _ConvNd, Conv2d; assert issubclass(Conv2d, _ConvNd)
from jobflow.nn.modules.utils import _pair; assert _pair(3) == (3, 3) == _pair([3, 3])
from jobflow.nn.parameter import Parameter
from jobflow.nn.parallel.distributed import DistributedDataParallel
from jobflow.nn.utils.clip_grad import clip_grad_norm_
from jobflow.nn.utils.rnn import pad_sequence
from jobflow.nn.modules.loss import _Loss, _WeightedLoss; assert _WeightedLoss(reduction="sum").reduction == "sum"
from jobflow.nn.init import _calculate_fan_in_and_fan_out; assert _calculate_fan_in_and_fan_out(flow.ones(2, 3, 3)) == (9, 6)
from jobflow.autograd.function import once_differentiable
import jobflow.utils.model_zoo as model_zoo; model_zoo.load_url
from jobflow.optim.optimizer import Optimizer, required
from jobflow.optim.adam import Adam
from jobflow.optim.lr_scheduler import LRScheduler, _LRScheduler
from jobflow.autograd.function import Function
from jobflow.autograd import Variable
from jobflow.types import Number, Device
from jobflow.compiler import disable
flow.cuda.amp.GradScaler, flow.nn.modules.batchnorm._BatchNorm, flow.utils.data.distributed.DistributedSampler, flow.xpu.is_available
flow._dynamo.reset(), flow.jit.is_scripting(), flow.nn.modules.utils._pair, flow.optim.lr_scheduler._LRScheduler
""".strip().splitlines()


@pytest.mark.parametrize("order", [1, -1])
def test_import_statements_of_programs_for_pytorch_work(order: int) -> None:
    code = "\n".join(["import jobflow as flow", *STATEMENTS[::order]])
    assert subprocess.run([sys.executable, "-W", "error", "-c", code], check=True, capture_output=True, text=True).stderr == ""


def test_every_alias_is_the_module_that_the_table_names() -> None:
    for alias, module in PATHS.items():
        assert importlib.import_module(f"jobflow.{alias}") is importlib.import_module(module)


def test_an_unknown_path_raises() -> None:
    with pytest.raises(ModuleNotFoundError):
        importlib.import_module("jobflow.nn.modules.nothing")
    with pytest.raises(AttributeError, match="synchronize"):
        flow.cuda.synchronise  # noqa: B018


#: a call with an invalid argument, and the name that its message contains
WRONG: dict[str, tuple[Callable[[], Any], str]] = {
    "benchmark": (lambda: setattr(flow.backends.cudnn, "benchmark", "yes"), "benchmark"),
    "an unknown switch": (lambda: setattr(flow.backends.cudnn, "benchmarks", True), "did you mean"),
    "flags": (lambda: flow.backends.cudnn.flags(enabled=3).__enter__(), "enabled"),
    "allow_tf32": (lambda: setattr(flow.backends.cuda.matmul, "allow_tf32", 1), "allow_tf32"),
    "precision": (lambda: flow.set_float32_matmul_precision("low"), "'low'"),
    "threads": (lambda: flow.set_num_threads(0), "threads"),
    "interop threads": (lambda: flow.set_num_interop_threads(True), "threads"),
    "deterministic": (lambda: flow.use_deterministic_algorithms("yes"), "mode"),  # type: ignore[arg-type]
    "debug mode": (lambda: flow.set_deterministic_debug_mode(3), "debug_mode"),
    "default device": (lambda: flow.set_default_device("tpu"), "tpu"),
    "default type": (lambda: flow.set_default_tensor_type("jobflow.LongTensor"), "LongTensor"),
    "set_device": (lambda: flow.cuda.set_device("cpu"), "cpu"),
    "synchronize": (lambda: flow.cuda.synchronize("cpu"), "synchronize"),
    "fraction": (lambda: flow.cuda.set_per_process_memory_fraction(2), "fraction"),
    "elapsed_time": (lambda: flow.cuda.Event().elapsed_time(flow.cuda.Event()), "enable_timing"),
    "memory_format": (lambda: flow.zeros(2, 2).contiguous(memory_format="nhwc"), "nhwc"),
    "channels_last": (lambda: flow.zeros(2, 2).to(memory_format=flow.channels_last), "4 axes"),
    "clone": (lambda: flow.clone(flow.zeros(2), memory_format=1), "memory_format"),
    "empty_like": (lambda: flow.empty_like(flow.zeros(2), memory_format=1), "memory_format"),
    "layout": (lambda: flow.zeros(2, layout="coo"), "coo"),
    "pin_memory": (lambda: flow.zeros(2, pin_memory="yes"), "pin_memory"),
    "non_blocking": (lambda: flow.zeros(2).to("cpu", non_blocking=2), "non_blocking"),
    "jit.script": (lambda: flow.jit.script(3), "got 3"),
    "jit.load": (lambda: flow.jit.load("x.pt"), "TorchScript"),
    "hub.load": (lambda: flow.hub.load("a/b", "c"), "flow.load"),
    "model_zoo": (lambda: importlib.import_module("jobflow.utils.model_zoo").load_url("http://a"), "flow.load"),
    "required": (lambda: flow.optim.Optimizer([flow.ones(2)], {"lr": flow.optim.optimizer.required}), "pass lr="),
    "reduction": (lambda: flow.nn.modules._Loss(reduction="men"), "mean"),
    "Generator": (lambda: flow.Generator(device="tpu"), "tpu"),
    "Variable": (lambda: flow.autograd.Variable(3), "Variable"),
    "spawn": (lambda: flow.multiprocessing.spawn(print, nprocs=0), "nprocs"),
    "print options": (lambda: flow.set_printoptions(precision=-1), "precision"),
    "print profile": (lambda: flow.set_printoptions(profile="long"), "long"),
    "schedule": (lambda: flow.profiler.schedule(wait=0, warmup=0, active=0), "active"),
    "record_function": (lambda: flow.profiler.record_function(3), "name"),  # type: ignore[arg-type]
    "profile": (lambda: flow.profiler.profile(schedule=3), "schedule"),  # type: ignore[arg-type]
    "start method": (lambda: flow.multiprocessing.spawn(print, start_method="fork"), "fork"),
}


@pytest.mark.parametrize("name", WRONG)
def test_invalid_values_of_switches_raise(name: str) -> None:
    call, words = WRONG[name]
    with pytest.raises((JobflowError, AttributeError), match=words):
        call()


def test_switches_keep_their_values() -> None:
    flow.backends.cuda.matmul.allow_tf32 = True
    assert flow.get_float32_matmul_precision() == "high"
    flow.set_float32_matmul_precision("highest")
    assert flow.backends.cuda.matmul.allow_tf32 is False
    with flow.backends.cudnn.flags(benchmark=True):
        assert flow.backends.cudnn.benchmark
    flow.set_deterministic_debug_mode("warn")
    assert flow.are_deterministic_algorithms_enabled() and flow.get_deterministic_debug_mode() == 1
    flow.use_deterministic_algorithms(False)
    assert flow.get_deterministic_debug_mode() == 0


def test_default_device_applies_to_new_tensors_only() -> None:
    with flow.set_default_device("cuda:1"):
        assert str(flow.zeros(2).device) == str(flow.tensor([1.0]).device) == "cuda:1" == str(flow.get_default_device())
        assert str(flow.zeros(2, device="cpu").device) == "cpu"
    with flow.cuda.device(2):
        assert flow.zeros(2, device="cuda").get_device() == 2 == flow.cuda.current_device()
    assert str(flow.zeros(2).device) == "cpu" and flow.cuda.current_device() == 0


def test_memory_format_describes_strides() -> None:
    x = flow.zeros(2, 3, 4, 5)
    last = x.permute(0, 2, 3, 1).contiguous().permute(0, 3, 1, 2)
    assert not x.is_contiguous(memory_format=flow.channels_last) and last.is_contiguous(memory_format=flow.channels_last)
    assert not last.is_contiguous() and last.dim_order() == (0, 2, 3, 1)
    assert last.is_same_size(x) and x.is_set_to(x.detach()) and not last.is_set_to(x)


def test_fork_rng_restores_the_generators() -> None:
    with flow.random.fork_rng():
        inside = flow.rand(3)
    np.testing.assert_array_equal(inside.numpy(), flow.rand(3).numpy())


def test_variable_shares_memory() -> None:
    x = flow.ones(2)
    variable = flow.autograd.Variable(x, requires_grad=True)
    assert isinstance(variable, flow.autograd.Variable) and variable.data_ptr() == x.data_ptr() and not x.requires_grad
    assert x[1:].untyped_storage().data_ptr() == x.untyped_storage().data_ptr() == x.data_ptr() and len(x[1:].untyped_storage()) == 8
    (variable * 2).sum().backward()
    np.testing.assert_array_equal(variable.grad.numpy(), [2, 2])


def test_print_options_change_the_text_of_tensors() -> None:
    x = flow.tensor([1.23456, 2.0])
    flow.set_printoptions(precision=2)
    assert "1.23," in str(x)
    flow.set_printoptions(sci_mode=True)
    assert "1.23e+00" in str(x)
    flow.set_printoptions(profile="short", threshold=4, edgeitems=1)
    assert "[0., ..., 8.]" in str(flow.arange(9.0))
    flow.set_printoptions(profile="default")
    assert "1.2346" in str(x)


def test_profiler_records_named_blocks_of_the_scheduled_steps(tmp_path: Path) -> None:
    from jobflow.profiler import ProfilerActivity, profile, record_function, schedule, tensorboard_trace_handler

    steps = schedule(wait=1, warmup=1, active=2, repeat=1)
    with profile(activities=[ProfilerActivity.CPU], schedule=steps, on_trace_ready=tensorboard_trace_handler(tmp_path)) as profiler:
        for _ in range(6):
            with record_function("step"):
                record_function("inner")(lambda: flow.ones(2) + 1)()
            profiler.step()
    (trace,) = tmp_path.iterdir()
    names = [event["name"] for event in json.loads(trace.read_text())["traceEvents"]]
    assert names == ["inner", "step"] * 2
    averages = profiler.key_averages()
    assert [(each.key, each.count) for each in averages] == [("step", 2), ("inner", 2)] and "step" in averages.table()


def test_summary_writer_accepts_tensors(tmp_path: Path) -> None:
    from jobflow.utils.tensorboard import SummaryWriter

    with SummaryWriter(log_dir=tmp_path) as writer:
        writer.add_scalar("loss", flow.tensor(0.5), 1)
        writer.add_histogram("weights", flow.rand(9), global_step=1)
        with pytest.raises(JobError, match="add_graph"):
            writer.add_graph(flow.nn.Linear(1, 1))
    assert any(tmp_path.iterdir())
