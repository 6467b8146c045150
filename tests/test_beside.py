"""Work in a thread beside other work."""

from __future__ import annotations

import threading

import pytest

from jobflow.core import scope
from jobflow.core.beside import beside
from jobflow.core.errors import JobError, PlanError


def test_both_are_done_and_each_may_wait_for_the_other() -> None:
    first, second = threading.Event(), threading.Event()
    with beside(lambda: (first.set(), second.wait(60), None)[-1]):
        assert first.wait(60)
        second.set()


def test_what_the_work_raises_is_raised_where_the_block_ends() -> None:
    seen = []

    def work() -> None:
        raise JobError("no first value")

    with pytest.raises(JobError, match="no first value"), beside(work):
        seen.append("the block")
    assert seen == ["the block"]


def test_what_the_block_raises_comes_first_and_the_work_is_done_by_then() -> None:
    done, go = [], threading.Event()
    with pytest.raises(PlanError), beside(lambda: (go.wait(60), done.append(1), None)[-1]):
        go.set()
        raise PlanError("no plan")
    assert done == [1]


def test_the_work_is_done_in_the_scope_of_the_block() -> None:
    seen = []
    with scope.using(stage=3), beside(lambda: seen.append(scope.current().stage)):
        pass
    assert seen == [3]
