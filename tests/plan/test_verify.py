"""Checks of plans: overwritten memory, and ranks with incompatible schedules."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import replace

import pytest

from jobflow.core.errors import PlanError
from jobflow.core.layout import SUM
from jobflow.core.types import TensorType, contiguous_strides, float32
from jobflow.ops.update import Assign
from jobflow.plan.plan import Announced, Collective, Completion, Compute, Plan, Slot, Transfer, Wait
from jobflow.plan.plan_checks import Access, PlanSummary, compare_plans, compare_schedules, verify_memory, verify_order, verify_writes
from jobflow.plan.plan_text import instruction_text, plan_text


def slot(offset: int, *shape: int, buffer: str = "arena", strides: tuple[int, ...] | None = None) -> Slot:
    return Slot(buffer, offset, TensorType(shape, float32), contiguous_strides(shape, 4) if strides is None else strides)


A, B_, C = 1, 2, 3  # values
SOUND = [
    Access("arguments", (), ((A, slot(0, 16)),)),
    Access("one", ((A, slot(0, 16)),), ((B_, slot(64, 16)),)),
    Access("two", ((A, slot(0, 16)), (B_, slot(64, 16))), ((C, slot(128, 16)),)),
    Access("outputs", ((C, slot(128, 16)),), ()),
]

# -------------------------------------------------------------------- memory


def test_verify_accepts_a_valid_plan() -> None:
    verify_memory(SOUND)


def test_verify_raises_for_uninitialized_memory() -> None:
    with pytest.raises(PlanError, match=r"^two reads arena@64:float32\[16\], which no instruction has written$"):
        verify_memory([SOUND[0], SOUND[2]])


def test_verify_raises_for_a_slot_over_a_live_one() -> None:
    moved = replace(SOUND[1], writes=((B_, slot(32, 16)),))
    with pytest.raises(PlanError, match=r"^two reads arena@0:float32\[16\], but another value has overwritten it$"):
        verify_memory([SOUND[0], moved, *SOUND[2:]])


def test_verify_raises_for_an_overlap_of_one_byte() -> None:
    moved = replace(SOUND[2], writes=((C, slot(76, 1)),))
    with pytest.raises(PlanError, match="later reads"):
        verify_memory([*SOUND[:2], moved, Access("later", ((B_, slot(64, 16)),), ())])


def test_verify_raises_for_instructions_in_another_order() -> None:
    with pytest.raises(PlanError, match="two reads arena@64"):
        verify_memory([SOUND[0], SOUND[2], SOUND[1]])


def test_verify_raises_for_memory_reused_too_early() -> None:
    reuse = Access("reuse", (), ((C, slot(0, 4)),))
    with pytest.raises(PlanError, match=r"two reads arena@0:float32\[16\], but"):
        verify_memory([*SOUND[:2], reuse, *SOUND[2:]])


def test_verify_accepts_reused_memory() -> None:
    verify_memory([*SOUND[:3], Access("reuse", (), ((B_, slot(0, 32)),)), Access("end", ((B_, slot(64, 4)),), ())])


def test_buffers_do_not_overlap() -> None:
    verify_memory([SOUND[0], Access("elsewhere", (), ((C, slot(0, 16, buffer="shared")),)), SOUND[1]])


def test_a_strided_slot_covers_its_whole_span() -> None:
    column = slot(0, 4, strides=(16,))
    assert column.stop == 52
    verify_memory([Access("arguments", (), ((A, slot(0, 4, 4)),)), Access("column", ((A, column),), ())])


def test_empty_slots_are_always_valid() -> None:
    verify_memory([Access("nothing", ((A, slot(0, 0, 3)),), ((B_, slot(0, 3, 0)),))])


# -------------------------------------------------------------------- order


def reduce(order: int, name: str = "gradients") -> Collective:
    return Collective("all_reduce", (0, 1), slot(0, 4), slot(64, 4), (4,), (), SUM, order, name)


def announced(*ranks: tuple[int, ...], what: str = "all_reduce") -> tuple[Announced, ...]:
    return tuple(Announced(what, f"x{i}", own, 16) for i, own in enumerate(ranks))


def end(sends: bool, order: int, peer: int = 0) -> tuple[Transfer, Wait]:
    """Return the post and the wait of one side of a transfer."""
    about = (peer, sends, slot(64 * order, 4), order, "x")
    return Transfer(*about), Wait(*about)


def plan(*body: Collective | Completion | Transfer | Wait | Compute, schedule: tuple[Announced, ...]) -> Plan:
    return Plan("job", 1, {"arena": 128}, (), body, (), (), schedule=schedule)


def test_verify_accepts_the_order_of_the_schedule() -> None:
    send, wait = end(True, 2)
    verify_order(plan(reduce(0), send, wait, schedule=announced((0, 1), (0, 2), (1, 0))))
    verify_order(plan(schedule=announced((0, 2))))


def test_communication_in_another_order_raises() -> None:
    message = r"^job job, rank 1: communication 0 is gradients \(number 1\), but the schedule requires all_reduce x0 \[0, 1\] 16 bytes \(number 0\)$"
    with pytest.raises(PlanError, match=message):
        verify_order(plan(reduce(1), reduce(0), schedule=announced((0, 1), (0, 1))))


def test_missing_communication_raises() -> None:
    with pytest.raises(PlanError, match=r"communication 1 is nothing, but the schedule requires all_reduce x1 \[1, 2\]"):
        verify_order(plan(reduce(0), schedule=announced((0, 1), (1, 2))))


def test_communication_of_other_ranks_raises() -> None:
    with pytest.raises(PlanError, match=r"communication 0 is gradients \(number 0\), but the schedule requires nothing more"):
        verify_order(plan(reduce(0), schedule=announced((0, 2))))


STARTED = replace(reduce(0), concurrent=True)
DONE = Completion(STARTED.input, STARTED.output, 0, "gradients")


@pytest.mark.parametrize(
    ("body", "text"),
    [
        ((STARTED, DONE), None),
        ((STARTED,), r"collective gradients \(number 0\) has no wait for its completion"),
        ((DONE, STARTED), r"wait for gradients \(number 0\) precedes the collective"),
        ((STARTED, DONE, DONE), r"wait for gradients \(number 0\) precedes the collective, is repeated"),
        ((STARTED, replace(DONE, output=slot(128, 4))), "has other slots"),
        ((reduce(0), DONE), "precedes the collective"),
    ],
)
def test_concurrent_collectives_have_one_wait_each(body: tuple[Collective | Completion, ...], text: str | None) -> None:
    with nullcontext() if text is None else pytest.raises(PlanError, match=text):
        verify_order(plan(*body, schedule=announced((0, 1))))


BOTH_WAYS = announced((1, 0), (0, 1), (1, 0), (0, 1), what="move")
(SEND0, SENT0), (RECEIVE1, RECEIVED1), (SEND2, SENT2), (RECEIVE3, RECEIVED3) = (end(n % 2 == 0, n) for n in range(4))


def test_transfers_may_overlap() -> None:
    verify_order(plan(RECEIVE1, RECEIVE3, SEND0, SEND2, RECEIVED1, SENT0, RECEIVED3, SENT2, schedule=BOTH_WAYS))
    verify_order(plan(SEND0, SENT0, RECEIVE1, RECEIVED1, SEND2, SENT2, RECEIVE3, RECEIVED3, schedule=BOTH_WAYS))


@pytest.mark.parametrize(
    ("body", "text"),
    [
        ((SEND0, RECEIVE1, RECEIVED1, RECEIVE3, RECEIVED3, SEND2, SENT0, SENT2), r"send x \(number 2\) is posted after the wait for number 3"),
        (
            (SEND0, SEND2, SENT2, RECEIVE1, RECEIVED1, SENT0, RECEIVE3, RECEIVED3),
            r"send x \(number 2\) has a wait before earlier communication; the last completed one is number -1",
        ),
        (
            (SEND0, SEND2, RECEIVE1, RECEIVE3, RECEIVED3, RECEIVED1, SENT0, SENT2),
            r"communication 0 is x \(number 3\), but the schedule requires move x1",
        ),
        (
            (SEND2, SEND0, RECEIVE1, RECEIVE3, RECEIVED1, RECEIVED3, SENT0, SENT2),
            r"send x \(number 0\) is posted twice, .* after a later transfer with rank 0",
        ),
        (
            (SEND0, SEND2, RECEIVE3, RECEIVE1, RECEIVED1, RECEIVED3, SENT0, SENT2),
            r"receive x \(number 1\) is posted twice, .* after a later transfer",
        ),
        ((SEND0, SENT0, SEND2, RECEIVED1, RECEIVE1, RECEIVE3, RECEIVED3, SENT2), r"receive x \(number 1\) has a wait before its post"),
        ((SEND0, SEND2, RECEIVE1, RECEIVE3, RECEIVED1, RECEIVED3, SENT0), r"send x \(number 2\) has no wait"),
        ((SEND0, SENT0, RECEIVE1, RECEIVED1, RECEIVE3, RECEIVED3), r"communication 1 is x \(number 3\), but the schedule requires move x2 \[1, 0\]"),
    ],
)
def test_transfers_that_can_deadlock_raise(body: tuple[Transfer | Wait, ...], text: str) -> None:
    with pytest.raises(PlanError, match=text):
        verify_order(plan(*body, schedule=BOTH_WAYS))


def test_different_schedules_raise() -> None:
    x, y = announced((0, 1), (0, 1))
    compare_schedules("job", [(x, y), (x, y)])
    with pytest.raises(
        PlanError, match=r"^job job: the schedules of ranks 0 and 2 differ at communication 1: all_reduce x1 \[0, 1\] 16 bytes and all_gather x1"
    ):
        compare_schedules("job", [(x, y), (x, y), (x, replace(y, what="all_gather"))])


def test_a_shorter_schedule_raises() -> None:
    x, y = announced((0, 1), (0, 1))
    with pytest.raises(PlanError, match=r"the schedules of ranks 0 and 1 differ at communication 1: all_reduce x1 .* and nothing"):
        compare_schedules("job", [(x, y), (x,)])
    with pytest.raises(PlanError, match=r"the schedules of ranks 0 and 1 differ at communication 1: nothing and all_reduce x1"):
        compare_schedules("job", [(x,), (x, y)])


STORED = (("w", "w", 0, 100), ("v", "w", 128, 200))


def writing(*each: Sequence[tuple[int, int]]) -> list[PlanSummary]:
    """Return the plan summaries of ranks that write these ranges."""
    return [PlanSummary((), STORED, tuple(("w", *span, f"u{i}") for i, span in enumerate(spans)), ()) for spans in each]


@pytest.mark.parametrize(
    "each", [[[], []], [[(0, 100)], [(128, 200)]], [[(64, 100), (0, 64)], []], [[(0, 64)], [(64, 100)]], [[(0, 160)], [(160, 200)]]], ids=str
)
def test_shared_variables_are_written_whole_or_not_at_all(each: list[list[tuple[int, int]]]) -> None:
    compare_plans("job", writing(*each))


@pytest.mark.parametrize(
    ("each", "text"),
    [
        ([[(0, 64)], [(60, 100)]], "u0 on rank 0 and u0 on rank 1 both write byte 60"),
        ([[(0, 100), (10, 20)], [(30, 40)]], "u0 on rank 0 and u0 on rank 1 both write byte 30"),
        ([[(0, 64)], [(68, 100)]], "w is updated, but no rank writes bytes 64 to 68"),
        ([[(0, 160)], [(168, 200)]], "v is updated, but no rank writes bytes 160 to 168"),
        ([[(0, 100)], [(128, 192)]], "v is updated, but no rank writes bytes 192 to 200"),
        ([[], [(8, 100)]], "w is updated, but no rank writes bytes 0 to 8"),
    ],
    ids=str,
)
def test_double_and_missing_writes_raise(each: list[list[tuple[int, int]]], text: str) -> None:
    with pytest.raises(PlanError, match=f"^job job: {text}"):
        compare_plans("job", writing(*each))


def test_reads_concurrent_to_writes_raise() -> None:
    first, second = writing([(0, 64)], [(64, 100)])
    compare_plans("job", [first, replace(second, reads=(("w", 64, 100, "r"), ("w", 128, 200, "r")))])
    with pytest.raises(PlanError, match=r"^job job: r on rank 1 reads bytes of the buffer of w that rank 0 writes at the same time$"):
        compare_plans("job", [first, replace(second, reads=(("w", 60, 70, "r"),))])


def test_a_write_of_a_variable_in_the_body_raises() -> None:
    variable = slot(0, 4, buffer="common/0:parameter")
    update = Compute(Assign(), (variable, slot(0, 4)), (variable,), "update")
    sound = Plan("job", 0, {}, (), (), (update,), (), {"w": variable})
    verify_writes(sound)
    with pytest.raises(PlanError, match=r"^job job, rank 0: update .*writes a variable in the body instead of the epilogue$"):
        verify_writes(replace(sound, body=(update,), epilogue=()))


# -------------------------------------------------------------------- text


def test_instructions_print_as_expected() -> None:
    assert instruction_text(reduce(4)) == "arena@64:float32[4] = all_reduce sum [0, 1] #4(arena@0:float32[4])  # gradients, <jobflow>:0"
    gather = replace(reduce(5), kind="all_gather", name="x")
    assert instruction_text(gather) == "arena@64:float32[4] = all_gather [0, 1] #5(arena@0:float32[4])  # x, <jobflow>:0"
    assert instruction_text(Transfer(3, True, slot(0, 4), 6, "x")) == "send to 3 #6: arena@0:float32[4]  # x, <jobflow>:0"
    assert instruction_text(Transfer(3, False, slot(0, 4), 6, "x")) == "receive from 3 #6: arena@0:float32[4]  # x, <jobflow>:0"
    assert instruction_text(Wait(3, False, slot(0, 4), 6, "x")) == "wait until received from 3 #6: arena@0:float32[4]  # x, <jobflow>:0"


def test_slots_print_strides_that_are_not_contiguous() -> None:
    assert [str(slot(0, 2, 3)), str(slot(8, 2, 3, strides=(4, 8)))] == ["arena@0:float32[2,3]", "arena@8:float32[2,3]/(4, 8)"]


def test_plans_print_one_line_per_instruction() -> None:
    printed = plan_text(plan(reduce(0), schedule=announced((0, 1))))
    assert printed.splitlines()[0] == "job job, rank 1: arena 128 bytes"
    assert printed.count("\n") == 3
