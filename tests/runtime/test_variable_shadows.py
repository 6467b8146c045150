"""The record of half-precision copies of variables that are current."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from traced import first

from jobflow.core.layout import B
from jobflow.core.types import DType, TensorType, bfloat16, float16, float32
from jobflow.graph.ir import Variable
from jobflow.kernels.target import CPU
from jobflow.ops.source import Constant
from jobflow.ops.update import Assign
from jobflow.plan.plan import Compute, Plan, Slot
from jobflow.plan.storage import shadow_slot
from jobflow.runtime.comm.solo_communicator import SoloCommunicator
from jobflow.runtime.device.numpy_device import CpuDevice
from jobflow.runtime.variable_buffers import State, window
from jobflow.runtime.variable_shadows import Shadows

TYPE = TensorType((3,), float32)
NAMES = ("a", "b", "c")
WRITES: dict[str, Callable[[State], Any]] = {
    "write": lambda state: state.write("b", np.ones(3, np.float32)),
    "array": lambda state: state.array("b").fill(2),
    "attach": lambda state: state.attach(state.variables["b"], state.buffers["state/0:parameter"], 64),
    "forget": lambda state: state.forget(["b"]),
}


class Gpu(CpuDevice):
    """A device with variables that have shadows."""

    tag = "gpu"


@pytest.fixture
def state() -> State:
    state = State(0, device := Gpu(), SoloCommunicator(device))
    state.initialize(state.declare([Variable(name, TYPE, Constant((3,), float32, 7.0), first(1), (B,)) for name in NAMES]))
    return state


def shadows_of(state: State, *names: str, updated: tuple[str, ...] = NAMES, half: DType = float16) -> Shadows:
    updates = tuple(Compute(Assign(), (slot, slot), (slot,), "update") for slot in map(state.slots.__getitem__, updated))
    plan = Plan("job", 0, {}, (), (), updates, (), dict(state.slots), shadows={name: shadow_slot(state.slots[name], half) for name in names})
    return Shadows(plan, state, state.device, CPU)


def current(state: State) -> set[str]:
    return set().union(*state.current_shadows.values())


@pytest.mark.parametrize("write", WRITES.values(), ids=WRITES)
def test_access_to_a_variable_makes_its_shadow_out_of_date(state: State, write: Callable[[State], Any]) -> None:
    shadows = shadows_of(state, "a", "b")
    shadows.begin()
    assert current(state) == set(), "a run that fails leaves no current shadow"
    shadows.complete()
    state.read("b")
    assert current(state) == {"a", "b"}
    write(state)
    assert current(state) == {"a"}


def test_run_casts_only_what_is_out_of_date(state: State) -> None:
    shadows = shadows_of(state, "a", "b")
    (buffer,) = shadows.buffers.values()
    shadows.begin()
    shadows.complete()
    state.write("b", np.arange(3, dtype=np.float32))
    state._view("a")[...] = 1  # unnoticed
    shadows.begin()
    values = [window(np, buffer, shadow_slot(state.slots[name], float16)).tolist() for name in ("a", "b")]
    assert values == [[7, 7, 7], [0, 1, 2]]


def test_other_programs_make_shadows_of_their_variables_out_of_date(state: State) -> None:
    shadows = shadows_of(state, "a", "b", "c")
    shadows.begin()
    shadows.complete()
    shadows_of(state, updated=("b",)).begin()
    assert current(state) == {"a", "c"}


def test_program_in_another_half_precision_type_makes_shadows_out_of_date(state: State) -> None:
    first, second = shadows_of(state, "a", "b"), shadows_of(state, "a", updated=("a",), half=bfloat16)
    for shadows in (first, second):
        shadows.begin()
        shadows.complete()
    assert list(map(sorted, state.current_shadows.values())) == [["b"], ["a"]]


def test_shadow_of_a_part_has_half_of_its_offset_and_strides() -> None:
    part = Slot("state/0:parameter", 128, TensorType((2, 3), float32), (24, 4))
    assert shadow_slot(part, float16) == Slot("shadow/float16/state/0:parameter", 64, TensorType((2, 3), float16), (12, 2))
