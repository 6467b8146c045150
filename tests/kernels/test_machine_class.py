"""The class of CPUs that determines products and convolutions; `tests/runtime/programs/world_cases.py` tests the common class of ranks."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest

from jobflow.core.errors import ConfigError
from jobflow.core.types import TensorType, float32
from jobflow.engine.options import Settings
from jobflow.kernels import machine_class
from jobflow.kernels.cpu.convolution_costs import COSTS, why_not
from jobflow.kernels.llvm.machine_code import Compiler
from jobflow.kernels.machine_class import MachineClass, agree, own_class
from jobflow.ops.conv import conv_op


@pytest.fixture(autouse=True)
def anew() -> Iterator[None]:
    """Reset the cached class, as in a new process."""
    agreed = [*machine_class._agreed]
    own_class.cache_clear()
    yield
    machine_class._agreed[:] = agreed
    own_class.cache_clear()


def test_a_lower_class_limits_costs_and_instructions(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JOBFLOW_CPU", "avx2")
    assert own_class() == "avx2"
    here = Compiler()
    assert here.vector_bytes <= 32 and not here.primitives


def test_an_unknown_class_raises(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JOBFLOW_CPU", "avx")
    with pytest.raises(ConfigError, match="JOBFLOW_CPU=avx: this CPU does not belong to the class; use one of avx2"):
        Settings()


def test_a_class_above_the_cpus_own_raises(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("numpy.show_config", lambda mode: {"SIMD Extensions": {"baseline": ["X86_V2"], "found": ["X86_V3"]}})
    assert own_class() == "avx2"
    own_class.cache_clear()
    monkeypatch.setenv("JOBFLOW_CPU", "avx512")
    with pytest.raises(ConfigError, match=r"JOBFLOW_CPU=avx512: this CPU does not belong to the class; use one of avx2$"):
        own_class()


def test_all_ranks_use_the_lowest_class(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(COSTS, ("avx2", "llvm"), replace(COSTS["avx2", "llvm"], sums=0.0))
    x, w = (8, 64, 28, 28), (64, 64, 3, 3)
    op = conv_op(TensorType(x, float32), TensorType(w, float32), padding="same")
    cases: list[tuple[list[MachineClass], bool]] = [(["avx512", "avx512"], False), (["avx512", "avx2"], True)]
    for ranks, direct in cases:
        agree(ranks)
        assert (why_not(op, (x, w), True, "direct", "llvm") is None) == direct


@pytest.mark.parametrize(("cpu_flags", "granted", "expected"), [("amx_bf16", 0, "amx"), ("amx_bf16", -1, "avx512"), ("avx2", 0, "avx512")])
def test_amx_requires_the_permission_of_linux(cpu_flags: str, granted: int, expected: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("JOBFLOW_CPU", raising=False)
    monkeypatch.setattr("numpy.show_config", lambda mode: {"SIMD Extensions": {"found": ["X86_V4"]}})
    (tmp_path / "cpuinfo").write_text(f"flags : fpu {cpu_flags}\n")
    monkeypatch.setattr(machine_class, "CPUINFO", tmp_path / "cpuinfo")
    monkeypatch.setattr("ctypes.CDLL", lambda name: SimpleNamespace(syscall=lambda *arguments: granted))
    assert machine_class.own_class() == expected
