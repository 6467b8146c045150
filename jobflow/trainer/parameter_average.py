"""An exponential moving average of the parameters (EMA), with which the trainer evaluates the model and saves checkpoints."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, ClassVar

from jobflow.core.dataclass import dataclass
from jobflow.core.errors import CheckpointError
from jobflow.core.types import Array
from jobflow.engine.session import Session
from jobflow.graph.ir import Value
from jobflow.graph.training import Parameter, Slots
from jobflow.legacy.optimizer.schedules import PiecewiseConstantScheduler
from jobflow.ops import elementwise as ew
from jobflow.ops.op import apply
from jobflow.ops.optimizer_updates import SgdUpdate
from jobflow.ops.update import learning_rate, rate_dtype
from jobflow.program.program import state_of
from jobflow.runtime.world.world import Rank
from jobflow.trainer.callback_arguments import check_count, check_number
from jobflow.trainer.step_extensions import PREFIX, StepExtension

#: beginning of the names of averages
AVERAGE = f"{PREFIX}Average-"


class ParameterAverage(StepExtension):
    """A callback that averages the parameters: a' = decay a + (1 - decay) w after each step, and a' = w during the first `start` steps.

    Evaluations use the averages.  Checkpoints contain them as the model's parameters, so evaluation, prediction and export use them too.  Training
    continues with the parameters themselves.  Buffers of the model, such as those of batch normalization, are not averaged.
    """

    observes: ClassVar[bool] = True

    def __init__(self, decay: float = 0.999, start: int = 0) -> None:
        check_number("ParameterAverage", "decay", decay, "a number above 0 and below 1", 0, 1, is_open=True)
        check_count("ParameterAverage", "start", start, 0)
        self.decay, self.start = decay, start

    def operations(self, parameters: Sequence[Parameter], new: Mapping[str, Value], step: Value, slots: Slots) -> dict[str, Value]:
        schedule = PiecewiseConstantScheduler([self.start - 1], [1.0, 1.0 - self.decay])
        averages: dict[str, Value] = {}
        for parameter in parameters:
            variable = parameter.variable
            name = AVERAGE + variable.name
            average = slots(name, variable.type, 0.0, variable)
            rate = learning_rate(schedule, step, rate_dtype(variable.type.dtype))
            averages[name] = apply(SgdUpdate(), average, ew.subtract(average, new[variable.name]), rate)
        return averages


def averages_of(session: Session) -> dict[str, str]:
    """Return {name of the average: name of the parameter} for the averages among the session's variables."""
    return {name: name.removeprefix(AVERAGE) for name in session.variables if name.startswith(AVERAGE)}


def begin_averages(session: Session) -> None:
    """Set each average to its parameter, before the first step.  Collective."""
    _assign(session, averages_of(session))


def exchange_averages(session: Session) -> None:
    """Exchange each average with its parameter; each rank exchanges its own parts.  Collective."""
    pairs = averages_of(session)
    _assign(session, pairs | {parameter: average for average, parameter in pairs.items()})


@contextmanager
def averaged(session: Session) -> Iterator[None]:
    """Exchange the averages with the parameters inside a `with` block, if there are any.

    They are also exchanged back after an error of a checkpoint, which all ranks raise, because training may continue after it.
    """
    exchange_averages(session)
    try:
        yield
    except CheckpointError:
        exchange_averages(session)
        raise
    exchange_averages(session)


def _assign(session: Session, sources: Mapping[str, str]) -> None:
    """Assign to each variable the value of another variable with the same layout; all values are read before the first assignment."""
    if sources:
        session.settle()
        world = session.start()
        world.call(_ReadParts(tuple(sources.values())))
        world.call(_WriteParts(tuple(sources)))  # after all ranks have read: ranks may share the memory of a variable
        session.changed(sources)


@dataclass(frozen=True)
class _ReadParts:
    """The command that copies the rank's parts of variables on its device."""

    names: tuple[str, ...]

    def __call__(self, rank: Rank, _: Any) -> None:
        state = state_of(rank)
        copies: list[Array | None] = [state.array(name).copy() if name in state.slots else None for name in self.names]
        rank.memory["copied parts"] = copies


@dataclass(frozen=True)
class _WriteParts:
    """The command that assigns the copied parts to variables, in the same order."""

    names: tuple[str, ...]

    def __call__(self, rank: Rank, _: Any) -> None:
        state = state_of(rank)
        for name, part in zip(self.names, rank.memory.pop("copied parts"), strict=True):
            if part is not None:
                state.array(name)[...] = part
