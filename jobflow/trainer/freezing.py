"""Frozen variables: the patterns of the key `freeze`, and their description before training.

A frozen variable has no gradient, no optimizer state and no weight decay. A batch normalization whose moving statistics are frozen uses these
statistics, and does not change them, as Keras does with `trainable = False`.
"""

from __future__ import annotations

from collections.abc import Mapping

from jobflow.core.errors import ConfigError, counted, did_you_mean_or, patterns_like
from jobflow.core.filters import matches
from jobflow.graph.ir import Variable
from jobflow.trainer.config import Loaded


def check_frozen(loaded: Loaded, variables: Mapping[str, Variable]) -> None:
    """Raise ConfigError if a pattern of `freeze` matches no variable of the model, or if no variable is left to train."""
    for i, pattern in enumerate(loaded.config.freeze):
        if not any(matches(pattern, name) for name in variables):
            near = did_you_mean_or(pattern, patterns_like(pattern, variables), f"the variables are {listed(variables)}")
            raise ConfigError(f'{loaded.origin(f"freeze.{i}")}: freeze: no variable of the model matches "{pattern}"{near}')
    if loaded.config.freeze and not any(variable.trainable for variable in variables.values()):
        raise ConfigError(f"{loaded.origin('freeze')}: freeze: the patterns match every parameter, so none is left to train; omit a pattern")


def frozen_text(loaded: Loaded, variables: Mapping[str, Variable]) -> str:
    """Return one line with the number of frozen variables, or "" without any."""
    names = [name for name in variables if matches(loaded.config.freeze, name)]
    if not names:
        return ""
    values = sum(variables[name].type.size for name in names)
    whole = sum(variable.type.size for variable in variables.values())
    return f"frozen: {len(names)} of {counted(len(variables), 'variable')}, {values:,} of {whole:,} values ({listed(names)})"


def listed(names: Mapping[str, object] | list[str], most: int = 6) -> str:
    """Return the first names, separated by commas, and the number of the others."""
    return ", ".join(list(names)[:most]) + (f" and {len(names) - most} more" if len(names) > most else "")
