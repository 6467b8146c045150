"""Checks of the section `sweep` that concern several keys; `rules` calls them."""

from __future__ import annotations

import importlib.util
import math
from typing import TYPE_CHECKING

from jobflow.trainer.config.tree import dotted

if TYPE_CHECKING:
    from jobflow.trainer.config.rules import Values, Wrong

#: keys that a sweep sets or that have no meaning for one trial
_NOT_SWEPT = ("name", "output", "extends", "sweep", "checkpoint.directory", "checkpoint.resume")
#: maximum number of trials
MOST_TRIALS = 10_000


def _swept(of: Values) -> Wrong:
    (sweep,) = of("sweep", "values")
    for key, values in ({} if sweep is None else sweep).items():
        at = f"sweep.values.{dotted((key,))}"
        constant = next((one for one in _NOT_SWEPT if key == one or key.startswith(f"{one}.")), None)
        if constant is not None:
            yield at, f"sweep.values: {key} cannot differ between trials, because each trial has a name and a folder of its own", "another key"
        outer = next((other for other in sweep if key.startswith(f"{other}.")), None)
        if outer is not None:
            yield at, f"sweep.values: {key} is inside {outer}, which is swept too", "one of both"
        entries = values if isinstance(values, list) else values.get("values", [None])
        twice = [entry for i, entry in enumerate(entries) if any(type(entry) is type(other) and entry == other for other in entries[:i])]
        if not entries:
            yield at, f"sweep.values: {key} has no values", f"such as: {key}: [0.001, 0.003]"
        elif twice:
            yield at, f"sweep.values: {key} has the value {twice[0]!r} twice", ""
        elif isinstance(values, dict) and "low" in values and values["low"] >= values["high"]:
            yield at, f"sweep.values: {key} needs a low below high; got {values['low']} and {values['high']}", ""


def _method(of: Values) -> Wrong:
    sweep, method, trials = of("sweep", "values", "method", "trials")
    if sweep is None:
        return
    if method != "grid" and trials is None:
        yield "sweep.trials sweep.method", f"sweep.method {method} needs the number of trials", "such as: trials: 20"
    if method == "grid" and trials is not None:
        yield "sweep.trials sweep.method", "a grid has one trial per combination; omit sweep.trials", "method: random"
    endless = [key for key, values in sweep.items() if isinstance(values, dict) and values.get("name") != "choice"]
    if method == "grid" and endless:
        message = f"sweep.method grid needs a list of values for {endless[0]}, not the distribution {sweep[endless[0]]['name']}"
        yield f"sweep.values.{dotted((endless[0],))} sweep.method", message, "a list of values, or method: random"
    elif method == "grid":
        count = math.prod(len(values if isinstance(values, list) else values["values"]) for values in sweep.values())
        if count > MOST_TRIALS:
            message = f"sweep.values: the grid has {count:,} trials, more than {MOST_TRIALS:,}"
            yield "sweep.values sweep.method", message, "fewer values, or method: random"


def _search(of: Values) -> Wrong:
    sweep, method, metric = of("sweep", "values", "method", "metric")
    (validation,) = of("data", "validation")
    if sweep is not None and method == "tpe" and importlib.util.find_spec("optuna") is None:
        yield "sweep.method", "sweep.method tpe needs the package optuna: pip install 'jobflow-sbp[optuna]'", "method: random, grid"
    if metric is not None and metric.startswith("validation/") and validation is None:
        yield "sweep.metric data.validation", f"sweep.metric {metric} needs samples for evaluation: data.validation", "metric: train/loss"


SWEEP_RULES = (_swept, _method, _search)
