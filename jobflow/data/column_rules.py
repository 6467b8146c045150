"""Rules by column of a table: missing values, scaling, and parts of dates."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from datetime import UTC, date, datetime
from typing import Any, Literal, TypeAlias

import numpy as np

from jobflow.core.dataclass import dataclass
from jobflow.core.errors import ArgumentError, DataError, did_you_mean
from jobflow.core.types import Array
from jobflow.data.number_text import MISSING
from jobflow.data.samples import checked_name

#: treatment of missing values: a number replaces them, a row with one is dropped, or it is an error
MissingRule: TypeAlias = float | Literal["drop", "mean", "median", "error"]
Missing: TypeAlias = MissingRule | dict[str, MissingRule]
#: scaling of numbers; a map is the result of an earlier reader, (x - shift) * factor
ScaleRule: TypeAlias = Literal["standard", "minmax", "none"] | dict[str, float]
Scale: TypeAlias = Literal["standard", "minmax", "none"] | dict[str, ScaleRule]
#: number made from a date
Part: TypeAlias = Literal["year", "month", "day", "weekday", "day_of_year", "days", "hour", "minute", "second", "seconds"]
Dates: TypeAlias = dict[str, list[Part]]

#: rules whose numbers are computed from the training samples
LEARNED = ("mean", "median", "standard", "minmax")
_MISSING, _SCALE = ("drop", "mean", "median", "error"), ("standard", "minmax", "none")
#: the field whose columns a rule for the whole table does not change, unless the rule names them
LABELS = "labels"
_DAY = 24 * 60 * 60
_PARTS: dict[str, Any] = {
    "year": lambda t: t.astype("datetime64[Y]").astype(np.int64) + 1970,
    "month": lambda t: t.astype("datetime64[M]").astype(np.int64) % 12 + 1,
    "day": lambda t: (t.astype("datetime64[D]") - t.astype("datetime64[M]").astype("datetime64[D]")).astype(np.int64) + 1,
    "weekday": lambda t: (t.astype("datetime64[D]").astype(np.int64) + 3) % 7,
    "day_of_year": lambda t: (t.astype("datetime64[D]") - t.astype("datetime64[Y]").astype("datetime64[D]")).astype(np.int64) + 1,
    "days": lambda t: t.astype("datetime64[D]").astype(np.int64),
    "hour": lambda t: t.astype(np.int64) % _DAY // 3600,
    "minute": lambda t: t.astype(np.int64) % 3600 // 60,
    "second": lambda t: t.astype(np.int64) % 60,
    "seconds": lambda t: t.astype(np.int64) % _DAY,
}


@dataclass(frozen=True)
class Scaling:
    """The change of a column's numbers to (x - shift) * factor."""

    shift: float
    factor: float


def missing_rules(missing: Any, what: str, names: Collection[str], used: Mapping[str, str], categories: Collection[str]) -> dict[str, MissingRule]:
    """Return the rule for missing values by column.

    `names` are all columns of the table, and `used` maps columns of fields to a field. Raises: ArgumentError for an unknown column or rule.
    """
    if not isinstance(missing, Mapping):
        _check_missing(missing, "", what)
        columns = [name for name in used if name not in categories or missing in ("drop", "error")]
        if missing in LEARNED:
            columns = [name for name in columns if used[name] != LABELS]
        return {} if missing is None else dict.fromkeys(columns, missing)
    rules: dict[str, MissingRule] = {}
    for name, rule in missing.items():
        _check_missing(rule, f' of column "{name}"', what)
        parts = [part for part in names if part.startswith(f"{name}.")] if rule not in ("drop", "error") else []
        for column in parts or [checked_name(name, names, f"{what}: missing: column")]:
            if column in categories and rule not in ("drop", "error"):
                advice = "set empty: index to give empty cells an index, or missing: drop to drop such rows"
                raise ArgumentError(f'{what}: missing: column "{column}" contains categories; {advice}')
            if rule is not None:
                rules[column] = rule
    return rules


def _check_missing(rule: Any, of: str, what: str) -> None:
    is_number = isinstance(rule, int | float | np.number) and not isinstance(rule, bool)
    if rule is not None and not is_number and rule not in _MISSING:
        near = did_you_mean(rule, _MISSING) if isinstance(rule, str) else ""
        advice = near or "; omit quotes, and write .nan for NaN in YAML"
        raise ArgumentError(f"{what}: missing{of} must be a number, drop, mean, median or error, not {rule!r}{advice}")


def scale_rules(scale: Any, what: str, names: Collection[str], used: Mapping[str, str], categories: Collection[str]) -> dict[str, str | Scaling]:
    """Return "standard", "minmax" or the known scaling by column; columns without scaling are absent.

    Raises: ArgumentError for an unknown column or rule, or a column of categories.
    """
    if not isinstance(scale, Mapping):
        _check_scale(scale, "", what)
        columns = [name for name, field in used.items() if name not in categories and field != LABELS]
        return {} if scale in (None, "none") else dict.fromkeys(columns, scale)
    rules: dict[str, str | Scaling] = {}
    for name, rule in scale.items():
        column = checked_name(name, names, f"{what}: scale: column")
        if isinstance(rule, Mapping) and set(rule) == {"shift", "factor"}:
            rules[column] = Scaling(float(rule["shift"]), float(rule["factor"]))
            continue
        _check_scale(rule, f' of column "{name}"', what)
        if column in categories:
            raise ArgumentError(f'{what}: scale: column "{name}" contains categories; scale only columns of numbers')
        if rule not in (None, "none"):
            rules[column] = rule
    return rules


def _check_scale(rule: Any, of: str, what: str) -> None:
    if rule is not None and rule not in _SCALE:
        near = did_you_mean(rule, _SCALE) if isinstance(rule, str) else ""
        raise ArgumentError(f"{what}: scale{of} must be one of {', '.join(_SCALE)}, not {rule!r}{near}")


def learned_fill(values: Array, rule: str, what: str) -> float:
    """Return the mean or median of a column's training values, without NaN."""
    present = values[~np.isnan(values)]
    if not present.size or not np.isfinite(present).all():
        wrong = "infinite values" if present.size else "no values in the training samples"
        raise DataError(f"{what} has {wrong}; set missing to a number in place of {rule}")
    return float(np.mean(present) if rule == "mean" else np.median(present))


def learned_scaling(values: Array, rule: str, what: str) -> Scaling:
    """Return the scaling of a column from its training values; a constant column becomes 0."""
    present = values[~np.isnan(values)]
    if not present.size or not np.isfinite(present).all():
        wrong = "infinite values" if present.size else "no values in the training samples"
        raise DataError(f"{what} has {wrong}, so scale: {rule} is undefined; set scale to none for this column")
    shift = float(present.mean() if rule == "standard" else present.min())
    width = float(present.std() if rule == "standard" else present.max() - present.min())
    return Scaling(shift, 1 / width if width > 0 else 1.0)


# -------------------------------------------------------------------- dates


def date_parts(dates: Any, columns: Sequence[str], what: str) -> dict[str, tuple[str, str]]:
    """Return {new column: (column of dates, part)}, such as "sold.year"; raise ArgumentError for an unknown column or part."""
    if not isinstance(dates, Mapping | None):
        raise ArgumentError(f"{what}: dates must be a dict of parts by column, such as {{sold: [year, month]}}, not {dates!r}")
    result: dict[str, tuple[str, str]] = {}
    for column, parts in (dates or {}).items():
        checked_name(column, columns, f"{what}: dates: column")
        if isinstance(parts, str) or not parts:
            raise ArgumentError(f'{what}: dates of column "{column}" must be a list of parts, such as [year, month], not {parts!r}')
        for part in parts:
            checked_name(part, _PARTS, f'{what}: dates of column "{column}": part')
            if f"{column}.{part}" in columns:
                raise ArgumentError(f'{what}: dates: the table already has a column "{column}.{part}"; use it as a column of numbers')
            result[f"{column}.{part}"] = column, part
    return result


def part_of(moments: Array, part: str) -> Array:
    """Return a part of dates, datetime64[s], without NaT, as int64."""
    result: Array = _PARTS[part](moments)
    return result


def moments_of(cells: Iterable[Any], pattern: str | None) -> tuple[Array, int | None]:
    """Return texts, dates and times as datetime64[s], NaT for a missing one, and the index of the first cell that is not a date.

    `pattern` is a format of `datetime.strptime`; by default texts are in ISO 8601. Times with a zone are converted to UTC.
    """
    moments: list[Any] = []
    for index, cell in enumerate(cells):
        try:
            moments.append(_moment(cell, pattern))
        except ValueError:
            return np.empty(0, "datetime64[s]"), index
    return np.array(moments, "datetime64[s]"), None


def _moment(cell: Any, pattern: str | None) -> Any:
    if cell is None or (isinstance(cell, str) and cell.strip() in MISSING):
        return np.datetime64("NaT")
    if isinstance(cell, str):
        text = cell.strip()
        cell = datetime.fromisoformat(text) if pattern is None else datetime.strptime(text, pattern)
    if isinstance(cell, datetime):
        return cell.astimezone(UTC).replace(tzinfo=None) if cell.tzinfo is not None else cell
    if isinstance(cell, date):
        return datetime(cell.year, cell.month, cell.day)
    raise ValueError(f"{cell!r} is not a date")


# -------------------------------------------------------------------- facts


def with_learned(argument: Any, fact: Mapping[str, Any]) -> Any:
    """Return a rule of a reader with the numbers that the training samples determined; None if the rule stays as passed.

    A fact replaces "mean", "median", "standard" and "minmax", for the whole table or for its column.
    """
    if isinstance(argument, str):
        return fact if argument in LEARNED else None
    if not isinstance(argument, Mapping):
        return None
    result: dict[str, Any] = {}
    for name, rule in argument.items():
        known = {column: fact[column] for column in fact if column == name or column.startswith(f"{name}.")}
        result |= known if isinstance(rule, str) and rule in LEARNED and known else {name: rule}
    return result
