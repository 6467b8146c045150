"""Variables of a rank: their layout in buffers, their initial values, and their shards."""

from __future__ import annotations

from typing import Any

import numpy as np
from traced import first, on

from jobflow.core.layout import B, Placement, S, Sbp
from jobflow.core.types import DType, TensorType, float32, float64
from jobflow.graph.ir import Variable
from jobflow.ops.random_tensors import RandomNormal
from jobflow.ops.source import Arange, Constant
from jobflow.plan.plan import ALIGNMENT
from jobflow.plan.storage import place_variables
from jobflow.runtime.comm.solo_communicator import SoloCommunicator
from jobflow.runtime.device.numpy_device import CpuDevice
from jobflow.runtime.variable_buffers import State


def declared(name: str, *shape: int, sbp: Sbp = B, dtype: DType = float32, placement: Placement | None = None, group: str = "parameter") -> Variable:
    return Variable(name, TensorType(shape, dtype), Constant(shape, dtype, 7.0), placement or first(2), (sbp,), group=group)


def state(*variables: Variable, rank: int = 0) -> State:
    created = State(rank, device := CpuDevice(), SoloCommunicator(device))
    created.initialize(created.declare(variables))
    return created


def test_variables_of_a_group_are_contiguous() -> None:
    slots = state(declared("a", 3), declared("b", 20), declared("c", 1)).slots
    assert [(slot.buffer, slot.offset) for slot in slots.values()] == [
        ("state/0:parameter", 0),
        ("state/0:parameter", 64),
        ("state/0:parameter", 192),
    ]


def test_groups_and_element_types_have_separate_buffers() -> None:
    slots = state(declared("a", 3), declared("b", 3, dtype=float64), declared("c", 3, group="momentum"), declared("d", 3)).slots
    assert {name: slot.buffer for name, slot in slots.items()} == {
        "a": "state/0:parameter", "b": "state/1:parameter", "c": "state/2:momentum", "d": "state/0:parameter",
    }  # fmt: skip
    assert slots["d"].offset == 64


def test_later_declarations_do_not_change_earlier_ones() -> None:
    created = state(declared("a", 3))
    created.write("a", np.arange(3))
    created.initialize(created.declare([declared("a", 3), declared("b", 3)]))
    np.testing.assert_array_equal(created.read("a"), [0, 1, 2])
    assert created.slots["b"].buffer == "state/1:parameter"


def test_a_rank_stores_its_shard() -> None:
    variable = declared("w", 5, 2, sbp=S(0))
    assert [state(variable, rank=rank).array("w").shape for rank in (0, 1)] == [(3, 2), (2, 2)]
    assert state(declared("w", 5, placement=on(1))).slots == {}


def test_shards_may_be_empty() -> None:
    created = state(declared("w", 1, sbp=S(0)), declared("v", 4), rank=1)
    assert created.read("w").shape == (0,)
    assert created.slots["v"].offset == ALIGNMENT
    np.testing.assert_array_equal(created.read("v"), np.full(4, 7))


def test_initial_values_do_not_depend_on_the_layout() -> None:
    def whole(sbp: Any, n: int, initializer: Any) -> Any:
        variable = Variable("w", TensorType((7, 3), float64), initializer, first(n), (sbp,))
        return variable.layout.assemble([state(variable, rank=rank).read("w") for rank in range(n)], variable.type)

    drawn = RandomNormal((7, 3), float64, "w")
    for sbp in (B, S(0), S(1)):
        np.testing.assert_array_equal(whole(sbp, 3, drawn), whole(B, 1, drawn))


def test_an_initializer_runs_again() -> None:
    variable = Variable("w", TensorType((4,), float32), Arange((4,), float32, 1.0, 2.0), first(2), (S(0),))
    created = state(variable, rank=1)
    created.write("w", np.zeros(2))
    created.initialize(["w"])
    np.testing.assert_array_equal(created.read("w"), [5, 7])


def test_reading_copies_and_writing_overwrites() -> None:
    created = state(declared("w", 3))
    before = created.read("w")
    created.write("w", np.arange(3.0))
    np.testing.assert_array_equal(before, [7, 7, 7])
    np.testing.assert_array_equal(created.array("w"), [0, 1, 2])


def test_explained_storage_equals_real_storage() -> None:
    variables = [declared("a", 3), declared("b", 5, 2, sbp=S(0)), declared("c", 3, dtype=float64, group="scalar")]
    for rank in (0, 1):
        slots, sizes = place_variables(variables, rank)
        created = state(*variables, rank=rank)
        assert (slots, sizes) == (created.slots, {name: buffer.size for name, buffer in created.buffers.items()})
