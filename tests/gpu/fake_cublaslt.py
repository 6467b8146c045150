"""The imitated cublasLt of `fake_cublaslt.c`, compiled by the system's C compiler and found by the package in place of the real one."""

from __future__ import annotations

import contextlib
import ctypes
import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from jobflow.kernels.cuda import cublaslt_calls, cublaslt_library
from jobflow.kernels.target import target_of

SOURCE = Path(__file__).with_name("fake_cublaslt.c")
COMPILER = shutil.which(os.environ.get("CC", "cc"))

needs_compiler = pytest.mark.skipif(COMPILER is None, reason="C compiler cc not found; install gcc or clang, or set CC")


def compiled(folder: Path) -> Path:
    """Compile the imitated library to `folder`; return its path."""
    assert COMPILER is not None
    target = folder / "libcublasLt.so.13"
    subprocess.run([COMPILER, "-shared", "-fPIC", "-O2", str(SOURCE), "-o", str(target), "-lm"], check=True, capture_output=True, timeout=120)
    return target


class Imitation:
    """The switches and counts of the imitated library."""

    def __init__(self, path: Path) -> None:
        self.library = ctypes.CDLL(str(path))

    def _variable(self, name: str) -> Any:
        kind = (
            ctypes.c_uint
            if name == "reductions"
            else ctypes.c_int
            if name in ("computes", "refused_epilogue", "status", "capturing")
            else ctypes.c_long
        )
        return kind.in_dll(self.library, f"stub_{name}")

    def __getitem__(self, name: str) -> int:
        return int(self._variable(name).value)

    def __setitem__(self, name: str, value: int) -> None:
        self._variable(name).value = value

    @property
    def error(self) -> str:
        """The reason for the last refusal."""
        return (ctypes.c_char * 256).in_dll(self.library, "stub_error").value.decode()


def forget() -> None:
    """Forget the library that was found, and all decisions."""
    cublaslt_library.find.cache_clear()
    cublaslt_calls.on_gpu.cache_clear()
    target_of.cache_clear()


@contextlib.contextmanager
def installed(path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Imitation]:
    """Let the package find the library at `path`; reset its switches."""
    monkeypatch.setitem(cublaslt_library.LIBRARIES, 13, (str(path), "nowhere"))
    forget()
    imitation = Imitation(path)
    imitation["version"], imitation["computes"] = 130100, 1
    for name in ("refused_epilogue", "status", "capturing", "products", "queries"):
        imitation[name] = 0
    try:
        yield imitation
    finally:
        forget()
