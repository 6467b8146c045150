"""Pipeline schedules as rows: textbook bubbles, bounded activations, and invalid rows."""

from __future__ import annotations

import itertools
import random

import pytest

from jobflow.compiler.front.schedule import SCHEDULES, Form, Task, diagram, in_flight, rows_of, simulate, validate
from jobflow.core.errors import PlanError


def straight(p: int, m: int, v: int = 1) -> Form:
    return Form(tuple(s % p for s in range(p * v)), m)


@pytest.mark.parametrize("name", SCHEDULES)
def test_schedules_are_valid_and_have_the_textbook_bubble(name: str) -> None:
    for p, v, m in itertools.product(range(1, 6), range(1, 4), range(1, 13)):
        form = straight(p, m, v)
        rows = rows_of(form, name)
        bubble = simulate(rows, form.needs).bubble
        if v == 1:
            assert bubble == pytest.approx((p - 1) / (m + p - 1)), (p, m)
        elif name == "interleaved" and m % p == 0:
            assert bubble == pytest.approx((p - 1) / (v * m + p - 1)), (p, v, m)


def test_1f1b_stores_one_activation_per_remaining_stage() -> None:
    for p, m in itertools.product(range(1, 7), range(1, 13)):
        assert [in_flight(row) for row in rows_of(straight(p, m), "1f1b")] == [min(p - s, m) for s in range(p)]
        assert [in_flight(row) for row in rows_of(straight(p, m), "gpipe")] == [m] * p


def test_1f1b_alternates_after_the_warm_up() -> None:
    row = rows_of(straight(3, 5), "1f1b")[0]
    assert "".join(task.direction[0] + str(task.microbatch) for task in row) == "f0f1f2b0f3b1f4b2b3b4"


def test_schedules_are_valid_for_any_assignment_of_stages() -> None:
    """Let groups run several stages, in any order, with and without a backward pass."""
    chance = random.Random(5)
    for _ in range(300):
        groups = [0]
        for _ in range(chance.randint(0, 6)):
            groups.append(chance.randint(0, max(groups) + 1))
        form = Form(tuple(groups), chance.randint(1, 7), trains=chance.random() < 0.8)
        for name in SCHEDULES:
            assert sum(map(len, rows_of(form, name))) == len(form.tasks())


def test_longer_backward_passes_keep_the_bubble_share() -> None:
    form = straight(4, 8)
    for name in ("gpipe", "1f1b"):
        simulation = simulate(rows_of(form, name), form.needs, lambda task: 2.0 if task.direction == "backward" else 1.0)
        assert simulation.length == 3 * (8 + 4 - 1)
        assert simulation.bubble == pytest.approx(3 / 11)


F, B = (lambda s, i: Task("forward", s, i)), (lambda s, i: Task("backward", s, i))


@pytest.mark.parametrize(
    ("rows", "text"),
    [
        ([(F(0, 0), B(0, 0)), (F(1, 0),)], r"group 1: .* the backward of microbatch 0 in stage 1 is 0; it must be 1"),
        ([(F(0, 0), F(0, 0), B(0, 0)), (F(1, 0), B(1, 0))], r"group 0: .* the forward of microbatch 0 in stage 0 is 2; it must be 1"),
        ([(F(0, 0), B(0, 0), F(1, 0)), (F(1, 0), B(1, 0))], r"group 0: .* the forward of microbatch 0 in stage 1 is 1; it must be 0"),
        ([(F(0, 0), B(0, 0)), (B(1, 0), F(1, 0))], r"deadlocks: no group can begin backward .* stage 0 or backward .* stage 1"),
    ],
)
def test_validate_raises_for_wrong_rows(rows: list[tuple[Task, ...]], text: str) -> None:
    with pytest.raises(PlanError, match=text):
        validate(straight(2, 1), rows)


def test_validate_raises_if_a_group_stores_too_many_activations() -> None:
    form = straight(2, 3)
    with pytest.raises(PlanError, match="makes group 0 store 3 activations, but the limit is 2; begin"):
        validate(form, rows_of(form, "gpipe"), SCHEDULES["1f1b"].limit)


def test_diagram_prints_rows_over_time() -> None:
    form = straight(2, 3)
    rows = rows_of(form, "1f1b")
    assert diagram(rows, simulate(rows, form.needs), ["stage 0", "stage 1"]).splitlines() == [
        "stage 0  F0 F1 .  B0 F2 B1 .  B2",
        "stage 1  .  F0 B0 F1 B1 F2 B2 .",
        "bubble 25.0 %",
    ]
    several = straight(2, 1, 2)
    rows = rows_of(several, "interleaved")
    slow = simulate(rows, several.needs, lambda task: 2.0 if task.direction == "backward" else 1.0)
    assert diagram(rows, slow).splitlines() == [
        "group 0  F0a .   F0b .   .   .   B0b -   .   .   B0a -",
        "group 1  .   F0a .   F0b B0b -   .   .   B0a -   .   .",
        "bubble 50.0 %",
    ]
