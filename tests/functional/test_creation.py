"""Factories: values of NumPy in every layout, pieces by layout, random values independent of the layout, and refused arguments."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from ranks import on_ranks, with_ranks

from jobflow.core.errors import ArgumentError, ConfigError, DivergedError, DtypeError, JobError, RankError, SbpError, ShapeError
from jobflow.core.layout import B, P, S
from jobflow.core.types import bool_, float16, float32, float64, int32, int64, uint8
from jobflow.engine.placements import placement, sbp
from jobflow.functional import classes, creation, cuda, filling, sampling
from jobflow.functional.casting import get_default_dtype, set_default_dtype

FACTORIES: list[tuple[Any, Any]] = [
    (lambda **o: creation.zeros(5, 3, **o), np.zeros((5, 3))),
    (lambda **o: creation.ones((5, 3), **o), np.ones((5, 3))),
    (lambda **o: creation.full((5, 3), 2.5, **o), np.full((5, 3), 2.5)),
    (lambda **o: creation.empty(size=(5, 3), **o), np.zeros((5, 3))),
    (lambda **o: creation.arange(7, **o), np.arange(7)),
    (lambda **o: creation.arange(1, 4, 0.5, **o), np.arange(1, 4, 0.5)),
    (lambda **o: creation.arange(9, 0, -2, **o), np.arange(9, 0, -2)),
    (lambda **o: creation.linspace(0, 1, 5, **o), np.linspace(0, 1, 5)),
    (lambda **o: creation.logspace(0, 3, 4, **o), np.logspace(0, 3, 4)),
    (lambda **o: creation.eye(5, 3, **o), np.eye(5, 3)),
    (lambda **o: creation.tensor([[1, 2], [3, 4], [5, 6]], **o), np.array([[1, 2], [3, 4], [5, 6]])),
    (lambda **o: creation.tensor(np.arange(6.0).reshape(3, 2), **o), np.arange(6.0).reshape(3, 2)),
]


@with_ranks(1, 2, 4)
def test_factories_equal_numpy_in_every_layout(rank: int, n: int) -> None:
    here = placement("cpu", range(n))
    for make, value in FACTORIES:
        local = make()
        np.testing.assert_allclose(local.numpy(), value, rtol=1e-6)
        for how in (B, P, *(S(i) for i in range(value.ndim))):
            x = make(placement=here, sbp=how)
            assert x.sbp == (how,) and x.placement == here and x.dtype is local.dtype and x.shape == value.shape
            np.testing.assert_allclose(x.numpy(), value, rtol=1e-6, err_msg=str(how))
            piece = x.to_local().numpy()
            if how == P:
                np.testing.assert_allclose(piece, value if rank == 0 else 0 * value, rtol=1e-6)
            else:
                whole = x.layout.box(value.shape, rank).slices
                np.testing.assert_allclose(piece, value[whole], rtol=1e-6)


def test_factories_on_a_mesh_and_on_a_subset_of_ranks() -> None:
    def program(rank: int) -> Any:
        grid, some = placement("cpu", [[0, 1], [2, 3]]), placement("cpu", [3, 1])
        x = creation.arange(12, placement=grid, sbp=[S(0), B])
        y = creation.ones(3, 2, placement=some, sbp=S(0))
        z = sampling.randn(4, 6, placement=grid, sbp=[S(0), S(1)])
        return x.to_local().tolist(), y.to_local().shape, y.numpy().sum(), z.numpy(), sampling.randn(4, 6, generator=sampling.Generator()).numpy()

    for rank, (x, y, total, z, local) in enumerate(on_ranks(4, program)):
        assert x == [*range(6)] if rank < 2 else [*range(6, 12)]
        assert y == {3: (2, 2), 1: (1, 2)}.get(rank, (0, 0)) and total == 6
        np.testing.assert_array_equal(z, local)


@with_ranks(1)
def test_factories_have_default_types_and_shapes() -> None:
    for data, dtype in (
        ([1, 2], int64),
        ([1.5], float32),
        (True, bool_),
        (3, int64),
        (np.float64(2), float64),
        (np.ones(2, np.float16), float16),
        (np.arange(3, dtype=np.uint8), uint8),
        ([[1, 2.5]], float32),
    ):
        assert creation.tensor(data).dtype is dtype, data
    assert creation.tensor([1, 2], dtype=float32).tolist() == [1.0, 2.0] and creation.tensor([0.5, 2], dtype=np.int32).dtype is int32
    x = creation.tensor([1.0, 2.0])
    y = creation.tensor(x)
    y += 1
    assert x.tolist() == [1.0, 2.0] and creation.as_tensor(x) is x
    assert creation.tensor([x, y]).tolist() == [[1.0, 2.0], [2.0, 3.0]]
    array = np.ones(3, np.float32)
    for shared in (creation.from_numpy(array), creation.as_tensor(array)):
        shared += 1
    assert array.tolist() == [3.0] * 3
    assert creation.full((2,), 3).dtype is int64 and creation.full((2,), True).dtype is bool_ and creation.zeros(2, dtype=int32).dtype is int32
    assert creation.zeros(0, 3).shape == (0, 3) and creation.ones(()).shape == () and creation.zeros(creation.ones(2, 3).shape).shape == (2, 3)
    assert creation.arange(0).shape == (0,) and creation.arange(5, dtype=float32).dtype is float32
    assert creation.ones(2, requires_grad=True).requires_grad and creation.ones(2, requires_grad=True).is_leaf
    assert classes.Tensor(2, 3).shape == (2, 3) and classes.Tensor([1, 2]).dtype is float32 and classes.LongTensor([1, 2]).dtype is int64
    assert isinstance(x, classes.Tensor) and isinstance(x, classes.FloatTensor) and not isinstance(x, classes.LongTensor)
    assert not isinstance(array, classes.Tensor) and issubclass(type(x), classes.Tensor)
    moved = x.type(cuda.DoubleTensor)
    assert isinstance(moved, cuda.DoubleTensor) and moved.is_cuda and not isinstance(x, cuda.FloatTensor) and cuda.LongTensor([1]).is_cuda
    set_default_dtype(float64)
    assert creation.zeros(2).dtype is float64 and creation.tensor([0.5]).dtype is float64 and get_default_dtype() is float64


@with_ranks(1, 2)
def test_like_factories_copy_type_and_layout(n: int) -> None:
    here = placement("cpu", range(n))
    for how in (B, S(0), S(1), P):
        x = creation.tensor(np.ones((3, 5)), placement=here, sbp=how, requires_grad=True)
        for y, value in (
            (creation.zeros_like(x), 0),
            (creation.ones_like(x), 1),
            (creation.full_like(x, 7), 7),
            (x.new_zeros(3, 5), 0),
            (x.new_ones((3, 5)), 1),
            (x.new_full((3, 5), 2), 2),
            (x.new_tensor([[4.0] * 5] * 3), 4),
        ):
            assert y.dtype is float64 and y.placement == here and not y.requires_grad
            assert y.sbp in ([(how,), (B,)] if how == P else [(how,)])
            np.testing.assert_array_equal(y.numpy(), np.full((3, 5), value))
        assert creation.zeros_like(x, dtype=int32).dtype is int32 and creation.ones_like(x, placement=here, sbp=S(0)).sbp == (S(0),)
        drawn = sampling.randn_like(x)
        assert drawn.sbp == ((B,) if how == P else (how,)) and drawn.dtype is float64
        assert sampling.randint_like(x, 3).numpy().max() < 3 and sampling.rand_like(x).numpy().min() >= 0
    assert creation.zeros_like(creation.ones(2, dtype=bool_)).dtype is bool_


DRAWS: list[Any] = [
    lambda **o: sampling.randn(6, 5, **o),
    lambda **o: sampling.rand((6, 5), dtype=float64, **o),
    lambda **o: sampling.randint(3, 9, (6, 5), **o),
    lambda **o: sampling.randint(9, (6, 5), **o),
    lambda **o: sampling.randperm(11, **o),
    lambda **o: sampling.normal(1.0, 2.0, size=(6, 5), **o),
]


def draws(n: int, how: Any) -> list[Any]:
    def program(rank: int) -> Any:
        sampling.manual_seed(7)
        where = {} if how is None else {"placement": placement("cpu", range(n)), "sbp": how}
        return [draw(**where).numpy() for draw in (*DRAWS, *DRAWS)]

    first, *others = on_ranks(n, program)
    for other in others:
        for a, b in zip(first, other, strict=True):
            np.testing.assert_array_equal(a, b)
    return first


def test_random_values_do_not_depend_on_layout_or_number_of_ranks() -> None:
    local = draws(1, None)
    assert all((a != b).any() for a, b in zip(local[: len(DRAWS)], local[len(DRAWS) :], strict=True)), "every draw is another one"
    assert sorted(local[4].tolist()) == [*range(11)] and set(np.unique(local[2])) <= {*range(3, 9)} and local[2].dtype == np.int64
    for n, how in ((1, B), (2, B), (2, S(0)), (3, S(0))):
        for a, b in zip(local, draws(n, how), strict=True):
            np.testing.assert_array_equal(a, b, err_msg=f"{n} {how}")


@with_ranks(1)
def test_random_values_have_their_distribution() -> None:
    sampling.manual_seed(3)
    x = sampling.normal(1.0, 2.0, (4000,)).numpy()
    assert abs(x.mean() - 1) < 0.1 and abs(x.std() - 2) < 0.1
    y = sampling.bernoulli(creation.full((4000,), 0.3))
    assert set(y.numpy().tolist()) == {0.0, 1.0} and abs(float(y.mean()) - 0.3) < 0.03
    weights = creation.tensor([0.0, 1.0, 3.0])
    z = sampling.multinomial(weights, 2000, replacement=True).numpy()
    assert z.dtype == np.int64 and (z == 0).sum() == 0 and abs((z == 2).mean() - 0.75) < 0.04
    order = sampling.multinomial(creation.ones(5, 8), 8).numpy()
    assert (np.sort(order, axis=1) == np.arange(8)).all() and (order != np.arange(8)).any()
    w = creation.zeros(3000)
    assert abs(float(w.uniform_(-1, 3).mean()) - 1) < 0.1 and float(w.min()) >= -1 and float(w.max()) < 3
    assert abs(float(w.normal_(5, 0.5).std()) - 0.5) < 0.05
    means = sampling.normal(creation.full((3000,), 4.0), 0.5)
    assert abs(float(means.mean()) - 4) < 0.1


@with_ranks(1)
def test_generators_restore_their_state() -> None:
    sampling.manual_seed(11)
    a = sampling.randn(4)
    state = sampling.get_rng_state()
    b = sampling.randn(4)
    sampling.set_rng_state(state)
    assert (sampling.randn(4) == b).all() and sampling.initial_seed() == 11
    sampling.manual_seed(11)
    assert (sampling.randn(4) == a).all()
    assert sampling.default_generator.initial_seed() == 11
    g = sampling.Generator().manual_seed(11)
    assert (sampling.randn(4, generator=g) == a).all() and g.initial_seed() == 11
    saved = g.get_state()
    c = sampling.rand(3, generator=g)
    g.set_state(saved)
    assert (sampling.rand(3, generator=g) == c).all()
    assert g.seed() == g.initial_seed() and sampling.seed() == sampling.initial_seed() != 11
    with pytest.raises(ArgumentError, match="the state must be an int64"):
        sampling.set_rng_state(saved)


def test_local_tensors_differ_between_ranks_until_a_seed_is_set() -> None:
    def program(rank: int) -> Any:
        before = sampling.randn(3).tolist()
        together = sampling.randn(3, placement=placement("cpu", [0, 1]), sbp=B).tolist()
        return before, together, sampling.seed(), sampling.randn(3).tolist()

    (a, b), (c, d), (e, f), (g, h) = zip(*on_ranks(2, program), strict=True)
    assert a != b and c == d and e == f and g == h and a == c, "the first rank draws locally what all draw together"


@with_ranks(1, 2)
def test_invalid_arguments_of_factories_raise(n: int) -> None:
    here = placement("cpu", range(n))
    for wrong, error, reason in (
        (lambda: creation.zeros(2, placement=here), JobError, "both placement= and sbp="),
        (lambda: creation.zeros(2, sbp=B), JobError, "both placement= and sbp="),
        (lambda: creation.zeros(2, placement=here, sbp=B, device="cpu"), ConfigError, "device=cpu .* placement=jobflow.placement"),
        (lambda: creation.zeros(2, placement=here, sbp=[B, B]), SbpError, "2 entries"),
        (lambda: creation.zeros(2, placement=here, sbp=S(1)), SbpError, "axes 0 to 0"),
        (lambda: creation.zeros(2, placement=here, sbp="split"), SbpError, "sbp must consist of"),
        (lambda: sampling.randn(2, placement=here, sbp=P), SbpError, "cannot be partial"),
        (lambda: sampling.randperm(4, placement=here, sbp=P), SbpError, "cannot be partial"),
        (lambda: creation.zeros(2, requires_grad=True, dtype=int64), DtypeError, "needs a floating point type"),
        (lambda: creation.zeros(2, dtype="complex"), DtypeError, "element type such as"),
        (lambda: creation.zeros(2.5), ShapeError, "must consist of integers"),
        (lambda: creation.zeros(2, size=(3,)), ShapeError, "twice"),
        (lambda: creation.zeros(-1), ShapeError, "integers >= 0"),
        (lambda: creation.zeros(2**62), ShapeError, r"zeros at .*: a tensor of 1.718e\+10 GiB"),
        (lambda: creation.arange(10**15), ShapeError, "arange at .*: a tensor of .* GiB"),
        (lambda: sampling.rand(2**40, 2**40), ShapeError, "rand at .*: a tensor of .* GiB"),
        (lambda: creation.ones(3).repeat(2**60), ShapeError, "repeat at .*: a tensor of .* GiB"),
        (lambda: creation.ones(1).expand(2**62), ShapeError, "expand at .*: a tensor of .* GiB"),
        (lambda: creation.zeros(2, shape_of=3), TypeError, "unknown keyword 'shape_of'"),
        (lambda: creation.tensor(["a"]), DtypeError, "not an element type"),
        (lambda: creation.tensor(np.ones(2, np.uint16)), DtypeError, "uint16"),
        (lambda: creation.full((2,), 300, dtype=uint8), DtypeError, "out of range for uint8"),
        (lambda: creation.arange(0, 5, -1), ArgumentError, "does not lead from"),
        (lambda: sampling.randint(3, 3, (2,)), ArgumentError, "must be less than"),
        (lambda: sampling.rand(2, dtype=int64), DtypeError, "must be a floating point type"),
        (lambda: sampling.multinomial(creation.ones(2), 3), ArgumentError, "3 indices"),
        (lambda: creation.from_numpy([1]), DtypeError, "NumPy array"),
    ):
        with pytest.raises(error, match=reason):
            wrong()


def test_data_that_differ_between_ranks_raise_on_every_rank() -> None:
    observed: list[str] = []

    def program(rank: int) -> None:
        here = placement("cpu", [0, 1])
        try:
            creation.tensor([1.0, 2.0 + rank], placement=here, sbp=sbp.split(0))
        except DivergedError as error:
            observed.append(str(error))
            raise

    with pytest.raises((RankError, DivergedError)):
        on_ranks(2, program)
    assert len(observed) == 2
    for text in observed:
        assert "[1., 2.]" in text and "[1., 3.]" in text and "test_creation.py" in text


def test_factories_that_differ_between_ranks_raise_at_the_next_exchange() -> None:
    def program(rank: int) -> None:
        x = creation.full((4,), rank + 1.0, placement=placement("cpu", [0, 1]), sbp=sbp.split(0))
        x.numpy()

    with pytest.raises((RankError, DivergedError), match="Constant"):
        on_ranks(2, program)


@with_ranks(1, 2)
def test_filling_writes_in_place_and_raises_for_mismatches(n: int) -> None:
    here = placement("cpu", range(n))
    for how in (B, S(0), P):
        x = creation.ones(4, 3, placement=here, sbp=how)
        assert x.zero_().numpy().sum() == 0 and x.fill_(2).numpy().sum() == 24 and x.sbp == (how,)
        y = creation.arange(3, placement=here, sbp=S(0))
        np.testing.assert_array_equal(x.copy_(y).numpy(), np.tile(np.arange(3.0), (4, 1)))
        np.testing.assert_array_equal(x.copy_(np.arange(12).reshape(4, 3)).numpy(), np.arange(12.0).reshape(4, 3))
        assert x.sbp == (how,) and x.dtype is float32
    x = creation.ones(2, 2)
    assert x.copy_(np.eye(2)).tolist() == np.eye(2).tolist() and filling.copy_(x, 3).tolist() == [[3.0, 3.0]] * 2
    with pytest.raises(ValueError, match=r"local tensor .* into a global"):
        creation.ones(4, 3, placement=here, sbp=B).copy_(creation.ones(4, 3))
    with pytest.raises(ShapeError, match="does not broadcast to"):
        x.copy_(creation.ones(3))
