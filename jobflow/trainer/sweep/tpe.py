"""Values of the next trial by Optuna's tree-structured Parzen estimator.

A suggestion is a function of the seed, of the number of the trial, and of the finished trials.  So a sweep in sequence that is interrupted and
repeated has the same trials as an uninterrupted one.  No database is used: each suggestion builds a study in memory from the finished trials.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

from jobflow.core.extras import optional
from jobflow.trainer.config.sweep_schema import Choice, LogUniform, Uniform, WholeNumber
from jobflow.trainer.sweep.trials import Kind, Values, rounded


def suggested(values: Mapping[str, Kind], mode: str, seed: int, number: int, finished: Iterable[tuple[Values, float]]) -> Values:
    """Return the values of trial `number`; `finished` contains the values and the metric of each finished trial."""
    optuna = optional("optuna", "sweep.method tpe")
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    own = int(np.random.SeedSequence((seed, number)).generate_state(1)[0])
    study = optuna.create_study(direction=f"{mode}imize", sampler=optuna.samplers.TPESampler(seed=own))
    distributions = {key: _distribution(optuna, kind) for key, kind in values.items()}
    for earlier, metric in finished:
        params = {key: _coded(values[key], value) for key, value in earlier.items()}
        study.add_trial(optuna.trial.create_trial(params=params, distributions=distributions, value=metric))
    return {key: _decoded(values[key], code) for key, code in study.ask(distributions).params.items()}


def _entries(kind: Kind) -> list[Any] | None:
    return kind.values if isinstance(kind, Choice) else kind if isinstance(kind, list) else None


def _distribution(optuna: Any, kind: Kind) -> Any:
    entries = _entries(kind)
    if entries is not None:
        return optuna.distributions.CategoricalDistribution(range(len(entries)))
    if isinstance(kind, WholeNumber):
        return optuna.distributions.IntDistribution(kind.low, kind.high)
    assert isinstance(kind, Uniform | LogUniform)
    return optuna.distributions.FloatDistribution(kind.low, kind.high, log=isinstance(kind, LogUniform))


def _coded(kind: Kind, value: Any) -> Any:
    """Return the position of a value in its list, because Optuna accepts only numbers and strings as categories."""
    entries = _entries(kind)
    return value if entries is None else entries.index(value)


def _decoded(kind: Kind, code: Any) -> Any:
    entries = _entries(kind)
    if entries is not None:
        return entries[code]
    return rounded(float(code), kind) if isinstance(kind, Uniform | LogUniform) else int(code)
