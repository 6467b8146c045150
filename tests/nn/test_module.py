"""Modules: named parts, hooks, states, changes of layout, and errors."""

from __future__ import annotations

import copy
from collections import OrderedDict
from typing import Any

import numpy as np
import pytest
from ranks import on_ranks, with_ranks
from surroundings import lain, nn

from jobflow.core.errors import ArgumentError, CheckpointError, DtypeError, JobError, PlacementError, SbpError
from jobflow.core.layout import B, Layout, P, Placement, S
from jobflow.core.types import float16, float32, float64, int64
from jobflow.engine.placements import placement, sbp
from jobflow.functional.creation import ones, tensor, zeros
from jobflow.nn.modules.module import ModuleError
from jobflow.tensors.state import state


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(4, 6)
        self.norm = nn.BatchNorm1d(6)
        self.rest = nn.Sequential(nn.ReLU(), nn.Linear(6, 2, bias=False))
        self.register_buffer("scratch", zeros(3), persistent=False)
        self.scale = nn.Parameter(ones(2))

    def forward(self, x: Any) -> Any:
        return self.rest(self.norm(self.first(x))) * self.scale


NAMES = ["scale", "first.weight", "first.bias", "norm.weight", "norm.bias", "rest.1.weight"]
BUFFERS = ["norm.running_mean", "norm.running_var", "norm.num_batches_tracked"]


def test_parts_have_names() -> None:
    net = Net()
    assert [name for name, _ in net.named_parameters()] == NAMES
    assert [name for name, _ in net.named_buffers()] == ["scratch", *BUFFERS]
    assert sorted(net.state_dict()) == sorted([*NAMES, *BUFFERS])
    assert [name for name, _ in net.named_modules()] == ["", "first", "norm", "rest", "rest.0", "rest.1"]
    assert [name for name, _ in net.named_children()] == ["first", "norm", "rest"]
    assert [name for name, _ in net.named_parameters(recurse=False)] == ["scale"]
    assert len(list(net.modules())) == 6 and len(list(net.buffers())) == 4
    assert net.get_submodule("rest.1") is net.rest[1] and net.get_parameter("first.bias") is net.first.bias
    net.rest[1].weight = net.first.weight
    assert len(list(net.parameters())) == 5 and "rest.1.weight" in net.state_dict()
    del net.norm
    assert [name for name, _ in net.named_children()] == ["first", "rest"] and not hasattr(net, "norm")
    assert "first" in dir(net) and "scale" in dir(net)


def test_attributes_keep_their_kinds() -> None:
    net = Net()
    with pytest.raises(DtypeError, match=r"scale.*a parameter cannot become.*nn\.Parameter"):
        net.scale = ones(2)
    with pytest.raises(DtypeError, match=r"first.*cannot become int"):
        net.first = 3
    net.norm.running_mean = ones(6)
    assert net.norm.state_dict()["running_mean"].numpy().sum() == 6
    net.first.bias = None
    assert "first.bias" not in net.state_dict() and net(ones(3, 4)).shape == (3, 2)
    net.first = None
    assert net.first is None
    net.note = ones(2)
    assert "note" not in net.state_dict()
    with pytest.raises(ModuleError, match="use another name"):
        net.register_buffer("forward", ones(2))
    with pytest.raises(ModuleError, match="without dots"):
        net.add_module("a.b", nn.ReLU())
    with pytest.raises(AttributeError, match='did you mean "scale"'):
        _ = net.scales
    with pytest.raises(DtypeError, match="must be a leaf"):
        net.parameter = _computed()


def _computed() -> Any:
    w = nn.Parameter(ones(2))
    parameter = nn.Parameter(ones(2))
    parameter.node, parameter.index = (w * 2.0).node, 0
    return parameter


def test_modules_raise_before_init() -> None:
    class Hasty(nn.Module):
        def __init__(self) -> None:
            self.layer = nn.Linear(2, 2)

    class Late(nn.Module):
        def __init__(self) -> None:
            self.size = 3

    with pytest.raises(AttributeError, match=r"Hasty.*super\(\)\.__init__\(\)"):
        Hasty()
    with pytest.raises(AttributeError, match=r"Late.*super\(\)\.__init__\(\)"):
        Late()(1)
    with pytest.raises(AttributeError, match=r"super\(\)\.__init__\(\)"):
        list(Late().parameters())
    with pytest.raises(JobError, match="no forward"):
        nn.Module()(1)


def test_hooks_receive_and_replace_tensors() -> None:
    net, events = nn.Linear(2, 2), []
    before = net.register_forward_pre_hook(lambda module, inputs: (events.append("before"), inputs[0] * 0.0)[1])
    after = net.register_forward_hook(lambda module, inputs, output: events.append(float(inputs[0].sum())))
    assert np.allclose(net(ones(1, 2)).detach().numpy(), net.bias.detach().numpy()) and events == ["before", 0.0]
    before.remove()
    after.remove()
    changed = net.register_forward_hook(lambda module, inputs, output: output * 0.0)
    assert not net(ones(1, 2)).detach().numpy().any() and len(events) == 2
    changed.remove()
    named = net.register_forward_pre_hook(lambda module, inputs, kwargs: (inputs, {"input": kwargs["input"] * 0.0}), with_kwargs=True)
    net.register_forward_hook(lambda module, inputs, kwargs, output: events.append(sorted(kwargs)), with_kwargs=True)
    net.register_forward_hook(lambda module, inputs, output: events.append("first"), prepend=True)
    assert np.allclose(net(input=ones(1, 2)).detach().numpy(), net.bias.detach().numpy()) and events[2:] == ["first", ["input"]]
    named.remove()
    net.register_forward_pre_hook(lambda module, inputs, kwargs: 1, with_kwargs=True)
    with pytest.raises(ArgumentError, match=r"Linear at .*must return None or"):
        net(ones(1, 2))


def test_modes_and_types() -> None:
    net = Net()
    assert net.eval() is net and not net.norm.training and net.train().rest[0].training
    weight = net.first.weight
    net.double()
    assert net.first.weight is weight and weight.dtype is float64 and net.norm.num_batches_tracked.dtype is int64
    assert net.half().scale.dtype is float16 and net.to(float32).scale.dtype is float32 and net.to("cpu", float64).scale.dtype is float64
    assert net.to(ones(1)).scale.dtype is float32
    with pytest.raises(DtypeError, match="floating point types"):
        net.to(int64)
    net.requires_grad_(False)
    assert not any(p.requires_grad for p in net.parameters())
    net.requires_grad_()
    net(ones(3, 4)).sum().backward()
    assert net.scale.grad is not None
    net.zero_grad(set_to_none=False)
    assert not net.scale.grad.numpy().any()
    net.zero_grad()
    assert net.scale.grad is None
    order: list[str] = []
    net.apply(lambda module: order.append(type(module).__name__))
    assert order == ["Linear", "BatchNorm1d", "ReLU", "Linear", "Sequential", "Net"]


def test_repr() -> None:
    assert repr(nn.Linear(3, 4)) == "Linear(in_features=3, out_features=4, bias=True)"
    assert repr(nn.Sequential(nn.ReLU(), nn.Sequential(nn.Dropout(0.1)))) == (
        "Sequential(\n  (0): ReLU()\n  (1): Sequential(\n    (0): Dropout(p=0.1, inplace=False)\n  )\n)"
    )
    assert repr(nn.Conv2d(3, 8, 3, padding=1, bias=False)) == "Conv2d(3, 8, kernel_size=(3, 3), stride=(1, 1), padding=(1, 1), bias=False)"


def test_copies_share_no_parameters() -> None:
    net = Net()
    other = copy.deepcopy(net)
    other.first.weight.array[...] = 0
    assert net.first.weight.numpy().any() and isinstance(other.first.weight, nn.Parameter)
    other(ones(2, 4)).sum().backward()
    assert net.scale.grad is None and other.scale.grad is not None


def test_containers() -> None:
    a, b, c = nn.Linear(2, 3), nn.ReLU(), nn.Linear(3, 1)
    named = nn.Sequential(OrderedDict(a=a, b=b))
    assert named.a is a and named[-1] is b and list(named.state_dict()) == ["a.weight", "a.bias"]
    row = nn.Sequential(a, c).insert(1, b)
    assert list(row) == [a, b, c] and len(row[:2]) == 2 and row(ones(4, 2)).shape == (4, 1)
    del row[1]
    assert list(row) == [a, c] and list(row.state_dict()) == ["0.weight", "0.bias", "1.weight", "1.bias"]
    with pytest.raises(IndexError, match="2 elements"):
        _ = row[2]
    listed = nn.ModuleList([a]).append(c).extend([b])
    assert listed[1] is c and (listed + nn.ModuleList([a]))[-1] is a and listed.pop() is b and len(listed) == 2
    listed[0] = b
    assert listed[0] is b
    keyed = nn.ModuleDict({"x": a, "y": b})
    keyed["z"] = c
    assert list(keyed) == ["x", "y", "z"] and "z" in keyed and keyed.pop("x") is a and list(keyed.keys()) == ["y", "z"]
    parameters = nn.ParameterList([ones(2), nn.Parameter(ones(3))])
    assert len(list(parameters.parameters())) == 2 and parameters[-1].shape == (3,) and "(0): Parameter float32[2]" in repr(parameters)
    table = nn.ParameterDict({"u": ones(2)})
    table["v"] = ones(1)
    assert list(table.state_dict()) == ["u", "v"] and table.pop("u").requires_grad


# -------------------------------------------------------------------- states


def test_load_state_dict_copies_values() -> None:
    one, other = Net(), Net()
    one(ones(3, 4))
    assert repr(other.load_state_dict(one.state_dict())) == "<All keys matched successfully>"
    for (_, x), (_, y) in zip(one.state_dict().items(), other.state_dict().items(), strict=True):
        np.testing.assert_array_equal(x.numpy(), y.numpy())
    saved_state = one.state_dict()
    one.scale.array[...] = 7
    assert saved_state["scale"].numpy().tolist() == [7, 7] and not saved_state["scale"].requires_grad
    assert one.state_dict(keep_vars=True)["scale"] is one.scale
    assert list(one.first.state_dict(prefix="a.")) == ["a.weight", "a.bias"]


def test_a_state_that_does_not_fit_changes_nothing() -> None:
    net = Net()
    before = net.scale.numpy().copy()
    states = {**net.state_dict(), "scale": ones(2) * 9.0, "first.weight": ones(5, 4), "first.bias": ones(1), "nrom.bias": ones(6)}
    del states["norm.bias"]
    with pytest.raises(CheckpointError) as error:
        net.load_state_dict(states)
    for text in ("first.weight is float32[6,4], the state has float32[5,4]", "first.bias", "missing: norm.bias", 'did you mean "norm.bias"'):
        assert text in str(error.value)
    np.testing.assert_array_equal(net.scale.numpy(), before)
    states |= {"first.weight": ones(6, 4), "first.bias": ones(6)}
    assert tuple(net.load_state_dict(states, strict=False)) == (["norm.bias"], ["nrom.bias"])
    assert net.scale.numpy().tolist() == [9, 9]


def _layout(*split: Any) -> Layout:
    return Layout(Placement("cpu", (0, 1)), split)


def test_states_load_into_other_layouts() -> None:
    def program(rank: int) -> Any:
        here = placement("cpu", [0, 1])
        state().manual_seed(3)
        whole, split = nn.Linear(4, 6).to_global(here, sbp.broadcast), nn.Linear(4, 3).to_global(here, sbp.split(0))
        split.load_state_dict(whole.state_dict())
        assert split.weight.sbp == (S(0),) and split.state_dict()["weight"].is_global
        one = nn.Linear(4, 6).to_global(placement("cpu", [1]), sbp.broadcast)
        one.load_state_dict(split.state_dict())
        with pytest.raises(CheckpointError, match=r"weight is local.*to_local"):
            nn.Linear(4, 6).load_state_dict(whole.state_dict())
        with pytest.raises(CheckpointError, match=r"weight is global.*to_global"):
            whole.load_state_dict(nn.Linear(4, 6).state_dict())
        return whole.weight.numpy(), split.weight.numpy(), one.weight.numpy()

    for whole, split, one in on_ranks(2, program):
        np.testing.assert_array_equal(whole, split)
        np.testing.assert_array_equal(whole, one)


# -------------------------------------------------------------------- layouts


def test_modules_become_global() -> None:
    def program(rank: int) -> Any:
        here = placement("cpu", [0, 1])
        state().manual_seed(rank)
        net = Net()
        mine, weight = net.first.weight.numpy().copy(), net.first.weight
        assert net.to_global(here, sbp.broadcast) is net and net.first.weight is weight and weight.requires_grad
        assert all(x.sbp == (B,) for x in (*net.parameters(), *net.buffers()))
        copied = weight.numpy()
        net.to_global(sbp=sbp.split(0))
        assert weight.sbp == (S(0),) and weight.array.shape == (3, 4) and net.norm.num_batches_tracked.sbp == (B,)
        loss = net(lain(np.ones((4, 4), np.float32), _layout(S(0)))).sum()
        loss.backward()
        assert weight.grad.sbp == (S(0),) and net.to_local() is net and weight.is_local and weight.shape == (3, 4) and weight.grad.shape == (3, 4)
        net.to_global(here, sbp.split(0))
        assert weight.shape == (6, 4) and weight.grad.is_global
        return mine, copied, weight.numpy()

    (mine, copied, whole), (other, again, _) = on_ranks(2, program)
    np.testing.assert_array_equal(copied, mine)
    np.testing.assert_array_equal(again, mine)
    np.testing.assert_array_equal(whole, mine)
    assert (mine != other).any()


@with_ranks(2)
def test_errors_of_conversions_name_the_parameter() -> None:
    here = placement("cpu", [0, 1])
    with pytest.raises(SbpError, match=r"Linear\.to_global, bias: .*split"):
        nn.Linear(4, 6).to_global(here, sbp.split(1))
    with pytest.raises(JobError, match=r"Linear\.to_global, weight"):
        nn.Linear(4, 6).to_global(here)
    with pytest.raises(JobError, match="use to_global"):
        nn.Linear(4, 6).to_consistent(here, sbp.broadcast)
    with pytest.raises(PlacementError, match="to_global"):
        nn.Linear(4, 6)(lain(np.ones((2, 4), np.float32), _layout(B)))


def test_parameters_of_global_tensors_keep_their_layout() -> None:
    def program(rank: int) -> None:
        w = nn.Parameter(lain(np.ones((4, 2)), _layout(P)))
        assert w.sbp == (P,) and w.is_leaf and w.requires_grad
        (w * 2.0).sum().backward()
        assert w.grad.sbp == (P,) and w.grad.numpy().tolist() == [[2.0, 2.0]] * 4

    on_ranks(2, program)
    with pytest.raises(DtypeError, match="requires_grad=False"):
        nn.Parameter(tensor([1, 2]))
    with pytest.raises(JobError, match="list"):
        nn.Parameter([1.0])


def test_load_state_dict_with_assign_replaces_tensors() -> None:
    net = nn.Sequential(nn.Linear(2, 3), nn.BatchNorm1d(3))
    net[0].bias.requires_grad = False
    saved = {name: x.double() if x.dtype.is_float else x for name, x in nn.Sequential(nn.Linear(2, 3), nn.BatchNorm1d(3)).state_dict().items()}
    saved["0.weight"] = np.ones((3, 2))
    assert repr(net.load_state_dict(saved, assign=True)) == "<All keys matched successfully>"
    assert isinstance(net[0].weight, nn.Parameter) and net[0].weight.dtype is net[1].running_mean.dtype is float64
    assert [p.requires_grad for p in net[0].parameters()] == [True, False]
    saved["0.bias"][0] = 7.0
    assert net[0].bias[0].item() == 7.0  # the memory of the state
    net(ones(4, 2, dtype=float64)).sum().backward()
    before = net[0].weight
    with pytest.raises(DtypeError, match="gradients"):
        net.load_state_dict({"0.weight": np.ones((3, 2), np.int64), "0.bias": saved["0.bias"]}, strict=False, assign=True)
    assert net[0].weight is before
