"""Trials of a sweep: their values, the names of their folders, and their configurations.

    optimizer.lr: [0.001, 0.003]              lr=0.001/   lr=0.003/

All trials of a grid and of random samples are loaded and checked before the first one runs.  The values of random trial i depend on the seed and
on i only, so more trials extend a sweep.
"""

from __future__ import annotations

import hashlib
import itertools
import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from jobflow.core.dataclass import dataclass
from jobflow.core.errors import ConfigError, counted
from jobflow.trainer.config.keys import tag_of
from jobflow.trainer.config.loading import Loaded, PlacedSetting, load
from jobflow.trainer.config.reading import read
from jobflow.trainer.config.showing import word
from jobflow.trainer.config.sweep_schema import Choice, LogUniform, Sweep, Uniform, WholeNumber
from jobflow.trainer.config.tree import DEFAULT, ConfigErrors, Origin, Problem, Problems, dotted

#: significant digits of sampled numbers, which name the folders
DIGITS = 4
#: longest text of a value in the name of a folder
LONGEST = 32
#: names of distributions
TAGS = tuple(tag_of(kind) for kind in (Uniform, LogUniform, WholeNumber, Choice))
Values = dict[str, Any]
Kind = list[Any] | Uniform | LogUniform | WholeNumber | Choice


@dataclass(frozen=True)
class Trial:
    """A trial: its number from 0, the name of its folder, the changed values by key, and its configuration."""

    number: int
    name: str
    values: Values
    loaded: Loaded
    settings: tuple[str, ...]

    @property
    def folder(self) -> Path:
        """The folder of the run."""
        return Path(self.loaded.config.output)


# -------------------------------------------------------------------- values


def grid(values: Mapping[str, Kind]) -> Iterator[Values]:
    """Yield all combinations of the values; the last key varies fastest."""
    lists = [kind.values if isinstance(kind, Choice) else kind for kind in values.values()]
    for combination in itertools.product(*lists):
        yield dict(zip(values, combination, strict=True))


def random_values(values: Mapping[str, Kind], seed: int, number: int) -> Values:
    """Return a sample of each distribution, a function of the seed and of the number of the trial."""
    random = np.random.default_rng((seed, number))
    return {key: sampled(kind, random) for key, kind in values.items()}


def sampled(kind: Kind, random: np.random.Generator) -> Any:
    """Return a sample of a distribution, or of a list of equally likely values."""
    if isinstance(kind, Uniform):
        return rounded(float(random.uniform(kind.low, kind.high)), kind)
    if isinstance(kind, LogUniform):
        return rounded(math.exp(random.uniform(math.log(kind.low), math.log(kind.high))), kind)
    if isinstance(kind, WholeNumber):
        return int(random.integers(kind.low, kind.high, endpoint=True))
    entries = kind.values if isinstance(kind, Choice) else kind
    return entries[int(random.integers(len(entries)))]


def rounded(value: float, within: Uniform | LogUniform) -> float:
    """Return the value with DIGITS significant digits, inside the limits of its distribution."""
    return min(max(float(f"{value:.{DIGITS}g}"), within.low), within.high)


def extremes(values: Mapping[str, Kind]) -> Iterator[Values]:
    """Yield values that together contain the limits of all distributions and all entries of lists."""
    ends: list[list[Any]] = []
    for kind in values.values():
        entries = kind.values if isinstance(kind, Choice) else kind
        ends.append(entries if isinstance(entries, list) else [entries.low, entries.high])
    for i in range(max(map(len, ends))):
        yield {key: entries[i % len(entries)] for key, entries in zip(values, ends, strict=True)}


def sweep_setting(text: str) -> PlacedSetting:
    """Return the setting for `--sweep optimizer.lr=0.001,0.003` or `--sweep "optimizer.lr={name: uniform, low: 0, high: 1}"`.

    Raises: ConfigError for a text without a key and values.
    """
    key, sign, values = text.partition("=")
    source = Origin(f"--sweep {text}")
    if not sign or not key.strip() or not values.strip():
        raise ConfigError(f"{source}: there are no values; write a key, = and values, such as: --sweep optimizer.lr=0.001,0.003")
    tree = read(f"[{values}]", source.file, Problems())  # the loader reports a text that is not YAML
    entries = tree.plain if tree is not None else []
    is_distribution = len(entries) == 1 and isinstance(entries[0], dict) and entries[0].get("name") in TAGS
    return PlacedSetting(f"{dotted(('sweep', 'values', key.strip()))}={values if is_distribution else f'[{values}]'}", source)


# -------------------------------------------------------------------- names


def labels(keys: Iterable[str]) -> dict[str, str]:
    """Return the shortest unambiguous end of each key: {"optimizer.lr": "lr"}."""
    keys = list(keys)
    ends = {key: [".".join(key.split(".")[-n:]) for n in range(1, key.count(".") + 2)] for key in keys}
    return {key: next((end for end in ends[key] if sum(end in other for other in ends.values()) == 1), key) for key in keys}


def value_text(value: Any) -> str:
    """Return a value as a short text: 0.001, adam, [64, 64]."""
    return f"{value:g}" if isinstance(value, float) and float(f"{value:g}") == value else word(value)


def folder_name(values: Values) -> str:
    """Return a name such as "lr=0.001,units=64"; a shortened or changed value is followed by a part of its hash."""
    names = labels(values)
    return ",".join(f"{_plain(names[key])}={_plain(value_text(value))}" for key, value in values.items())


def _plain(text: str) -> str:
    plain = re.sub(r"[^A-Za-z0-9_.+-]+", "_", text).strip("_") if not re.fullmatch(r"[A-Za-z0-9_.+-]*", text) else text
    if len(plain) <= LONGEST and _is_readable(text):
        return plain
    return f"{plain[:LONGEST]}~{hashlib.sha256(text.encode()).hexdigest()[:8]}"


def _is_readable(text: str) -> bool:
    """Return True for a text whose plain form is unambiguous: a word, or a list of numbers such as [8, 16]."""
    return re.fullmatch(r"[A-Za-z0-9_.+-]+|\[\d+(, \d+)*\]", text) is not None


# -------------------------------------------------------------------- configurations


class Trials:
    """The trials of a configuration file with a section `sweep`; `sweep` is None for a file without one."""

    def __init__(self, file: str, settings: Sequence[str] = ()) -> None:
        self.file, self.settings = file, tuple(settings)
        self.base = load(file, settings)
        if self.base.config.sweep is None:
            raise ConfigError(f"{file}: there is no section sweep; add one, or pass values: --sweep optimizer.lr=0.001,0.003")
        self.sweep: Sweep = self.base.config.sweep

    @property
    def folder(self) -> Path:
        """The folder of the sweep, which contains the folders of its trials."""
        return Path(self.base.config.output)

    @property
    def metric(self) -> str:
        """The metric that orders the trials."""
        return self.sweep.metric or ("validation/loss" if self.base.config.data.validation is not None else "train/loss")

    def planned(self) -> list[Trial]:
        """Return all trials of a grid or of random samples; [] for `tpe`, whose limits are checked instead.

        Trials with equal values occur once.
        Raises: ConfigErrors with the problems of all trials.
        """
        values, sweep = self.sweep.values, self.sweep
        if sweep.method == "random":
            every: Iterable[Values] = (random_values(values, sweep.seed, i) for i in range(sweep.trials or 0))
        else:
            every = grid(values) if sweep.method == "grid" else extremes(values)
        trials: dict[str, Trial] = {}
        problems: dict[Problem, None] = {}
        for one in every:
            try:
                trial = self.trial(len(trials), one)
                trials.setdefault(trial.name, trial)
            except ConfigErrors as errors:
                problems |= dict.fromkeys(errors.problems)
        if problems:
            raise ConfigErrors(list(problems))
        self._check_folders(list(trials.values()))
        return [] if sweep.method == "tpe" else list(trials.values())

    def lines(self) -> Iterator[str]:
        """Yield a line per trial for a preview, after the check of all trials."""
        planned, sweep = self.planned(), self.sweep
        yield f"{counted(len(planned) or (sweep.trials or 0), 'trial')} by {sweep.method}, ordered by {self.metric} ({sweep.mode}), in {self.folder}"
        yield from (trial.name for trial in planned)

    def trial(self, number: int, values: Values) -> Trial:
        """Return the trial with these values; raise ConfigErrors if its configuration is invalid."""
        name = folder_name(values)
        settings = [PlacedSetting(f"{key}={word(value)}", self._source(key, value)) for key, value in values.items()]
        own = ("sweep=null", f"name={word(f'{self.base.config.name} {name}')}", f"output={word(str(self.folder / name))}")
        every = (*(setting for setting in self.settings if not setting.startswith("sweep")), *settings, *own)
        return Trial(number, name, values, load(self.file, every), every)

    def _source(self, key: str, value: Any) -> Origin:
        """Return the source position of a value of the section `sweep`, or of its distribution."""
        kind, at = self.sweep.values[key], dotted(("sweep", "values", key))
        entries = kind.values if isinstance(kind, Choice) else kind
        if isinstance(entries, list) and value in entries:
            at = f"{at}{'.values' if isinstance(kind, Choice) else ''}.{entries.index(value)}"
        source = self.base.origin(at)
        return self.base.origin(dotted(("sweep", "values", key))) if source == DEFAULT else source

    def _check_folders(self, trials: Sequence[Trial]) -> None:
        """Raise ConfigError if two trials would save to the same folder."""
        if len(trials) > 1 and trials[0].loaded.config.checkpoint.directory == trials[1].loaded.config.checkpoint.directory:
            raise ConfigError(
                f"{self.base.origin('checkpoint.directory')}: checkpoint.directory: {trials[0].loaded.config.checkpoint.directory} is the same "
                "for all trials of the sweep; write ${output}/checkpoints, or a path with ${name}"
            )
