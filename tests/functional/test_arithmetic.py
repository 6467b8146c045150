"""Operators and their functions: broadcasting and integers in every layout, type promotion, and invalid operands."""

from __future__ import annotations

import operator
from typing import Any

import numpy as np
import pytest
from everywhere import compare
from ranks import on_ranks, with_ranks

import jobflow as flow
from jobflow.core.errors import ArgumentError, DtypeError, JobError, PlacementError, ShapeError
from jobflow.core.layout import B, P, S
from jobflow.core.types import bfloat16, bool_, float16, float32, float64, int8, int16, int32, int64, uint8
from jobflow.engine.placements import placement, sbp
from jobflow.functional import binary_functions as fa
from jobflow.functional import comparing, gradients
from jobflow.functional.creation import full, ones, tensor, zeros
from jobflow.functional.promotion import result_type

RANDOM = np.random.default_rng(5)


def random_values(*shape: int, low: float = -2.0, high: float = 2.0) -> Any:
    return RANDOM.uniform(low, high, shape)


A, C = random_values(4, 6), random_values(4, 6, low=0.5)
ROW, COLUMN = random_values(1, 6, low=0.5), random_values(4, 1)
N, J = RANDOM.integers(-9, 9, (4, 6)), RANDOM.integers(1, 5, (4, 6))
T, U = RANDOM.random((4, 6)) < 0.5, RANDOM.random((4, 6)) < 0.5
PLAIN = (operator.add, operator.sub, operator.mul, operator.truediv)
WHOLE = (operator.floordiv, operator.mod)


#: one rank, whose layouts are all equal, only with --full
COUNTS = [pytest.param(1, marks=pytest.mark.full), 2]


@pytest.mark.parametrize("n", [*COUNTS, 3])
def test_operators_broadcast_and_promote_as_numpy(n: int) -> None:
    """The table has operands of one shape."""
    floats = [(f, f, (x, y)) for f in (*PLAIN, operator.pow) for x, y in ((C, ROW), (C, random_values(3, 4, 6, low=0.5)))]
    integers = [(f, f, (N, J)) for f in (*PLAIN[:3], *WHOLE)]
    compare(n, [*floats[:: 1 if n == 2 else 3], *integers], 1e-8)


@pytest.mark.parametrize("n", COUNTS)
def test_operators_of_tensors_and_numbers_equal_numpy(n: int) -> None:
    cases: list[Any] = []
    for f in (*PLAIN, *WHOLE):
        cases += [(lambda x, f=f: f(x, 3.0), lambda x, f=f: f(x, 3.0), (A,)), (lambda x, f=f: f(2.0, x), lambda x, f=f: f(2.0, x), (C,))]
    for f in (*PLAIN[:3], *WHOLE):
        cases += [(lambda x, f=f: f(x, 3), lambda x, f=f: f(x, 3), (N,)), (lambda x, f=f: f(7, x), lambda x, f=f: f(7, x), (J,))]
    for power in (2, 3.0, 0.5, -1, 0, 1):
        cases.append((lambda x, p=power: x**p, lambda x, p=power: x ** float(p), (C,)))
    cases += [(lambda x: 2.0**x, lambda x: 2.0**x, (A,)), (lambda x: x**3, lambda x: x**3, (N,)), (operator.neg, operator.neg, (A,))]
    cases += [(abs, abs, (A,)), (operator.pos, operator.pos, (A,))]
    compare(n, cases)


def test_numbers_keep_partial_tensors_partial() -> None:
    def program(rank: int) -> Any:
        x = ones(4, 6, placement=placement("cpu", [0, 1]), sbp=sbp.partial_sum)
        return [y.sbp for y in (x * 2, x / 3, 2 * x, -x, x - x, x + x)], (x / 3).numpy(), (x + 1).sbp

    for saved, third, shifted in on_ranks(2, program):
        assert saved == [(P,)] * 6 and shifted != (P,)
        np.testing.assert_array_equal(third, np.full((4, 6), np.float32(1) / np.float32(3)))


@pytest.mark.parametrize("n", COUNTS)
def test_named_functions_equal_numpy(n: int) -> None:
    x, y, z = A, C, random_values(4, 6)
    cases: list[Any] = [
        (lambda a, b: fa.add(a, b, alpha=2), lambda a, b: a + 2 * b, (x, y)),
        (lambda a, b: fa.sub(a, b, alpha=0.5), lambda a, b: a - 0.5 * b, (x, y)),
        (lambda a, b: a.rsub(b), lambda a, b: b - a, (x, y)),
        (lambda a, b, c: fa.addcmul(a, b, c, value=0.5), lambda a, b, c: a + 0.5 * b * c, (x, y, z)),
        (lambda a, b, c: fa.addcdiv(a, b, c, value=0.5), lambda a, b, c: a + 0.5 * b / c, (x, z, y)),
        (lambda a, b: flow.lerp(a, b, 0.25), lambda a, b: a + 0.25 * (b - a), (x, y)),
        (lambda a: fa.fmod(a, 0.7), lambda a: np.fmod(a, 0.7), (x,)),
        (lambda a: fa.maximum(a, 0.5), lambda a: np.maximum(a, 0.5), (x,)),
        (lambda a, b: fa.div(a, b, rounding_mode="floor"), np.floor_divide, (N, J)),
        (lambda a, b: fa.div(a, b, rounding_mode="trunc"), lambda a, b: np.trunc(a / b).astype(int), (N, J)),
        (lambda a, b: fa.div(a, b, rounding_mode="trunc"), lambda a, b: np.trunc(a / b), (x, y)),
        (fa.remainder, np.remainder, (N, J)),
        (lambda a: fa.float_power(a, 2), lambda a: a**2.0, (N,)),
        (fa.pow, lambda a, b: a ** b.astype(float), (N, J)),
    ]
    compare(n, cases)


@pytest.mark.parametrize("n", COUNTS)
def test_bitwise_operators_equal_numpy(n: int) -> None:
    pairs = [(T, U), (N, J)]
    cases: list[Any] = [(f, f, pair) for f in (operator.and_, operator.or_, operator.xor) for pair in pairs]
    cases += [(operator.invert, operator.invert, (x,)) for x in (T, N)]
    cases += [(lambda x: x & True, lambda x: x & True, (T,)), (lambda x: x | 6, lambda x: x | 6, (N,)), (operator.add, operator.or_, (T, U))]
    cases += [(f, f, (x, y)) for f in (operator.lt, operator.le, operator.gt, operator.ge, operator.eq, operator.ne) for x, y in ((N, J), (N, N))]
    cases += [(lambda x: x > 0.5, lambda x: x > 0.5, (A,)), (lambda x: x == 3, lambda x: x == 3, (N,)), (lambda x: x < 2.5, lambda x: x < 2.5, (N,))]
    for ours, numpys in ((comparing.logical_and, np.logical_and), (comparing.logical_or, np.logical_or), (comparing.logical_xor, np.logical_xor)):
        cases += [(ours, numpys, (T, U)), (ours, numpys, (N, T))]
    cases += [(comparing.logical_not, np.logical_not, (x,)) for x in (T, N)]
    cases += [(comparing.where, np.where, (T, A, C)), (lambda c, a: comparing.where(c, a, 0.5), lambda c, a: np.where(c, a, 0.5), (T, A))]
    cases += [(lambda c: comparing.where(c, 1.0, 0.5).double(), lambda c: np.where(c, 1.0, 0.5), (T,))]
    cases += [(lambda a, c: a.where(c, -1.0), lambda a, c: np.where(c, a, -1.0), (A, T)), (comparing.isclose, np.isclose, (A, A + 1e-7 * T))]
    compare(n, cases)


@pytest.mark.parametrize("n", COUNTS)
def test_matrix_products_equal_numpy(n: int) -> None:
    shapes = [((4, 6), (6, 5)), ((6,), (6, 5)), ((4, 6), (6,)), ((6,), (6,)), ((2, 4, 6), (2, 6, 3)), ((2, 4, 6), (6, 5))]
    shapes += [((4, 6), (3, 6, 5)), ((2, 1, 4, 3), (5, 3, 2)), ((2, 3, 6), (6,))]
    compare(n, [(fa.matmul, np.matmul, (random_values(*a), random_values(*b))) for a, b in shapes])
    three: list[Any] = [
        (fa.mm, np.matmul, (random_values(3, 4), random_values(4, 2))),
        (fa.bmm, np.matmul, (random_values(2, 3, 4), random_values(2, 4, 2))),
        (fa.mv, np.matmul, (random_values(3, 4), random_values(4))),
        (fa.outer, np.outer, (random_values(3), random_values(4))),
        (fa.dot, np.dot, (random_values(4), random_values(4))),
        (
            lambda x, a, b: fa.addmm(x, a, b, beta=0.5, alpha=2),
            lambda x, a, b: 0.5 * x + 2 * a @ b,
            (random_values(2), random_values(3, 4), random_values(4, 2)),
        ),
        (fa.baddbmm, lambda x, a, b: x + a @ b, (random_values(2, 3, 2), random_values(2, 3, 4), random_values(2, 4, 2))),
    ]
    compare(n, three)


def test_matrix_products_have_parallel_layouts() -> None:
    """The two products of the documents: data parallel, and model parallel."""

    def program(rank: int) -> Any:
        here = placement("cuda", [0, 1])

        def product(a: Any, b: Any) -> Any:
            return (ones(4, 5, placement=here, sbp=a) @ ones(5, 8, placement=here, sbp=b)).sbp

        return product(S(0), B), product(B, S(1)), product(S(1), S(0)), product(P, B)

    assert on_ranks(2, program) == [((S(0),), (S(1),), (P,), (P,))] * 2


@with_ranks(1)
def test_operands_are_promoted_to_a_common_type() -> None:
    def of(dtype: Any, *shape: int) -> Any:
        return ones(*shape, dtype=dtype)

    order = [bool_, uint8, int8, int16, int32, int64, float16, bfloat16, float32, float64]
    neither = {(uint8, int8): int16, (float16, bfloat16): float32}
    for i, a in enumerate(order):
        for b in order[i:]:
            both = neither.get((a, b), b)
            assert result_type(of(a, 2), of(b, 2)) is both and result_type(of(b, 2), of(a, 2)) is both
            assert (of(a, 2) * of(b, 2)).dtype is both and (of(b, 2) * of(a, 2)).dtype is both
    assert (of(int64, 2) + 0.5).dtype is float32 and (of(float16, 2) + 2).dtype is float16 and (of(float64, 2) * 0.5).dtype is float64
    assert (of(bool_, 2) + 1).dtype is int64 and (of(bool_, 2) + True).dtype is bool_ and (of(uint8, 2) * 2).dtype is uint8
    assert (of(float32, 2) * of(float64)).dtype is float32 and (of(int32, 2) * of(float64)).dtype is float64, "without axes"
    assert (of(int64, 2) / of(int64, 2)).dtype is float32 and (of(int64, 2) / 2).dtype is float32 and (2 / of(int64, 2)).dtype is float32
    assert (of(int32, 2) + np.float64(0.5)).dtype is float32 and (of(float32, 2) + np.ones(2)).dtype is float64
    assert (np.ones(2, np.float32) + of(float32, 2)).dtype is float32 and (np.float32(2) * of(float32, 2)).dtype is float32
    assert (of(bfloat16, 2) / 3).dtype is bfloat16 and (of(int8, 2) > 0.5).dtype is bool_


@with_ranks(1, 2)
def test_operands_that_do_not_match_raise(n: int) -> None:
    here = placement("cpu", range(n))
    x, local = ones(4, 6, placement=here, sbp=S(0)), ones(4, 6)
    for wrong, error, reason in (
        (lambda: x + np.ones((4, 6)), PlacementError, "NumPy array of shape .4, 6. cannot be combined with a global tensor"),
        (lambda: np.ones((4, 6)) + x, PlacementError, "NumPy array of shape .4, 6. cannot be combined with a global tensor"),
        (lambda: x + local, PlacementError, "the inputs are local and global tensors"),
        (lambda: x * ones(()), PlacementError, "the inputs are local and global tensors"),
        (lambda: x + ones(4, 6, placement=placement("cpu", [[*range(n)]]), sbp=[B, S(0)]), PlacementError, "different placements"),
        (lambda: fa.add(x, "1"), DtypeError, "got '1' of type str"),
        (
            lambda: x + ones(4, 5, placement=here, sbp=B),
            ShapeError,
            r"test_arithmetic.py:\d+.*float32\[4,6\] and float32\[4,5\] do not broadcast",
        ),
        (
            lambda: x @ x,
            ShapeError,
            r"matmul at test_arithmetic.py:\d+: the summed axis has size 6 in a float32\[4,6\], but 4 in b float32\[4,6\]",
        ),
        (lambda: fa.mm(x, ones(6)), ShapeError, "2 and 2 axes"),
        (lambda: fa.matmul(x, ones((), placement=here, sbp=B)), ShapeError, "at least one axis"),
        (lambda: x & 1, DtypeError, "integers or bool"),
        (lambda: ~x, DtypeError, "integers or bool"),
        (lambda: x.long() ** -1, DtypeError, "has no integer result"),
        (lambda: ones(2, dtype=uint8) + 300, DtypeError, "300 is out of range for uint8, 0 to 255"),
        (lambda: zeros(2, dtype=bool_) - ones(2, dtype=bool_), DtypeError, "bool"),
        (lambda: fa.div(x, 2, rounding_mode="up"), ArgumentError, "rounding_mode"),
    ):
        with pytest.raises(error, match=reason):
            wrong()
    with pytest.raises(TypeError):
        x + "1"
    with pytest.raises(TypeError):
        None @ x
    assert (x * np.array(2.0) + np.int64(1)).sum().item() == 72 and (x + np.array(2)).dtype is float32
    assert (x == None) is False and (x != None) is True  # noqa: E711 - what programs write


@with_ranks(1, 2)
def test_in_place_forms_keep_the_layout_and_type_of_the_left_side(n: int) -> None:
    here = placement("cpu", range(n))
    for how in (B, S(0), S(1), P):
        x = tensor(A, placement=here, sbp=how)
        array, same = x.array, x
        value = A.copy()
        y = tensor(C.astype(np.float32), placement=here, sbp=S(1))
        x += y
        value += C.astype(np.float32)
        for name, other in (("sub_", 0.5), ("mul_", 2), ("div_", 3.0), ("pow_", 3)):
            getattr(x, name)(other)
            value = getattr(operator, {"div": "truediv"}.get(name[:-1], name[:-1]))(value, other)
        x.floor_divide_(0.25)
        np.testing.assert_allclose(x.numpy(), value // 0.25, rtol=1e-12)
        assert x is same and x.array is array and x.sbp == (how,) and x.dtype is float64
        assert x.version == 6


@with_ranks(1)
def test_invalid_in_place_writes_raise() -> None:
    w = ones(2, 3, requires_grad=True)
    with pytest.raises(JobError, match="leaf"):
        w += 1
    with gradients.no_grad():
        w += 1
    assert w.requires_grad and w.is_leaf and w.tolist() == [[2.0] * 3] * 2
    x = ones(2, dtype=int64)
    with pytest.raises(DtypeError, match=r"add_ at .* cannot hold; write x = add\(x, ...\)"):
        x.add_(0.5)
    with pytest.raises(DtypeError, match=r"x \*\*= y at .* cannot hold; write x = x \*\* y"):
        x **= 0.5
    with pytest.raises(ShapeError, match="does not have the shape"):
        ones(3).add_(ones(2, 3))
    with pytest.raises(PlacementError, match="local and global"):
        ones(3).add_(ones(3, placement=placement("cpu", [0]), sbp=B))


@pytest.mark.parametrize("n", [1, 2])
def test_gradients_pass_through_in_place_writes(n: int) -> None:
    def program(rank: int) -> Any:
        here = placement("cpu", range(n))
        w, v = (tensor(a, placement=here, sbp=s).requires_grad_() for a, s in ((A, S(0)), (C, B)))
        x = w * 1
        x.mul_(v)  # x = w v
        x.add_(w)  # + w
        x /= v  # / v
        x.exp_()
        x.sum().backward()
        return w.grad.numpy(), v.grad.numpy(), w.grad.sbp

    for dw, dv, layout in on_ranks(n, program):
        e = np.exp(A + A / C)
        np.testing.assert_allclose(dw, e * (1 + 1 / C))
        np.testing.assert_allclose(dv, -e * A / C**2)
        assert layout == (S(0),)


@with_ranks(1)
def test_backward_raises_if_a_saved_value_was_written_to() -> None:
    w = full((3,), 2.0, requires_grad=True)
    x = w * 3
    y = x * x
    x.add_(1)
    with pytest.raises(JobError, match="overwritten"):
        y.sum().backward()
