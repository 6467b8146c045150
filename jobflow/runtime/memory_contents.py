"""The largest values and variables of a program as text, for messages about memory."""

from __future__ import annotations

from collections.abc import Mapping

from jobflow.core.tables import TextTable
from jobflow.plan.footprint import largest_values
from jobflow.plan.plan import Plan, Slot

#: number of values that a message lists
COUNT = 10
MIB = 1 << 20


def largest_values_text(plan: Plan) -> str:
    """Return a table of the largest values in use at the peak of a plan: MiB, type, and the instruction with the user's line."""
    rows = [(f"{value.nbytes / MIB:.2f}", value.type, value.writer) for value in largest_values(plan, COUNT)]
    return f"largest values at the peak, in MiB\n{TextTable((), rows, right=(0,))}" if rows else ""


def largest_variables_text(slots: Mapping[str, Slot]) -> str:
    """Return a table of the largest variables: MiB, type and name."""
    largest = sorted(slots.items(), key=lambda each: -each[1].type.nbytes)[:COUNT]
    rows = [(f"{slot.type.nbytes / MIB:.2f}", slot.type, name) for name, slot in largest]
    return f"largest variables, in MiB\n{TextTable((), rows, right=(0,))}" if rows else ""
