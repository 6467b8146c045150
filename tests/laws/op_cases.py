"""Data for the laws of ops: names of functions, and unusual arguments.

A name has its reference function of NumPy, if one exists, which computes in float64 from the tensor's values.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import function_table
import numpy as np
from running import PLAIN

Array = np.ndarray[Any, Any]
NAN, INF = math.nan, math.inf
RANDOM = np.random.default_rng(5)

#: elementwise functions of one tensor
UNARY: Mapping[str, Callable[[Array], Array] | None] = function_table.references((*function_table.UNARY, *function_table.ACTIVATIONS)) | {
    # the sigmoid of -inf is the smallest normal number, whose product with -inf NumPy does not have
    "silu": None, "quick_gelu": None,
    # the references are valid in the domain of the table only
    "erfinv": None, "lgamma": None, "digamma": None, "i0": None, "sinc": None, "special.erfinv": None, "special.gammaln": None, "special.psi": None,
    "special.i0": None, "special.i0e": None, "special.ndtri": None, "special.entr": None, "special.sinc": None,
    "positive": np.array, "isnan": np.isnan, "isinf": np.isinf, "isfinite": np.isfinite, "logical_not": np.logical_not, "bitwise_not": np.bitwise_not,
    "nan_to_num": None, "clone": np.array, "detach": np.array, "zeros_like": np.zeros_like, "ones_like": np.ones_like,
}  # fmt: skip

#: functions of two tensors with broadcasting
BINARY: Mapping[str, Callable[[Array, Array], Array] | None] = function_table.references(function_table.BINARY) | {
    "logical_and": np.logical_and, "logical_or": np.logical_or, "logical_xor": np.logical_xor,
    "bitwise_and": np.bitwise_and, "bitwise_or": np.bitwise_or, "bitwise_xor": np.bitwise_xor,
    "matmul": np.matmul, "dot": None, "mm": None, "mv": None, "bmm": None, "outer": None,
}  # fmt: skip

#: functions of one tensor and axes
REDUCTIONS: Mapping[str, Callable[..., Any] | None] = function_table.references(function_table.REDUCTIONS) | {
    "all": np.all, "any": np.any, "argmax": np.argmax, "argmin": np.argmin, "std": None, "var": None, "norm": None, "logsumexp": None,
    "nansum": np.nansum, "median": None, "count_nonzero": np.count_nonzero, "softmax": None, "log_softmax": None, "cumsum": None,
    "cumprod": None, "sort": None, "argsort": None,
}  # fmt: skip
AXES: Sequence[Mapping[str, Any]] = ({}, {"dim": 0}, {"dim": -1}, {"dim": 7})

#: other functions of a tensor and numbers: name, optionally with its API, and arguments
SHAPED: Sequence[tuple[str, tuple[Any, ...]]] = (
    ("reshape", ((-1,),)), ("reshape", ((3, -1),)), ("reshape", ((7, 2),)), ("flatten", ()), ("flatten", (1,)), ("squeeze", ()), ("squeeze", (0,)),
    ("unsqueeze", (0,)), ("unsqueeze", (9,)), ("transpose", (0, 1)), ("transpose", (0, 5)), ("permute", ((1, 0),)), ("flip", ((0,),)),
    ("roll", (1, 0)), ("roll", (2,)), ("tile", ((2, 2),)), ("repeat", (2, 2)), ("expand", ((2, 3),)), ("expand", ((2, 2, 3),)), ("chunk", (2,)),
    ("chunk", (0,)), ("split", (2,)), ("split", (0,)), ("narrow", (0, 0, 1)), ("narrow", (0, 1, 9)), ("select", (0, 0)), ("select", (0, 9)),
    ("select", (0, -9)), ("diag", ()), ("diagonal", ()), ("tril", ()), ("triu", (1,)),
    ("topk", (1,)), ("topk", (99,)), ("topk", (-1,)), ("kthvalue", (1,)), ("kthvalue", (0,)), ("kthvalue", (99,)), ("repeat_interleave", (2,)),
    ("repeat_interleave", (-1,)), ("unbind", (0,)), ("unbind", (4,)), ("movedim", (0, 1)), ("swapaxes", (0, 1)), ("unflatten", (0, (1, -1))),
    ("one_hot", (3,)), ("one_hot", (0,)), ("masked_fill", (True, 1.0)), ("index_select", (0, 1)), ("take", (2,)),
    ("clamp", (-1, 1)), ("clip", (-1, 1)), ("clamp", (1, -1)), ("clamp", ()), ("clip", ("a", 1)), ("mv", (1,)), ("flow.pad", ([(1, 0), (0, 2)],)),
    ("flow.pad", ([(-9, 0), (0, 2)],)), ("flow.pad", ((1, 1),)), ("functional.pad", ((1, 1),)), ("functional.pad", ((-9, 0),)),
    ("swapdims", (0, 1)), ("moveaxis", (0, -1)), ("t", ()), ("unique", ()), ("concat", ()), ("stack", ()),
)  # fmt: skip

FLOATS = RANDOM.uniform(-2, 2, (2, 3))
INTEGERS = np.array([[3, -2, 1], [5, 4, -7]])


def extremes(dtype: Any) -> Array:
    can = np.iinfo(dtype)
    return np.array([can.min, can.min + 1, 0, 1, can.max - 1, can.max], dtype)


#: label, array, and memory order of the tensor
ARGUMENTS: Sequence[tuple[str, Array, str]] = (
    ("float32", FLOATS.astype(np.float32), ""),
    ("float64", FLOATS, ""),
    ("float16", FLOATS.astype(np.float16), ""),
    ("int64", INTEGERS, ""),
    ("int8 extremes", extremes(np.int8), ""),
    ("uint8 extremes", extremes(np.uint8), ""),
    ("int32 extremes", extremes(np.int32), ""),
    ("int64 extremes", extremes(np.int64), ""),
    ("bool", FLOATS > 0, ""),
    ("0-d", np.array(1.5, np.float32), ""),
    ("0-d integer", np.array(3), ""),
    ("one element", np.array([[0.5]], np.float32), ""),
    ("empty", np.zeros((0, 3), np.float32), ""),
    ("empty vector", np.zeros(0, np.float32), ""),
    ("empty integers", np.zeros((2, 0), np.int64), ""),
    ("not finite", np.array([[NAN, INF, -INF], [0.0, -0.0, 1.0]], np.float32), ""),
    # sums of cancelling values depend on the order
    *([] if PLAIN else [("large", np.array([[3e38, -3e38, 1e-40], [1e20, -1e20, 88.8]], np.float32), "")]),
    ("transposed", FLOATS.astype(np.float32), "transposed"),
    ("stepped", FLOATS.astype(np.float32), "stepped"),
    ("backwards", FLOATS.astype(np.float32), "backwards"),
)

#: pairs of these arrays, and other pairs
PAIRS: Sequence[tuple[str, Array, Array]] = (
    ("float32", FLOATS.astype(np.float32), FLOATS[::-1].astype(np.float32)),
    ("float16", FLOATS.astype(np.float16), FLOATS[::-1].astype(np.float16)),
    ("int64", INTEGERS, np.array([[2, 3, -4], [-5, 1, 3]])),
    ("int8 extremes", extremes(np.int8), extremes(np.int8)[::-1].copy()),
    ("uint8 and int8", extremes(np.uint8), extremes(np.int8)),
    ("int64 extremes", extremes(np.int64), extremes(np.int64)[::-1].copy()),
    ("int64 and float32", INTEGERS, FLOATS.astype(np.float32)),
    ("float32 and float64", FLOATS.astype(np.float32), FLOATS[::-1].copy()),
    ("bool", FLOATS > 0, FLOATS < 1),
    ("bool and int8", FLOATS > 0, INTEGERS.astype(np.int8)),
    ("zeros below", INTEGERS, np.array([[2, 0, -4], [0, 1, 3]])),
    ("float zeros below", np.array([[NAN, 1.0, -1.0], [0.0, INF, -2.0]]), np.array([[0.0, 0.0, -0.0], [0.0, INF, 0.7]])),
    ("0-d", np.array(2.5, np.float32), FLOATS.astype(np.float32)),
    ("two 0-d", np.array(2.5, np.float32), np.array(0.5, np.float32)),
    ("one element", np.array([[2.0]]), FLOATS),
    ("empty", np.zeros((0, 3)), np.zeros((1, 3))),
    ("empty and 0-d", np.zeros((0, 3)), np.array(1.0)),
    ("other shapes", FLOATS, FLOATS.T.copy()),
    ("no broadcast", FLOATS, np.ones(4)),
    ("vectors", FLOATS[0], FLOATS[1]),
    ("batches", RANDOM.uniform(-1, 1, (2, 2, 3)), RANDOM.uniform(-1, 1, (2, 3, 2))),
)

#: further arguments of in-place methods that take other arguments than none or the tensor of a pair
BEHIND: Mapping[str, Sequence[tuple[Any, ...]]] = {
    "clamp_": ((-1, 1), (0.5, None), (1, -1)), "clip_": ((-1, 1),), "clamp_min_": ((0.5,), (1,)), "clamp_max_": ((0.5,), (1,)),
    "add_": ((1,), (0.5,), (300,)), "sub_": ((1,), (0.5,)), "mul_": ((2,), (0.5,), (True,)), "div_": ((2,), (0,)), "floor_divide_": ((2,), (0,)),
    "remainder_": ((2,), (0,)), "fmod_": ((2,), (0.7,)), "pow_": ((2,), (0.5,), (-1,)), "tril_": ((), (1,)), "triu_": ((), (-1,)),
    "round_": ((), (1,)), "leaky_relu_": ((), (0.3,), ("x",)), "elu_": ((), (2.0,)),
}  # fmt: skip
