"""Memory of a plan by use: small plans by hand, and the plan of a real job."""

from __future__ import annotations

from pathlib import Path

import pytest

from jobflow import scope
from jobflow.core.layout import Reduction, whole_box
from jobflow.core.types import TensorType, contiguous_strides, float32
from jobflow.ops.elementwise import Add
from jobflow.plan.footprint import footprint, footprint_text, largest_values
from jobflow.plan.plan import Collective, Compute, Feed, Instruction, Plan, Slot
from jobflow.tools.explain import laid_out, load_job


def slot(offset: int, n: int, buffer: str = "arena") -> Slot:
    return Slot(buffer, offset, TensorType((n,), float32), contiguous_strides((n,), 4))


def add(name: str, a: Slot, b: Slot, out: Slot, phase: str = "forward") -> Compute:
    return Compute(Add(), (a, b), (out,), name, phase=phase)  # type: ignore[arg-type]


def plan(*body: Instruction, fetch: Slot, arena: int = 4096, variables: dict[str, Slot] | None = None) -> Plan:
    feeds = (Feed("x", slot(0, 16), whole_box((16,))),)
    return Plan("job", 0, {"arena": arena, "shared": 0}, feeds, body, (), ((0, fetch),), variables or {})


def test_values_live_from_their_write_to_their_last_read() -> None:
    x, y, z = slot(0, 16), slot(64, 16), slot(128, 16)
    result = footprint(plan(add("first", x, x, y), add("second", y, y, z), add("third", z, z, x), fetch=x))
    assert result.needed == 2 * 64  # x and y, y and z, z and the new x
    assert result.peak.startswith("first")
    assert result.allocated == 4096


def test_an_in_place_output_needs_no_memory() -> None:
    x = slot(0, 16)
    assert footprint(plan(add("first", x, x, x), add("second", x, x, x), fetch=x)).needed == 64


def test_unread_values_live_during_their_write() -> None:
    x, y = slot(0, 16), slot(64, 32)
    result = footprint(plan(add("first", x, x, y), add("second", x, x, x), fetch=x))
    assert (result.needed, result.peak.split()[0]) == (64 + 128, "first")


def test_largest_values_are_those_in_use_at_the_peak() -> None:
    x, y, z, w = slot(0, 16), slot(64, 32), slot(192, 64), slot(448, 4)
    job = plan(add("first", x, x, y), add("second", y, x, z), add("third", z, z, w), add("fourth", z, w, z), fetch=z)
    values = [(value.nbytes, value.writer) for value in largest_values(job, 10)]
    assert values == [(256, "second"), (128, "first"), (64, "arguments")] and sum(n for n, _ in values) == footprint(job).needed
    assert [value.type for value in largest_values(job, 1)] == [z.type]


def test_bytes_that_are_written_in_place_count_once() -> None:
    x, y = slot(0, 16), slot(64, 32)
    job = plan(add("first", x, x, y), add("second", y, x, y), add("third", y, y, x), fetch=x)
    assert [(value.nbytes, value.writer) for value in largest_values(job, 10)] == [(128, "first"), (64, "arguments")]


def test_each_byte_counts_for_the_phase_that_wrote_it() -> None:
    x, y, z = slot(0, 16), slot(64, 16), slot(128, 32)
    weights = {"w": slot(0, 8, "state/0:parameter"), "w-m": slot(0, 8, "state/1:m")}
    body = [add("forward", x, x, y), add("backward", x, y, z, "backward"), add("end", x, y, x), add("last", z, x, x)]
    at_peak = footprint(plan(*body, fetch=x, variables=weights)).at_peak
    assert at_peak == {
        "variables": 32,
        "optimizer state": 32,
        "activations": 128,
        "gradients": 128,
        "communication": 0,
        "update": 0,
        "staging": 0,
        "scratch": 0,
    }


def test_received_values_count_for_communication() -> None:
    x, y = slot(0, 16), slot(64, 64)
    gather = Collective("all_gather", (0, 1, 2, 3), x, y, (16,) * 4, (), Reduction.SUM, 0, "gathered")
    result = footprint(plan(gather, fetch=y))
    assert (result.at_peak["communication"], result.at_peak["activations"], result.peak.split()[0]) == (256, 64, "gathered")


def test_table_has_a_line_per_rank() -> None:
    x = slot(0, 16)
    result = footprint(plan(add("first", x, x, x), fetch=x))
    lines = footprint_text({0: result, 1: result}).splitlines()
    assert [line.split()[0] for line in lines] == ["rank", "0", "1", "MiB"]
    assert lines[0].split()[-2:] == ["fullest", "at"]


@pytest.mark.parametrize("devices", [1, 2])
def test_memory_of_a_real_job(devices: int) -> None:
    with scope.using(root=scope.Root()):
        result = laid_out(load_job(str(Path(__file__).parents[2] / "examples" / "hybrid_mlp.py") + ":train_job"), devices)
        plan = result.plan(0)
    memory = footprint(plan)
    assert memory.at_peak["variables"] == sum(slot.type.nbytes for slot in plan.variables.values())
    # each device has a private and a shared buffer, whose peaks are at different times
    assert (0.9 if devices == 1 else 0.6) * memory.allocated <= memory.needed <= memory.allocated
