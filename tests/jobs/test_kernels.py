"""`flow.config.kernels`: the kernels of jobs and graphs from the next call on."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from parts import declare

import jobflow as flow
import jobflow.typing as tp
from jobflow.core.cache_folder import cache_folder
from jobflow.core.errors import ConfigError
from jobflow.engine.job import job_of
from jobflow.engine.options import Settings
from jobflow.engine.session import current_session
from jobflow.kernels import target
from jobflow.kernels.region import Region
from jobflow.program.commands import executors_of
from jobflow.tools.explain import explain

X = np.linspace(-2, 2, 64 * 8, dtype=np.float32).reshape(64, 8)


def make_job(more: float = 1.0) -> Any:
    chain = declare(lambda x: flow.math.square(flow.math.sigmoid(x + more) * x), tp.Numpy.Placeholder((64, 8)), name="chain")
    return chain


def targets() -> list[str]:
    """Return the targets of the compiled programs, and the number of regions of each."""
    world = current_session().world
    assert world is not None
    regions_by_target = []
    for executor in executors_of(world.ranks[0]).values():
        regions = sum(isinstance(getattr(i, "op", None), Region) for i in executor.plan.instructions)
        regions_by_target.append(f"{executor.target}: {regions}")
    return regions_by_target


def test_a_change_compiles_a_job_anew() -> None:
    job = make_job()
    assert flow.config.kernels("numpy")
    first = job(X)
    assert flow.config.kernels("llvm"), "it may change after the first call"
    assert flow.config.cpu_device_num(2) is False, "others may not"
    second = job(X)
    flow.config.kernels("reference")
    third = job(X)
    flow.config.kernels("numpy")
    np.testing.assert_array_equal(job(X), first)
    assert targets() == ["cpu, numpy: 0", "cpu, llvm: 1", "cpu, reference: 0"]
    np.testing.assert_allclose(second, first, rtol=1e-6)
    np.testing.assert_allclose(third, first, rtol=1e-6)


def test_a_change_compiles_a_graph_anew() -> None:
    class Chain(flow.nn.Graph):
        def build(self, x: Any) -> Any:
            return flow.square(flow.sigmoid(x + 1.0) * x)

    graph = Chain()
    x = flow.tensor(X)
    flow.config.kernels("numpy")
    first = graph(x).numpy()
    flow.config.kernels("llvm")
    second = graph(x).numpy()
    assert [bound.executor.target.tier for bound in graph._bounds.values()] == ["numpy", "llvm"]
    np.testing.assert_allclose(second, first, rtol=1e-6)


def test_a_missing_tier_raises(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "llvmlite", None)
    with pytest.raises(
        ConfigError,
        match=r'config.kernels\(.llvm.\) at .* needs llvmlite: pip install "jobflow-sbp\[jit\]"; use "numpy", which needs no other package',
    ):
        flow.config.kernels("llvm")
    with pytest.raises(ConfigError, match="one of auto, reference, numpy, llvm, exact; got 'lvm'"):
        flow.config.kernels("lvm")


def test_auto_skips_tiers_that_are_not_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    assert [target.cpu_tier(setting) for setting in ("auto", "llvm", "numpy", "exact")] == ["llvm", "llvm", "numpy", "llvm"]
    monkeypatch.setattr(target, "find_spec", lambda name: None)
    assert [target.cpu_tier(setting) for setting in ("auto", "llvm", "numpy", "exact")] == ["numpy", "llvm", "numpy", "numpy"]
    flow.config.kernels("auto")
    target.target_of.cache_clear()
    try:
        assert 'kernels of cpu, numpy ("auto" is "numpy", because llvmlite is not installed)\n' in explain(job_of(make_job()), stages=("kernels",))
    finally:
        target.target_of.cache_clear()


@pytest.mark.usefixtures("fresh")
def test_the_environment_selects_kernels_unless_the_program_does(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JOBFLOW_KERNELS", "reference")
    make_job()(X)
    assert targets() == ["cpu, reference: 0"]
    monkeypatch.setenv("JOBFLOW_KERNELS", "lvm")
    with pytest.raises(ConfigError, match=r'JOBFLOW_KERNELS: the value must be .* got .lvm.; did you mean "llvm"'):
        Settings()


@pytest.mark.usefixtures("fresh")
def test_compiled_loops_are_cached_in_the_configured_folder(tmp_path: Path) -> None:
    flow.config.cache_folder(str(tmp_path))
    flow.config.kernels("llvm")
    job = make_job(0.1875)
    job(X)
    (cached,) = (tmp_path / "loops").iterdir()
    assert cached.suffix == ".code"
    flow.clear_default_session()
    make_job()(X)
    assert cache_folder("loops") != tmp_path / "loops", "the next session says nothing"


def test_explain_names_the_kernel_and_why_others_refuse() -> None:
    job = make_job()
    flow.config.kernels("llvm")
    head, _, row, *_ = explain(job_of(job), stages=("kernels",)).splitlines()[1:]
    assert head == "kernels of cpu, llvm"
    assert re.search(r"Region\(Shift.*Square.*\) +llvm$", row)
    flow.config.kernels("auto")
    assert "kernels of cpu, llvm\n" in explain(job_of(job), stages=("kernels",))


def test_programs_for_gpus_that_run_on_cpus_are_compiled_for_cpus(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("jobflow.runtime.device.cuda_device.available", lambda: False)
    flow.config.gpu_device_num(1)
    flow.config.kernels("numpy")
    make_job()(X)
    assert targets() == ["cpu, numpy: 0"]
