"""Restoration of host counters after runs on a GPU whose assertions failed: the host reads the results after it has started later runs."""

from __future__ import annotations

from collections import deque
from copy import deepcopy
from typing import Any

from jobflow.nn.graph.built import Built

#: largest number of runs whose assertions the host has not read, and the run that reads them
UNREAD = 4


class StepCounters:
    """The random counters and learning rate schedules of a graph, which each run moves, with their states before the last runs."""

    def __init__(self, built: Built) -> None:
        self._built = built
        self._before: deque[list[tuple[dict[str, Any], list[float]]]] = deque(maxlen=UNREAD)

    def step(self, late: bool) -> None:
        """Step the schedules after a run; with `late`, the run may still turn out to have changed nothing."""
        if late:
            self._before.append([_state(schedule) for schedule in self._built.schedules])
        for schedule in self._built.schedules:
            schedule.step()

    def undo(self, count: int) -> None:
        """Restore the state from before the last `count` runs, which have returned, and which changed no variable."""
        for draw in self._built.draws:
            draw.generator.draws -= count
        states = [self._before.pop() for _ in range(min(count, len(self._before)))]
        for schedule, (state, rates) in zip(self._built.schedules, states[-1] if states else (), strict=False):
            schedule.load_state_dict(state)
            for group, rate in zip(schedule.optimizer.param_groups, rates, strict=True):
                group["lr"] = rate


def _state(schedule: Any) -> tuple[dict[str, Any], list[float]]:
    """Return the state of a learning rate schedule, and the rates of its optimizer."""
    return deepcopy(schedule.state_dict()), [group["lr"] for group in schedule.optimizer.param_groups]
