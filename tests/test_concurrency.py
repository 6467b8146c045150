"""Work in a second thread while a block runs."""

from __future__ import annotations

import threading

import pytest

from jobflow.core import scope
from jobflow.core.errors import JobError, PlanError
from jobflow.runtime.concurrency import concurrently


def test_work_and_block_can_wait_for_each_other() -> None:
    first, second = threading.Event(), threading.Event()
    with concurrently(lambda: (first.set(), second.wait(60), None)[-1]):
        assert first.wait(60)
        second.set()


def test_errors_of_the_work_are_raised_at_the_end_of_the_block() -> None:
    calls = []

    def work() -> None:
        raise JobError("no first value")

    with pytest.raises(JobError, match="no first value"), concurrently(work):
        calls.append("the block")
    assert calls == ["the block"]


def test_errors_of_the_block_come_first_and_wait_for_the_work() -> None:
    done, go = [], threading.Event()
    with pytest.raises(PlanError), concurrently(lambda: (go.wait(60), done.append(1), None)[-1]):
        go.set()
        raise PlanError("no plan")
    assert done == [1]


def test_work_runs_in_the_scope_of_the_block() -> None:
    stages = []
    with scope.using(stage=3), concurrently(lambda: stages.append(scope.current().stage)):
        pass
    assert stages == [3]
