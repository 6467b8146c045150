"""Devices and layouts of tensors, their values, copies and text."""

from __future__ import annotations

import copy
import itertools
import pickle
from typing import Any

import numpy as np
import pytest
from ranks import on_ranks, with_ranks

from jobflow.core import notices
from jobflow.core.errors import ArgumentError, ConfigError, DtypeError, JobError, PlacementError, SbpError, ShapeError
from jobflow.core.layout import B, P, S
from jobflow.core.types import dtype_named, float32, float64, int64
from jobflow.engine.placements import placement, sbp
from jobflow.functional import devices, gradients
from jobflow.functional import global_tensors as moving
from jobflow.functional.creation import arange, ones, tensor, zeros
from jobflow.functional.sampling import rand

VALUE = np.random.default_rng(4).normal(size=(5, 4))


@with_ranks(1, 2, 3)
def test_every_layout_converts_to_every_other(rank: int, n: int) -> None:
    here, first = placement("cpu", range(n)), placement("cpu", [0])
    hows = (B, S(0), S(1), P)
    for a, b in itertools.product(hows, hows):
        x = tensor(VALUE, placement=here, sbp=a)
        y = x.to_global(sbp=b)
        assert y.sbp == (b,) and (y is x) == (a == b)
        np.testing.assert_allclose(y.numpy(), VALUE, rtol=1e-12)
        z = y.to_global(placement=first, sbp=a)
        assert z.placement == first and z.to_local().shape == ((5, 4) if rank == 0 else (0, 0))
        np.testing.assert_allclose(z.numpy(), VALUE, rtol=1e-12)
        if a == B and b == P and n > 1:
            assert (y.to_local().numpy() != 0).any() == (rank == 0), "the first rank keeps the value"


@pytest.mark.parametrize("name", ["float16", "bfloat16", "uint8", "int8", "int16", "int32", "bool"])
@with_ranks(2)
def test_every_layout_of_small_numbers(name: str) -> None:
    here, dtype = placement("cpu", [0, 1]), dtype_named(name)
    value = (np.arange(20).reshape(5, 4) % 7).astype(dtype.numpy)
    hows = [B, S(0), S(1), *([] if name == "bool" else [P])]
    for a, b in itertools.product(hows, hows):
        x = tensor(value, placement=here, sbp=a).to_global(sbp=b)
        assert x.dtype is dtype and x.numpy().dtype == dtype.numpy
        np.testing.assert_array_equal(x.numpy().astype(np.float64), value.astype(np.float64))
        if name != "bool":
            assert float((x + x).double().sum()) == 2 * value.astype(np.float64).sum()


def test_numpy_of_a_global_tensor_is_a_copy() -> None:
    def program(rank: int) -> Any:
        x = ones(4, placement=placement("cpu", [0, 1]), sbp=B)
        x.numpy()[:] = rank
        return x.tolist()

    assert on_ranks(2, program) == [[1.0] * 4] * 2


@with_ranks(2)
def test_memory_is_shared_or_not() -> None:
    here = placement("cpu", [0, 1])
    x = ones(2, 3)
    y, z = x.to_global(placement=here, sbp=S(0)), x.to_global(placement=here, sbp=S(0), copy=True)
    x.fill_(5)
    assert y.numpy().sum() == 60 and z.numpy().sum() == 12
    y.to_local().zero_()
    assert x.sum().item() == 0 and y.to_local(copy=True).fill_(1) is not None and y.numpy().sum() == 0
    assert y.to_global() is y and y.to_global(copy=True) is not y


@with_ranks(1, 2)
def test_conversions_to_python_and_numpy(n: int) -> None:
    here = placement("cpu", range(n))
    x = tensor(VALUE, placement=here, sbp=S(0))
    assert x.tolist() == VALUE.tolist() and len(x) == 5 and x.shape == (5, 4) and x.size(0) == 5 and x.dim() == x.ndimension() == 2
    assert x.numel() == x.nelement() == 20 and x.element_size() == 8 and repr(x.shape) == "jobflow.Size([5, 4])"
    np.testing.assert_array_equal(np.asarray(x), VALUE)
    np.testing.assert_array_equal(np.asarray(x, np.float32), VALUE.astype(np.float32))
    np.testing.assert_allclose(np.sum(np.array(x)), VALUE.sum())
    one = tensor(3.7, placement=here, sbp=P)
    assert one.item() == pytest.approx(3.7) and float(one) == pytest.approx(3.7) and int(one) == 3 and bool(one) and f"{one:.1f}" == "3.7"
    assert [*range(tensor(3, placement=here, sbp=B))] == [0, 1, 2] and [10, 20, 30][tensor([2], placement=here, sbp=S(0))] == 30
    assert 3 in arange(5, placement=here, sbp=S(0)) and 7 not in arange(5)
    w = ones(2, requires_grad=True)
    assert w.numpy().tolist() == [1.0, 1.0]
    for wrong, error, reason in (
        (lambda: x.item(), ShapeError, "20 elements, not one"),
        (lambda: bool(x), ShapeError, "all.. or any"),
        (lambda: float(x), ShapeError, "not one"),
        (lambda: len(one), ShapeError, "no axes"),
        (lambda: range(one), DtypeError, "must have an integer type"),
    ):
        with pytest.raises(error, match=reason):
            wrong()


@with_ranks(1, 2)
def test_copies(n: int) -> None:
    here = placement("cpu", range(n))
    for x in (tensor(VALUE, placement=here, sbp=S(0), requires_grad=True), tensor(2.5), tensor(VALUE).t()):
        for y in (copy.deepcopy(x), pickle.loads(pickle.dumps(x)), copy.deepcopy([x])[0]):
            assert y.layout == x.layout and y.dtype is x.dtype and y.requires_grad == x.requires_grad and y.shape == x.shape
            assert bool((y == x).all()) and not np.shares_memory(y.array, x.array)
    w = ones(3, requires_grad=True)
    (w * 2).sum().backward()
    assert copy.deepcopy(w).grad.tolist() == [2.0] * 3
    for wrong in (lambda: copy.deepcopy(w * 2), lambda: pickle.dumps(w * 2)):
        with pytest.raises(JobError, match="detach"):
            wrong()


@with_ranks(1)
def test_memory_of_local_tensors() -> None:
    x = tensor(VALUE)
    turned = x.t()
    assert x.is_contiguous() and not turned.is_contiguous() and turned.contiguous().is_contiguous() and x.contiguous() is x
    assert x.nbytes == 160 and x.itemsize == 8 and x.storage_offset() == 0 and x[2:][1].storage_offset() == 12 and x.pin_memory() is x
    with pytest.raises(JobError, match="to_global"):
        x.to_consistent()
    assert x.stride() == (4, 1) and turned.stride(0) == 1
    w = ones(2, requires_grad=True)
    w.data.add_(1)
    assert w.tolist() == [2.0, 2.0] and w.is_leaf and not w.data.requires_grad
    w.data = zeros(3)
    assert w.shape == (3,) and w.requires_grad
    with pytest.raises(JobError, match="a global tensor has no"):
        ones(2, placement=placement("cpu", [0]), sbp=B).stride()


@pytest.fixture
def quiet(capsys: pytest.CaptureFixture[str]) -> Any:
    notices.forget()
    yield
    output_text = capsys.readouterr().err
    assert [line for line in output_text.splitlines() if "there is no GPU" not in line] == []


@with_ranks(1, 2)
def test_devices(rank: int, n: int, quiet: None) -> None:
    here = placement("cpu", range(n))
    x = tensor(VALUE)
    y = x.to("cuda")
    assert x.device == devices.device("cpu") and repr(x.device) == "device(type='cpu')" and str(y.device) == f"cuda:{rank}"
    assert y.is_cuda and not x.is_cuda and (y * 2).is_cuda and not y.cpu().is_cuda and x.cpu() is x and y.cuda() is y
    y.zero_()
    assert x.tolist() == VALUE.tolist(), "another memory"
    assert f"device='cuda:{rank}'" in repr(y) and "device" not in repr(x) and ones(2, device="cuda:1").device.index == 1
    z = x.to_global(placement=here, sbp=B)
    on = z.to("cuda")
    assert on.placement == placement("cuda", range(n)) and on.cpu().placement == here and z.to("cpu") is z and on.is_cuda
    assert on.to_local().device == devices.device("cuda", rank)
    for wrong, error, reason in (
        (lambda: x.placement, JobError, "only global tensors have 'placement'.*'device'"),
        (lambda: z.to("cuda:1"), PlacementError, "a global tensor cannot move to"),
        (lambda: x.to("gpu"), DtypeError, "element type such as"),
        (lambda: ones(2, device="gpu"), PlacementError, "not a device"),
        (lambda: devices.device("cuda:x"), PlacementError, "not a device"),
        (lambda: devices.device("cuda:1", 1), PlacementError, "not a device"),
        (lambda: devices.device("cpu", "0"), PlacementError, "not a device"),
        (lambda: devices.device(x.device, 1.5), PlacementError, "not a device"),
        (lambda: z.to(device="cpu", placement=here), ConfigError, "one or the other"),
        (lambda: z.to(colour=3), ArgumentError, "colour"),
    ):
        with pytest.raises(error, match=reason):
            wrong()


@with_ranks(1, 2)
def test_to(n: int) -> None:
    here = placement("cpu", range(n))
    x = tensor(VALUE)
    assert x.to(float32).dtype is float32 and x.to("cpu", float32).dtype is float32 and x.to(dtype=int64).dtype is int64 and x.to(float64) is x
    assert x.to(x, copy=True) is not x and x.to(ones(2, dtype=int64)).dtype is int64
    y = x.to_global(placement=here, sbp=S(0))
    assert y.to(sbp=S(1)).sbp == (S(1),) and y.to(ones(2, placement=here, sbp=B)).sbp == (B,)
    assert y.to(float32, sbp=B).dtype is float32 and x.to(placement=here, sbp=B).is_global
    w = ones(3, placement=here, sbp=S(0), requires_grad=True)
    w.to(float64).to("cuda").to(sbp=B).sum().backward()
    assert w.grad.dtype is float32 and w.grad.tolist() == [1.0] * 3 and w.grad.sbp == (S(0),)


@with_ranks(1, 2)
def test_to_global_raises_for_invalid_arguments(n: int) -> None:
    here = placement("cpu", range(n))
    x, local = ones(4, 6, placement=here, sbp=B), ones(4, 6)
    for wrong, error, reason in (
        (lambda: local.to_global(), JobError, "placement="),
        (lambda: local.to_global(placement=here), JobError, "both placement= and sbp="),
        (lambda: local.to_global(placement=[0], sbp=B), JobError, "must be a jobflow.placement"),
        (lambda: x.to_global(sbp=[B, B]), SbpError, "2 entries"),
        (lambda: x.to_global(sbp=S(2)), SbpError, "axes 0 to 1"),
        (lambda: local.to_local(), JobError, "already local"),
        (lambda: local.sbp, JobError, "only global tensors have 'sbp'"),
    ):
        with pytest.raises(error, match=reason):
            wrong()
    assert moving.local_to_global(local, here, B).is_global and moving.global_to_global(x, sbp=S(0)).sbp == (S(0),)


def test_gradients_of_redistributions() -> None:
    def program(rank: int) -> Any:
        here = placement("cpu", [0, 1])
        x = tensor(VALUE, placement=here, sbp=S(0), requires_grad=True)
        observed: list[Any] = []
        y = x.to_global(sbp=B, grad_sbp=P)
        y.register_hook(lambda g: observed.append(g.sbp))
        (y * tensor(VALUE, placement=here, sbp=S(1))).sum().backward()
        np.testing.assert_allclose(x.grad.numpy(), VALUE)
        piece = ones(2, requires_grad=True)
        whole = piece.to_global(placement=here, sbp=S(0))
        (whole * arange(4, placement=here, sbp=B)).sum().backward()
        z = ones(3, placement=here, sbp=B, requires_grad=True)
        (z.to_local() * (rank + 1)).sum().backward()
        return x.grad.sbp, piece.grad.tolist(), z.grad.tolist()

    (a, first, summed), (b, second, again) = on_ranks(2, program)
    assert a == b == (S(0),) and first == [0.0, 1.0] and second == [2.0, 3.0] and summed == again == [3.0] * 3


def test_tensors_print_values_and_layout() -> None:
    def program(rank: int) -> Any:
        here = placement("cuda", [0, 1])
        x = tensor([[0.25, -1.5], [2.0, 3.0]], placement=here, sbp=sbp.split(0))
        y = (tensor([1.0, 2.0], requires_grad=True) * 2).to_global(placement=placement("cpu", [[0, 1]]), sbp=[B, B])
        return (
            repr(x),
            repr(x.to_local()),
            repr(y),
            str(ones(2, requires_grad=True)),
            repr(tensor([1e-5, 2.0])),
            repr(tensor([True])),
            repr(tensor(7)),
        )

    for rank, (whole, piece, output, leaf, wide, truth, number) in enumerate(on_ranks(2, program)):
        assert whole == (
            "tensor([[ 0.2500, -1.5000],\n        [ 2.0000,  3.0000]],\n"
            '       placement=jobflow.placement(type="cuda", ranks=[0, 1]),\n       sbp=(jobflow.sbp.split(dim=0),), dtype=jobflow.float32)'
        )
        assert piece == f"tensor([[{' 0.2500, -1.5000' if rank == 0 else '2., 3.'}]], device='cuda:{rank}', dtype=jobflow.float32)"
        assert output.endswith("sbp=(jobflow.sbp.broadcast, jobflow.sbp.broadcast),\n       dtype=jobflow.float32, grad_fn=<to_globalBackward>)")
        assert leaf == "tensor([1., 1.], dtype=jobflow.float32, requires_grad=True)"
        assert wide == "tensor([1.0000e-05, 2.0000e+00], dtype=jobflow.float32)"
        assert truth == "tensor([True], dtype=jobflow.bool)" and number == "tensor(7, dtype=jobflow.int64)"


@with_ranks(1)
def test_large_tensors_are_printed_without_their_middle() -> None:
    x = rand(40, 50)
    assert (
        repr(x).count("...") == 7 and repr(x).count("\n") == 7 and repr(arange(2000)).startswith("tensor([   0,    1,    2, ..., 1997, 1998, 1999]")
    )
    with gradients.no_grad():
        assert repr(zeros(0, 3)) == "tensor([], dtype=jobflow.float32)"
