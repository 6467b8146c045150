"""Facts of the training samples in arguments of a model, such as `${facts.city.size}`.

The values are known after the readers are opened.  Checkpoints store them, so evaluation and prediction need no training samples.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from typing import Any

from jobflow.core.errors import ConfigError, did_you_mean
from jobflow.data.samples import Samples, Stream
from jobflow.data.table import Table
from jobflow.data.vocabulary import vocabulary_of
from jobflow.trainer.config import Loaded
from jobflow.trainer.config.functions import argument_problem, has_fact
from jobflow.trainer.config.references import FACT

#: the field with classes
LABELS = "labels"


def sizes_of(samples: Samples | Stream) -> dict[str, int]:
    """Return the facts by name: sizes of fields, numbers of categories, "classes.count", and "vocabulary.size".

    A field has the size of one sample, and a column of categories the number of its indices.
    """
    sizes = {f"{name}.size": math.prod(field.shape) for name, field in samples.fields.items()}
    classes = len(samples.facts.get("classes") or ())
    if "level" in samples.facts:
        sizes["vocabulary.size"] = vocabulary_of(samples.facts).size
    if isinstance(samples, Table):
        for column, size in samples.sizes.items():
            sizes |= {f"{column}.size": size, f"{column}.count": len(samples.categories[column])}
        classes = samples.size_of(LABELS) or classes
    return sizes | ({"classes.size": classes, "classes.count": classes} if classes else {})


def with_facts(loaded: Loaded, sizes: Mapping[str, int]) -> Loaded:
    """Return the configuration with facts in place of their references in model.arguments.

    Raises: ConfigError for an unknown fact, or for a value that the builder does not accept.
    """
    if not has_fact(dict(loaded.config.model.arguments)):
        return loaded
    arguments = {name: _resolved(loaded, value, f"model.arguments.{name}", sizes) for name, value in loaded.config.model.arguments.items()}
    wrong = argument_problem(loaded.builder, arguments) if loaded.builder is not None else None
    if wrong is not None:
        key = f"model.arguments.{wrong[0]}"
        raise ConfigError(f"{loaded.origin(key)}: {key} must be {wrong[1]}; use another fact, or a value")
    config = loaded.config
    return dataclasses.replace(loaded, config=config.model_copy(update={"model": config.model.model_copy(update={"arguments": arguments})}))


def _resolved(loaded: Loaded, value: Any, key: str, sizes: Mapping[str, int]) -> Any:
    if isinstance(value, dict):
        return {name: _resolved(loaded, inner, f"{key}.{name}", sizes) for name, inner in value.items()}
    if isinstance(value, list):
        return [_resolved(loaded, inner, f"{key}.{i}", sizes) for i, inner in enumerate(value)]
    match = FACT.fullmatch(value) if isinstance(value, str) else None
    if match is None:
        return value
    name = f"{match[1]}.{match[2]}"
    if name not in sizes:
        near = did_you_mean(name, sizes) or ";"
        raise ConfigError(f"{loaded.origin(key)}: {key}: the training samples have no fact {name}{near} they have {', '.join(sizes) or 'none'}")
    return sizes[name]
