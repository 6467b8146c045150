"""Kernels use nothing that CuPy lacks, and give on a pretended CuPy what they give on NumPy."""

from __future__ import annotations

import ast
import math
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import fake_cupy
import fake_streams
import numpy as np
import pytest
from on_device import OPS, Bench, bound, check_op, check_whole_numbers

import jobflow.ops
from jobflow.core.types import DType, bfloat16, float16
from jobflow.ops.matmul import MatMul

MODULES = sorted(Path(jobflow.ops.__path__[0]).glob("*.py"))


# By reading ----------------------------------------------------------------------------------------------------------


def functions(tree: ast.AST) -> Iterator[ast.FunctionDef]:
    """Return the functions that compute with an array module argument."""
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef) and (node.name == "kernel" or any(a.arg == "xp" for a in node.args.args)):
            yield node


def dotted(node: ast.AST) -> str:
    """`xp.add.at` of the attribute that says so; "" for anything else."""
    if isinstance(node, ast.Name):
        return node.id
    before = dotted(node.value) if isinstance(node, ast.Attribute) else ""
    return f"{before}.{node.attr}" if before and isinstance(node, ast.Attribute) else ""


def misuse(call: ast.Call, name: str) -> str | None:
    """Return the error of this call of CuPy's function, or ""."""
    arguments = [a for a in call.args if not isinstance(a, ast.Starred)]
    try:
        fake_cupy.called(name, tuple(arguments), {k.arg: None for k in call.keywords if k.arg})
    except TypeError as error:
        return str(error)
    return None


def faults(text: str) -> Iterator[str]:
    """Yield the names in a module's kernels that CuPy does not have."""
    for function in functions(ast.parse(text)):
        for node in ast.walk(function):
            name = dotted(node) if isinstance(node, ast.Attribute) else ""
            if name.startswith("xp.") and not known(name):
                yield f"{function.name}, line {node.lineno}: {name}"
            if isinstance(node, ast.Call) and dotted(node.func).startswith("xp.") and known(dotted(node.func)):
                wrong = misuse(node, listed(dotted(node.func)))
                if wrong:
                    yield f"{function.name}, line {node.lineno}: {wrong}"
            if function.name == "kernel" and isinstance(node, ast.Call) and dotted(node.func).startswith("np."):
                yield f"{function.name}, line {node.lineno}: {dotted(node.func)} would be given arrays of a GPU"


def listed(name: str) -> str:
    """The name in the list of `xp.take`, and of `xp.add.at`."""
    first, *rest = name.split(".")[1:]
    if first == "lib":
        return ".".join(rest)
    if rest and fake_cupy.NAMES.get(f"cupy.{first}", [""])[:1] == ["ufunc"]:
        return f"ufunc.{'.'.join(rest)}"
    return f"cupy.{'.'.join([first, *rest])}"


def known(name: str) -> bool:
    return name in ("xp.lib", "xp.lib.stride_tricks", "xp.linalg") or listed(name) in fake_cupy.NAMES


@pytest.mark.parametrize("module", MODULES, ids=lambda path: path.stem)
def test_kernels_ask_for_what_cupy_has(module: Path) -> None:
    assert list(faults(module.read_text())) == []


@pytest.mark.parametrize(
    "line",
    [
        "xp.vecdot(x, x)",
        "xp.add(x, x, where=x)",
        "xp.add(x, x, x, x)",
        "xp.add.inplace(x)",
        "xp.sum(x, initial=0)",
        "xp.take(x, y, mode='clip')",
        "xp.errstate()",
        "np.prod(x.shape)",
    ],
)
def test_names_missing_in_cupy_are_reported(line: str) -> None:
    assert len(list(faults(f"def kernel(self, xp, x, y):\n    {line}"))) == 1


# By running ----------------------------------------------------------------------------------------------------------


@pytest.fixture
def cupy(monkeypatch: pytest.MonkeyPatch) -> Any:
    for name, module in fake_cupy.modules(1).items():
        monkeypatch.setitem(sys.modules, name, module)
    return sys.modules["cupy"]


@pytest.mark.parametrize("name", OPS)
def test_the_kernel_gives_what_it_gives_on_numpy(name: str, cupy: Any, pytestconfig: pytest.Config) -> None:
    check_op(cupy, OPS[name], every=pytestconfig.getoption("--full"))


def test_whole_numbers_are_added_at_their_places(cupy: Any) -> None:
    """GPUs add whole words of 64 bits without a sign, and no narrow ones."""
    check_whole_numbers(cupy)


@pytest.mark.parametrize("dtype", [float16, bfloat16], ids=str)
def test_a_product_that_gives_one_number_is_summed_in_float32(dtype: DType, cupy: Any) -> None:
    """CuPy computes it as a dot product, in the type of its operands: sums of halves would stop at 2048 and 256."""
    row, y = cupy.asarray(np.ones((1, 5000), dtype.numpy)), cupy.zeros((1, 1), dtype.numpy)
    bound(MatMul(), Bench(cupy), [row, cupy.asarray(np.ones((5000, 1), dtype.numpy))], [y])
    assert abs(float(y.get()[0, 0]) - 5000) <= 16


class TestThePretence:
    """Checks of the simulation itself."""

    def test_arrays_do_not_mix_with_those_of_numpy(self, cupy: Any) -> None:
        x, host = cupy.ones((2, 2)), np.ones((2, 2))
        for mixed in (lambda: x + host, lambda: host + x, lambda: cupy.add(x, host), lambda: np.add(x, 1), lambda: np.asarray(x), lambda: np.sum(x)):
            if mixed.__code__.co_names[:2] == ("np", "add"):
                assert isinstance(mixed(), cupy.ndarray)  # with numbers NumPy's functions are CuPy's
                continue
            with pytest.raises(TypeError):
                mixed()
        with pytest.raises(ValueError, match="cannot be used for fill"):
            x[...] = host

    def test_numbers_of_either_kind_do(self, cupy: Any) -> None:
        x = cupy.ones(3, np.float32)
        for y in (x * 2, x * np.float32(2), np.float32(2) * x, 2 - x * 0):
            assert y.dtype == np.float32 and y.get().tolist() == [2, 2, 2]

    def test_reductions_and_single_elements_stay_on_the_device(self, cupy: Any) -> None:
        x = cupy.arange(6.0).reshape(2, 3)
        for y, value in ((x.sum(), 15), (x[1, 2], 5), (cupy.max(x), 5)):
            assert isinstance(y, cupy.ndarray) and y.shape == () and float(y) == value

    def test_views_share_memory(self, cupy: Any) -> None:
        x = cupy.zeros((2, 3))
        x.T[0] = 1
        x.reshape(-1)[5:] = 2
        x[1, 1] = 3
        part = x[:, 2]
        part += 4
        assert x.get().tolist() == [[1, 0, 4], [1, 3, 6]]

    def test_fresh_memory_is_rubbish_and_aligned(self, cupy: Any) -> None:
        x = cupy.empty((3, 5))
        assert math.isnan(float(x[1, 1])) and x.data.ptr % 256 == 0

    def test_what_the_list_lacks_is_not_there(self, cupy: Any) -> None:
        assert not hasattr(cupy, "errstate") and not hasattr(cupy, "vecdot")
        with pytest.raises(TypeError, match="no parameters"):
            cupy.ones(3).sum(initial=0)
        with pytest.raises(TypeError, match="does not support int64"):
            cupy.add.at(cupy.zeros(3, np.int64), cupy.zeros(1, np.int64), 1)

    def test_streams_that_do_not_wait_for_each_other_are_a_race(self, cupy: Any) -> None:
        first, second = cupy.cuda.Stream(non_blocking=True), cupy.cuda.Stream(non_blocking=True)
        with first:
            x = cupy.ones(3)
            x.set(np.ones(3), stream=first)
        with pytest.raises(fake_streams.Race), second:
            cupy.add(x, x)
        first.synchronize()
        with second:
            cupy.add(x, x)
            x.set(np.ones(3))  # by the legacy stream, which nobody waits for
            with pytest.raises(fake_streams.Race):
                cupy.add(x, x)

    def test_devices_do_not_mix(self, cupy: Any, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(fake_cupy.Gpus, "count", 2)
        x = cupy.ones(3)
        with cupy.cuda.Device(1), pytest.raises(ValueError, match="must be same as the current device"):
            x + 1
