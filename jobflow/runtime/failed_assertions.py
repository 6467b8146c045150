"""Failed runtime assertions of a run, and the error that all ranks raise together."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

from jobflow.core.errors import JobflowError, SourceLine
from jobflow.ops.runtime_assertions import RuntimeAssertion

if TYPE_CHECKING:
    from jobflow.plan.plan import Compute, Instruction


class FailedAssertion(NamedTuple):
    """The failed assertion of one rank."""

    #: the order of the last communication before the assertion; -1 if there is none
    before: int
    #: the rank in the world
    rank: int
    error: type[JobflowError]
    text: str


def assertions(body: Sequence[Instruction]) -> list[Compute]:
    """Return the runtime assertions in the body of a plan."""
    from jobflow.plan.plan import Compute  # eager operations have no plan

    return [each for each in body if isinstance(each, Compute) and isinstance(each.op, RuntimeAssertion)]


def orders_before(body: Sequence[Instruction]) -> tuple[tuple[Compute, ...], tuple[int, ...]]:
    """Return the runtime assertions in the body of a plan, and the order of the last communication before each; -1 if there is none."""
    from jobflow.plan.plan import Compute

    orders, before = [], -1
    for each in body:
        if not isinstance(each, Compute):
            before = max(before, each.order)
        elif isinstance(each.op, RuntimeAssertion):
            orders.append(before)
    return tuple(assertions(body)), tuple(orders)


def failed_assertion(body: Sequence[Instruction], instruction: Compute, rank: int, error: JobflowError) -> FailedAssertion:
    """Return the failed assertion of `instruction` in this body on a rank."""
    before = next(order for each, order in zip(*orders_before(body), strict=True) if each is instruction)
    return FailedAssertion(before, rank, type(error), located(error, instruction.where))


def located(error: JobflowError, where: SourceLine) -> str:
    """Return the message of an error with the user's line inserted after the operation, which ends at the first colon."""
    word, _, rest = str(error).partition(":")
    return f"{word} at {where}:{rest}"


def raise_first(everywhere: Sequence[FailedAssertion | None]) -> None:
    """Raise the earliest failed assertion of any rank; all ranks raise the same error and can continue.

    The earliest failure has the fewest communications before it, so no other failure can be its cause.
    """
    first = min((one for one in everywhere if one is not None), key=lambda one: one[:2], default=None)
    if first is not None:
        error = first.error(f"{first.text}{f' (on rank {first.rank})' if len(everywhere) > 1 else ''}")
        error.everywhere = True
        raise error
