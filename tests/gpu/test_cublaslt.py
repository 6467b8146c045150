"""Products and epilogues by cublasLt: the imitated library computes what NumPy computes, for all orders of memory, and choices are kept."""

from __future__ import annotations

import ctypes
import gc
import importlib.util
import re
import sys
import types
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import fake_cublas
import fake_cublaslt
import fake_cupy
import fake_nvrtc
import ml_dtypes
import numpy as np
import pytest
from fake_cublaslt import Imitation
from on_device import Bench
from test_cublas import CASES, ORDERS, array_in

from jobflow.core.errors import JobflowError
from jobflow.core.types import TensorType, bfloat16, float32, type_of
from jobflow.kernels import registry
from jobflow.kernels.cuda import cublaslt_calls, cublaslt_library
from jobflow.kernels.cuda.cublaslt_products import CublasLtEpilogue, CublasLtProduct, bound, epilogue_name
from jobflow.kernels.cuda.epilogue_product import EpilogueProduct
from jobflow.kernels.object_cache import ObjectCache
from jobflow.kernels.target import ProductMode, Target, target_of
from jobflow.ops.matmul import BatchMatMul, BroadcastMatMul, MatMul, RowsMatMul
from jobflow.ops.op import Op, types_tuple

pytestmark = fake_cublaslt.needs_compiler
#: element types, and tolerances relative to the largest element
TYPES = {np.dtype(t): tolerance for t, tolerance in ((np.float32, 1e-5), (np.float64, 1e-12), (np.float16, 2e-3), (ml_dtypes.bfloat16, 1.6e-2))}

#: the types of training by default, and all types with --full
BY_TYPE = [pytest.param(t, id=t.name, marks=() if t.name in ("float32", "bfloat16") else pytest.mark.full) for t in TYPES]


@pytest.fixture(scope="session")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return fake_cublaslt.compiled(tmp_path_factory.mktemp("cublaslt"))


@pytest.fixture
def cupy(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Any:
    for name, module in (fake_cupy.modules(1) | fake_cublas.modules() | fake_nvrtc.modules()).items():
        monkeypatch.setitem(sys.modules, name, module)
    cuda = sys.modules["cupy.cuda"]
    vars(cuda.runtime).update(runtimeGetVersion=lambda: 13000, memGetInfo=lambda: (1 << 30, 1 << 30))
    event = types.SimpleNamespace(record=lambda stream: None, synchronize=lambda: None)
    stream = types.SimpleNamespace(ptr=7)
    vars(cuda).update(get_current_stream=lambda: stream, Event=lambda: event, get_elapsed_time=lambda start, stop: 1.0)
    monkeypatch.setenv("JOBFLOW_CACHE", str(tmp_path))
    return sys.modules["cupy"]


@pytest.fixture
def imitation(cupy: Any, path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Imitation]:
    with fake_cublaslt.installed(path, monkeypatch) as library:
        yield library


def run(op: Op, cupy: Any, inputs: Sequence[Any], outputs: Sequence[Any], target: Target | None = None) -> str:
    """Run the calls of the best implementation; return its name."""
    target = target or target_of("gpu")
    chosen = registry.choose(op, target, inputs, outputs)
    for function, arguments in chosen.implementation.bind(op, Bench(cupy), inputs, outputs):
        function(*arguments)
    return chosen.implementation.name


def expected_of(op: Op, arrays: Sequence[Any], outputs: Sequence[Any]) -> list[Any]:
    """Return the results of the operation's kernel in float64."""
    wide = [np.asarray(a, np.float64) for a in arrays]
    results = [np.empty(y.shape, np.float64) for y in outputs]
    (replace(op, result=None) if isinstance(op, EpilogueProduct) else op).kernel(np, *wide, *results)
    return results


def close(ours: Any, expected: Any, dtype: Any, what: str) -> None:
    scale = max(1.0, float(np.max(np.abs(expected))))
    np.testing.assert_allclose(np.asarray(ours.get(), np.float64) / scale, expected / scale, rtol=0, atol=TYPES[np.dtype(dtype)], err_msg=what)


# Products ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", BY_TYPE)
def test_products_equal_numpy_for_all_orders_of_memory(cupy: Any, imitation: Imitation, dtype: Any) -> None:
    count = 0
    for op, *shapes in CASES:
        for k in range(len(ORDERS)):
            for written in ORDERS[:3]:
                a, b = (array_in(cupy, shape, dtype, *ORDERS[(k + n) % len(ORDERS)]) for n, shape in enumerate(shapes[:2]))
                y = array_in(cupy, shapes[2], dtype, *written)
                if CublasLtProduct().refuses(op, [a, b], [y]) is not None:
                    continue
                count += 1
                assert run(op, cupy, [a, b], [y]) == "cublaslt", imitation.error
                close(y, expected_of(op, [a.get(), b.get()], [y])[0], dtype, f"{op} {k}")
    assert count > 90
    assert imitation["products"] > count, "a batch with two strides is several calls, and proposals are timed"


def test_half_precision_factors_have_float32_results(cupy: Any, imitation: Imitation) -> None:
    a, b = (array_in(cupy, shape, ml_dtypes.bfloat16, *ORDERS[0]) for shape in ((4, 6), (6, 8)))
    y = cupy.empty((4, 8), np.float32)
    assert run(EpilogueProduct(MatMul(), float32), cupy, [a, b], [y]) == "cublaslt"
    close(y, expected_of(MatMul(), [a.get(), b.get()], [y])[0], np.float32, "")


def test_refused_operands_are_named(cupy: Any, imitation: Imitation) -> None:
    x, whole = cupy.zeros((4, 4), np.float32), cupy.zeros((4, 4), np.int32)
    refuses = CublasLtProduct().refuses
    assert refuses(MatMul(), [x[::2, ::2], x[:2, :2]], [x[:2, 2:]]) == "neither the rows nor the columns of an operand are contiguous"
    assert refuses(MatMul(), [x[:0], x], [x[:0]]) == "an operand has no elements"
    assert refuses(MatMul(), [whole, whole], [whole]) == "cublasLt has no products of int32 with a result of int32"
    assert refuses(MatMul(), [x, x], [whole]) == "cublasLt has no products of float32 with a result of int32"
    assert refuses(BatchMatMul(), [x[None], x[None]], [x[None]]) is None
    backwards = registry.at(TensorType((2, 4, 4), float32), (-64, 16, 4), 1 << 40)
    assert refuses(BatchMatMul(), [backwards, backwards], [backwards]) == "a batch is in reverse order"
    many = [registry.at(TensorType((300, 2, 4, 4), float32), (256, 64, 16, 4), 1 << 40) for _ in range(2)]
    other = registry.at(TensorType((300, 2, 4, 4), float32), (128, 64, 16, 4), 1 << 40)
    assert refuses(BatchMatMul(), many, [other]) is None, "one call for each of the shorter axis"
    far = [registry.at(TensorType((300, 300, 4, 4), float32), strides, 1 << 40) for strides in ((1 << 20, 64, 16, 4), (1 << 19, 128, 16, 4))]
    assert refuses(BatchMatMul(), [far[0], far[0]], [far[1]]) == "a batch with several strides needs 300 calls"


def test_large_operands_are_refused_from_version_13_6_on(cupy: Any, imitation: Imitation) -> None:
    arrays = [registry.at(TensorType(shape, bfloat16), (2 * shape[1], 2), 1 << 40) for shape in ((1 << 16, 8), (8, 1 << 15), (1 << 16, 1 << 15))]
    assert CublasLtProduct().refuses(MatMul(), arrays[:2], arrays[2:]) is None
    imitation["version"] = 130600
    fake_cublaslt.forget()
    assert CublasLtProduct().refuses(MatMul(), arrays[:2], arrays[2:]) == "cublasLt 13.6 fails for operands that span 2147483648 elements"


# Epilogues -----------------------------------------------------------------------------------------------------------

#: operations, and the shapes of their inputs
EPILOGUES: list[tuple[EpilogueProduct, tuple[tuple[int, ...], ...]]] = [
    (EpilogueProduct(MatMul(), bias=True), ((6, 5), (5, 8), (8,))),
    (EpilogueProduct(MatMul(True, True), bias=True, addend=True), ((5, 6), (8, 5), (8,), (6, 8))),
    (EpilogueProduct(MatMul(False, True), addend=True), ((6, 5), (8, 5), (6, 8))),
    (EpilogueProduct(MatMul(), bias=True, gelu="forward", keeps=True), ((6, 5), (5, 8), (8,))),
    (EpilogueProduct(MatMul(), gelu="forward", keeps=True), ((6, 5), (5, 8))),
    (EpilogueProduct(MatMul(), bias=True, gelu="forward"), ((6, 5), (5, 8), (8,))),
    (EpilogueProduct(MatMul(), gelu="forward"), ((6, 5), (5, 8))),
    (EpilogueProduct(MatMul(False, True), gelu="gradient"), ((6, 5), (8, 5), (6, 8))),
    (EpilogueProduct(MatMul(False, True), gelu="gradient", sums="y"), ((6, 5), (8, 5), (6, 8))),
    (EpilogueProduct(MatMul(True), sums="a"), ((5, 6), (5, 8))),
    (EpilogueProduct(MatMul(True), sums="b"), ((5, 6), (5, 8))),
    (EpilogueProduct(MatMul(False, True), sums="b"), ((6, 5), (8, 5))),
    (EpilogueProduct(RowsMatMul(), sums="a"), ((2, 5, 6), (2, 5, 8))),
    (EpilogueProduct(RowsMatMul(), sums="b"), ((2, 5, 6), (2, 5, 8))),
    (EpilogueProduct(BroadcastMatMul(True), bias=True, gelu="forward", keeps=True), ((2, 3, 5), (8, 5), (8,))),
    (EpilogueProduct(BroadcastMatMul(), bias=True, addend=True), ((2, 3, 5), (5, 8), (8,), (2, 3, 8))),
    (EpilogueProduct(BroadcastMatMul(), gelu="gradient", sums="y"), ((2, 3, 5), (5, 8), (2, 3, 8))),
    (EpilogueProduct(BatchMatMul(), addend=True), ((2, 6, 5), (2, 5, 8), (2, 6, 8))),
]
#: epilogues that no call of cublasLt computes
APART = [
    (EpilogueProduct(MatMul(), bias=True, addend=True, gelu="forward", keeps=True), ((6, 5), (5, 8), (8,), (6, 8))),
    (EpilogueProduct(MatMul(True), bias=True, sums="b"), ((5, 6), (5, 8), (8,))),
    (EpilogueProduct(MatMul(), bias=True, gelu="gradient", sums="y"), ((6, 5), (5, 8), (8,), (6, 8))),
]


def operands_of(cupy: Any, op: EpilogueProduct, shapes: Sequence[tuple[int, ...]], dtype: Any, turn: int) -> tuple[list[Any], list[Any]]:
    """Return inputs and outputs of an operation; the factors have the memory orders number `turn` and the next one."""
    result = np.dtype(dtype) if op.result is None else op.result.numpy
    inputs = [array_in(cupy, shape, dtype, *ORDERS[(turn + n) % 3]) for n, shape in enumerate(shapes[:2])]
    inputs += [array_in(cupy, shape, result, *ORDERS[0]) for shape in shapes[2:]]
    types = types_tuple(op.infer(*map(type_of, inputs)))
    return inputs, [cupy.empty(t.shape, t.dtype.numpy) for t in types]


def check_epilogue(cupy: Any, op: EpilogueProduct, shapes: Sequence[tuple[int, ...]], dtype: Any, turn: int) -> None:
    inputs, outputs = operands_of(cupy, op, shapes, dtype, turn)
    if CublasLtEpilogue().refuses(op, inputs, outputs) is not None:
        assert turn and len(shapes[0]) > 2, "rows of several axes, or batches, may have strides that no product reads"
        return
    assert run(op, cupy, inputs, outputs) == "cublaslt"
    for k, (ours, expected) in enumerate(zip(outputs, expected_of(op, [a.get() for a in inputs], outputs), strict=True)):
        close(ours, expected, dtype, f"output {k} of {op}")


@pytest.mark.parametrize("dtype", BY_TYPE)
def test_an_epilogue_is_one_call(cupy: Any, imitation: Imitation, dtype: Any) -> None:
    for turn, (op, shapes) in enumerate(EPILOGUES):
        inputs, outputs = operands_of(cupy, op, shapes, dtype, 0)
        gpu = cublaslt_calls.on_gpu(0)
        calls = bound(gpu, replace(target_of("gpu"), products=ProductMode(timed=False)), op, inputs, outputs)
        assert calls is not None and len(calls) == 1, (op, imitation.error)
        check_epilogue(cupy, op, shapes, dtype, turn)


#: operations whose epilogue a kernel computes; the first by default, and all with --full
KERNELS = [
    pytest.param(op, shapes, id=str(op), marks=pytest.mark.full if k else ())
    for k, (op, shapes) in enumerate([*APART, *EPILOGUES[:4], *EPILOGUES[7:14:3]])
]


@pytest.mark.parametrize(("op", "shapes"), KERNELS)
def test_a_kernel_computes_the_epilogue_that_cublaslt_lacks(cupy: Any, imitation: Imitation, op: EpilogueProduct, shapes: Any) -> None:
    name = epilogue_name(op)
    imitation["refused_epilogue"] = cublaslt_library.EPILOGUES[name] if name else 0
    for dtype in (np.float32, ml_dtypes.bfloat16):
        check_epilogue(cupy, op, shapes, dtype, 0)


def test_a_residual_may_be_the_memory_of_the_result(cupy: Any, imitation: Imitation) -> None:
    op = EpilogueProduct(MatMul(), bias=True, addend=True)
    inputs, (y,) = operands_of(cupy, op, ((6, 5), (5, 8), (8,), (6, 8)), np.float32, 0)
    (expected,) = expected_of(op, [a.get() for a in inputs], [y])
    y[...] = inputs[3]
    run(op, cupy, [*inputs[:3], y], [y])
    close(y, expected, np.float32, "timing must not write to the result")


@pytest.mark.full
def test_epilogue_samples_agree_with_their_kernel(cupy: Any, imitation: Imitation) -> None:
    for sample in EpilogueProduct.samples():
        op = sample.op
        assert isinstance(op, EpilogueProduct)
        arrays = [np.asarray(a) for a in sample.arrays]
        inputs = [cupy.asarray(a) for a in arrays]
        outputs = [cupy.empty(t.shape, t.dtype.numpy) for t in types_tuple(op.infer(*map(type_of, arrays)))]
        run(op, cupy, inputs, outputs)
        for ours, expected in zip(outputs, expected_of(op, arrays, outputs), strict=True):
            close(ours, expected, np.float32, str(op))


# Algorithms ----------------------------------------------------------------------------------------------------------


def product_of(cupy: Any, depth: int = 6) -> tuple[list[Any], Any]:
    return [array_in(cupy, shape, np.float32, *ORDERS[0]) for shape in ((4, depth), (depth, 8))], cupy.empty((4, 8), np.float32)


def target_with(**mode: Any) -> Target:
    return replace(target_of("gpu"), products=ProductMode(**mode))


def test_later_processes_use_the_stored_algorithm(cupy: Any, imitation: Imitation) -> None:
    inputs, y = product_of(cupy)
    run(MatMul(), cupy, inputs, [y])
    assert imitation["queries"] == 1
    run(MatMul(), cupy, inputs, [y])
    fake_cublaslt.forget()
    run(MatMul(), cupy, inputs, [y])
    assert imitation["queries"] == 1
    imitation["version"] = 130200
    fake_cublaslt.forget()
    run(MatMul(), cupy, inputs, [y])
    assert imitation["queries"] == 2, "another version has other algorithms"


def test_algorithms_of_another_library_raise(cupy: Any, imitation: Imitation, monkeypatch: pytest.MonkeyPatch) -> None:
    inputs, y = product_of(cupy)
    run(MatMul(), cupy, inputs, [y])
    monkeypatch.setattr(ObjectCache, "read", lambda self, key: bytes(72))
    fake_cublaslt.forget()
    with pytest.raises(JobflowError, match="refuses the stored algorithm with CUBLAS_STATUS_INVALID_VALUE; delete the folder"):
        run(MatMul(), cupy, inputs, [y])


def test_timed_proposals_write_to_temporary_memory(cupy: Any, imitation: Imitation) -> None:
    inputs, y = product_of(cupy)
    y[...] = 5
    registry.bind(MatMul(), target_of("gpu"), Bench(cupy), inputs, [y])
    assert imitation["products"] == 2 * (1 + cublaslt_calls.LAUNCHES)
    assert (y.get() == 5).all()


def test_programs_of_several_ranks_use_the_first_proposal(cupy: Any, imitation: Imitation) -> None:
    inputs, y = product_of(cupy)
    registry.bind(MatMul(), target_with(timed=False), Bench(cupy), inputs, [y])
    assert imitation["products"] == 0 and imitation["queries"] == 1


@pytest.mark.parametrize(("depth", "deterministic", "reductions"), [(128, False, 2), (120, False, 0), (128, True, 0)])
def test_split_sums_need_a_whole_number_of_blocks(cupy: Any, imitation: Imitation, depth: int, deterministic: bool, reductions: int) -> None:
    inputs, y = product_of(cupy, depth)
    registry.bind(MatMul(), target_with(deterministic=deterministic, timed=False), Bench(cupy), inputs, [y])
    assert imitation["reductions"] == reductions


def test_a_failed_call_names_product_function_and_status(cupy: Any, imitation: Imitation) -> None:
    inputs, y = product_of(cupy)
    calls = registry.bind(MatMul(), target_with(timed=False), Bench(cupy), inputs, [y])
    imitation["status"] = 13
    with pytest.raises(JobflowError, match=r"1 x float32\[4,6\] x \[6,8\] in float32: cublasLtMatmul: CUBLAS_STATUS_EXECUTION_FAILED \(13\)"):
        calls[0][0]()


def test_calls_do_not_query_algorithms(cupy: Any, imitation: Imitation) -> None:
    inputs, y = product_of(cupy)
    calls = registry.bind(MatMul(), target_with(timed=False), Bench(cupy), inputs, [y])
    imitation["capturing"] = 1
    calls[0][0]()
    assert imitation["queries"] == 1
    close(y, expected_of(MatMul(), [a.get() for a in inputs], [y])[0], np.float32, "")


def test_tf32_rounds_the_factors(cupy: Any, imitation: Imitation) -> None:
    inputs, y = product_of(cupy)
    exact = expected_of(MatMul(), [a.get() for a in inputs], [y])[0]
    for tf32, low, high in ((False, 0, 1e-6), (True, 1e-5, 1e-2)):
        run(MatMul(), cupy, inputs, [y], target_with(tf32=tf32, timed=False))
        assert low <= float(np.max(np.abs(y.get() - exact))) <= high


def test_descriptors_are_destroyed_with_their_calls(cupy: Any, imitation: Imitation) -> None:
    op = EpilogueProduct(MatMul(), bias=True)
    inputs, outputs = operands_of(cupy, op, ((6, 5), (5, 8), (8,)), np.float32, 0)
    run(op, cupy, inputs, outputs)
    gc.collect()
    before = imitation["living"]
    calls = registry.bind(op, target_of("gpu"), Bench(cupy), inputs, outputs)
    assert imitation["living"] == before + 5
    del calls
    gc.collect()
    assert imitation["living"] == before


# The library ---------------------------------------------------------------------------------------------------------


def test_without_the_library_cupy_multiplies(cupy: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(cublaslt_library.LIBRARIES, 13, ("libnowhere.so.13", "nowhere"))
    fake_cublaslt.forget()
    inputs, y = product_of(cupy)
    assert run(MatMul(), cupy, inputs, [y]) == "cublas"
    assert target_of("gpu").patterns.epilogues is None
    assert CublasLtEpilogue().refuses(EpilogueProduct(MatMul()), inputs, [y]) == "libnowhere.so.13 is not installed"
    fake_cublaslt.forget()


def test_unknown_versions_of_cuda_are_named(cupy: Any) -> None:
    cupy.cuda.runtime.runtimeGetVersion = lambda: 15000
    fake_cublaslt.forget()
    assert cublaslt_library.find().reason == "jobflow has no name of cublasLt for CUDA 15"
    fake_cublaslt.forget()


def test_structures_have_the_sizes_of_the_header() -> None:
    assert ctypes.sizeof(cublaslt_library.Algorithm) == 64
    assert ctypes.sizeof(cublaslt_library.HeuristicResult) == 96


def header(name: str) -> str:
    """Return the text of a header of the wheel nvidia-cublas; skip the test without the wheel."""
    spec = importlib.util.find_spec("nvidia")
    folders = [] if spec is None else [Path(folder) / "cu13" / "include" / name for folder in spec.submodule_search_locations or ()]
    text = next((path.read_text() for path in folders if path.is_file()), "")
    if not text:
        pytest.skip("nvidia-cublas is not installed")
    return text


def test_constants_have_the_values_of_the_header() -> None:
    lt, text = cublaslt_library, header("cublasLt.h") + header("cublas_api.h") + "CUBLAS_STATUS_SUCCESS = 0,"
    values = {name: value.strip() for name, value in re.findall(r"(CUBLAS(?:LT)?_[A-Z_0-9]+) *= *([^,\n]+),?", text)}

    def number(name: str) -> int:
        return int(eval(re.sub(r"CUBLASLT_\w+", lambda word: str(number(word[0])), values[name])))

    expected = {
        "CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT": lt.LAYOUT_BATCH_COUNT,
        "CUBLASLT_MATRIX_LAYOUT_STRIDED_BATCH_OFFSET": lt.LAYOUT_BATCH_OFFSET,
        "CUBLASLT_MATMUL_DESC_TRANSA": lt.PRODUCT_TRANSPOSES_A,
        "CUBLASLT_MATMUL_DESC_TRANSB": lt.PRODUCT_TRANSPOSES_B,
        "CUBLASLT_MATMUL_DESC_EPILOGUE": lt.PRODUCT_EPILOGUE,
        "CUBLASLT_MATMUL_DESC_BIAS_POINTER": lt.PRODUCT_BIAS,
        "CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_POINTER": lt.PRODUCT_AUX,
        "CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_LD": lt.PRODUCT_AUX_LEADING,
        "CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE": lt.PRODUCT_BIAS_TYPE,
        "CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES": lt.PREFER_WORKSPACE,
        "CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK": lt.PREFER_REDUCTIONS,
        **{f"CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_{x}_BYTES": value for x, value in zip("ABCD", lt.PREFER_ALIGNMENTS, strict=True)},
        "CUBLASLT_REDUCTION_SCHEME_NONE": lt.REDUCE_NOTHING,
        "CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE": lt.REDUCE_IN_COMPUTE_TYPE,
        "CUBLASLT_ALGO_CONFIG_SPLITK_NUM": lt.ALGORITHM_SPLITS,
        "CUBLASLT_ALGO_CONFIG_REDUCTION_SCHEME": lt.ALGORITHM_REDUCTION,
        "CUBLAS_COMPUTE_32F": lt.COMPUTE_32F,
        "CUBLAS_COMPUTE_64F": lt.COMPUTE_64F,
        "CUBLAS_COMPUTE_32F_FAST_TF32": lt.COMPUTE_TF32,
        **{name: status for status, name in lt.STATUSES.items()},
    }
    epilogues = ["DEFAULT", "BIAS", "GELU", "GELU_BIAS", "GELU_AUX", "GELU_AUX_BIAS", "DGELU", "DGELU_BGRAD", "BGRADA", "BGRADB"]
    names = dict(zip(lt.EPILOGUES, epilogues, strict=True))
    expected |= {f"CUBLASLT_EPILOGUE_{names[key]}": value for key, value in lt.EPILOGUES.items()}
    assert {name: number(name) for name in expected} == expected
