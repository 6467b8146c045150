"""The parameter groups of a configuration: the learning rate and weight decay of each parameter, their check, and their table."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from typing import Any

import jobflow.optim as optim
from jobflow.core.dataclass import dataclass
from jobflow.core.errors import ConfigError, counted, did_you_mean_or, patterns_like
from jobflow.core.filters import matches
from jobflow.core.imports import function_named
from jobflow.graph.ir import Variable
from jobflow.trainer.config import Loaded
from jobflow.trainer.config.optimizer_schema import AdamW, ImportedOptimizer, Optimizer


@dataclass(frozen=True)
class Choice:
    """The learning rate and weight decay of a parameter; None for an optimizer without weight decay."""

    lr: float
    weight_decay: float | None


def choice_of(options: Optimizer, variable: Variable) -> Choice:
    """Return the learning rate and weight decay of a parameter: those of the first matching group, else those of the optimizer.

    AdamW does not decay parameters of at most one axis, such as biases and scales of norms, unless a group sets their decay.
    """
    decay = weight_decay_of(options)
    if decay and variable.type.ndim <= 1 and _spares_vectors(options):
        decay = 0.0
    for group in options.groups:
        if matches(group.match, variable.name):
            return Choice(options.lr if group.lr is None else group.lr, decay if group.weight_decay is None else group.weight_decay)
    return Choice(options.lr, decay)


def weight_decay_of(options: Optimizer) -> float | None:
    """Return the weight decay of an optimizer, or None if it has no such option."""
    if not isinstance(options, ImportedOptimizer):
        result: float | None = getattr(options, "weight_decay", None)
        return result
    parameter = inspect.signature(function_named(options.name)).parameters.get("weight_decay")
    default = None if parameter is None or parameter.default is parameter.empty else parameter.default
    decay: Any = options.arguments.get("weight_decay", default)
    return None if decay is None else float(decay)


def _spares_vectors(options: Optimizer) -> bool:
    if isinstance(options, ImportedOptimizer):
        function = function_named(options.name)
        return inspect.isclass(function) and issubclass(function, optim.AdamW)
    return isinstance(options, AdamW)


def check_groups(loaded: Loaded, variables: Mapping[str, Variable]) -> None:
    """Raise ConfigError if a group has no parameters: its pattern matches none, or earlier groups match them all."""
    trained = {name: one for name, one in variables.items() if one.trainable}
    left = dict(trained)
    for i, group in enumerate(loaded.config.optimizer.groups):
        patterns = [group.match] if isinstance(group.match, str) else list(group.match)
        for j, pattern in enumerate(patterns):
            if not any(matches(pattern, name) for name in trained):
                key = f"optimizer.groups.{i}.match" + ("" if isinstance(group.match, str) else f".{j}")
                first = ", ".join([*trained][:6]) + (f" and {len(trained) - 6} more" if len(trained) > 6 else "")
                near = did_you_mean_or(pattern, patterns_like(pattern, trained), f"the parameters are {first}")
                raise ConfigError(f'{loaded.origin(key)}: {key}: no trained parameter matches "{pattern}"{near}')
        own = [name for name in left if matches(group.match, name)]
        if not own:
            key = f"optimizer.groups.{i}"
            raise ConfigError(f"{loaded.origin(f'{key}.match')}: {key}: earlier groups match all its parameters; move it before them, or omit it")
        for name in own:
            del left[name]


def groups_text(loaded: Loaded, variables: Mapping[str, Variable]) -> str:
    """Return a table with the learning rate, weight decay and parameters of each group, or "" if all parameters have the same."""
    options = loaded.config.optimizer
    groups: dict[Choice, list[str]] = {}
    for name, one in variables.items():
        if one.trainable:
            groups.setdefault(choice_of(options, one), []).append(name)
    if len(groups) < 2:
        return ""
    rows = [("lr", "weight decay", "parameters", "values", "names")]
    for choice, names in groups.items():
        size = sum(variables[name].type.size for name in names)
        decay = "none" if choice.weight_decay is None else f"{choice.weight_decay:g}"
        shown = ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")
        rows.append((f"{choice.lr:g}", decay, f"{len(names):,}", f"{size:,}", shown))
    widths = [max(len(row[i]) for row in rows) for i in range(4)]
    lines = ["  ".join([*(text.rjust(width) for text, width in zip(row, widths, strict=False)), row[4]]) for row in rows]
    return "\n".join([f"{counted(len(groups), 'group')} of parameters:", *lines])
