"""Configurations and settings as Python values: dicts -> the YAML text that the reader of files checks."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np

from jobflow.core.errors import ConfigError

#: the name of a dict in place of the name of a file
DICT = "<dict>"
Source: TypeAlias = str | os.PathLike[str] | Mapping[str, Any]
Settings: TypeAlias = Sequence[str] | Mapping[str, Any]

#: characters that JSON permits in a text and YAML does not keep
_ESCAPED = re.compile(r"[\x7f-\x9f\u2028\u2029\ufeff]")


def yaml_text(value: Any, name: str) -> str:
    """Return a Python value as YAML on one line; raise ConfigError, which begins with `name`, for a value that YAML cannot express."""
    try:
        text = json.dumps(value, default=_plain, ensure_ascii=False)
    except (TypeError, ValueError, RecursionError) as error:
        raise ConfigError(f"{name}: {error}; pass texts, numbers, bools, None, lists and dicts, as in a YAML file") from None
    return _ESCAPED.sub(lambda match: f"\\u{ord(match[0]):04x}", text)


def _plain(value: Any) -> Any:
    """Return a map, a path or a NumPy number as a JSON type."""
    if isinstance(value, Mapping):
        return dict(value)
    if isinstance(value, os.PathLike):
        return os.fspath(value)
    if isinstance(value, np.generic):
        return value.item()
    raise TypeError(f"a {type(value).__name__} is not a value of a configuration")


def settings_of(settings: Settings) -> list[str]:
    """Return settings such as ["optimizer.lr=0.1"] or {"optimizer.lr": 0.1} as a list of texts."""
    if isinstance(settings, Mapping):
        return [f"{key}={yaml_text(value, f'settings: {key}')}" for key, value in settings.items()]
    if isinstance(settings, str) or not isinstance(settings, Sequence) or not all(isinstance(one, str) for one in settings):
        raise ConfigError(f'settings: {settings!r:.100} is not a list of texts; pass ["optimizer.lr=0.1"] or {{"optimizer.lr": 0.1}}')
    return list(settings)


def check_source(source: Any) -> None:
    """Raise ConfigError unless `source` is a path or a dict."""
    if not isinstance(source, str | os.PathLike | Mapping):
        raise ConfigError(f"configuration: {source!r:.100} is a {type(source).__name__}; pass the path of a YAML file, or a dict with its content")
