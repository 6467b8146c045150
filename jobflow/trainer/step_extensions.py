"""Callbacks that add operations to the train job, such as averages of the parameters; and the variables of these operations."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import ClassVar

from jobflow.core.errors import ConfigError
from jobflow.graph.ir import Value
from jobflow.graph.training import Parameter, Slots
from jobflow.trainer.callbacks import Callback

#: beginning of the names of variables that belong to callbacks; a checkpoint may lack them
PREFIX = "System-Train-Callback-"


class StepExtension(Callback):
    """Base class of callbacks that add operations to the train job.

    Every process creates the callback, with equal arguments on all ranks, because all ranks compile the same job.  As for other callbacks, only the
    process of rank 0 calls the methods of events.
    """

    changes_rate: ClassVar[bool] = False

    def is_due(self, step: int) -> bool:
        """Return True if the operations are part of this step, which counts from 1; the result depends on `step` and the arguments alone."""
        return True

    def operations(self, parameters: Sequence[Parameter], new: Mapping[str, Value], step: Value, slots: Slots) -> dict[str, Value]:
        """Return new values by name of variables that `slots` declares; the names begin with `PREFIX`.

        `parameters` have the gradients before clipping, and `new` has the new values of parameters by name.  `step` is the number of earlier steps.
        """
        raise NotImplementedError


def add_operations(extensions: Sequence[StepExtension], parameters: Sequence[Parameter], new: dict[str, Value], step: Value, slots: Slots) -> None:
    """Add the variables of all extensions to `new`; raise ConfigError if two extensions write the same variable."""
    for extension in extensions:
        values = extension.operations(parameters, new, step, slots)
        if common := sorted(set(values) & set(new)):
            name = type(extension).__name__
            raise ConfigError(f"callbacks: two callbacks write the variable {common[0]}, one of them {name}; list {name} once")
        new.update(values)
