"""The section `sweep` of the schema."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field

from jobflow.trainer.config.schema_fields import Count, Positive, Section, key

#: pattern of the name of a metric of training or evaluation
ANY_METRIC = r"^(train|validation)/\w+$"


class Uniform(Section):
    name: Annotated[Literal["uniform"], key("a number from low to high, all equally likely")]
    low: Annotated[float, key("smallest value", "min minimum")]
    high: Annotated[float, key("largest value", "max maximum")]


class LogUniform(Section):
    name: Annotated[Literal["loguniform"], key("a number from low to high, whose logarithm is uniform", "log_uniform")]
    low: Annotated[Positive, key("smallest value")]
    high: Annotated[Positive, key("largest value")]


class WholeNumber(Section):
    name: Annotated[Literal["int"], key("a whole number from low to high, both included", "integer randint")]
    low: Annotated[int, key("smallest value")]
    high: Annotated[int, key("largest value")]


class Choice(Section):
    name: Annotated[Literal["choice"], key("one of several values", "categorical")]
    values: Annotated[list[Any], key("the values", "options choices", min_length=1)]


Distribution = Annotated[Uniform | LogUniform | WholeNumber | Choice, Field(discriminator="name")]


class Sweep(Section):
    """Trials of the same training with other values, each a run in a folder of its own."""

    method: Annotated[
        Literal["grid", "random", "tpe"],
        key("grid: all combinations; random: samples of the distributions; tpe: samples near the best trials, by the package optuna", "strategy"),
    ] = "grid"
    values: Annotated[
        dict[str, list[Any] | Distribution],
        key("the changed keys, such as optimizer.lr, with a list of values or a distribution", "parameters params search_space", min_length=1),
    ]
    metric: Annotated[
        str | None,
        key("metric that orders the trials; null: validation/loss, or train/loss without data.validation", pattern=ANY_METRIC),
    ] = None
    mode: Annotated[Literal["min", "max"], key("min: smaller is better; max: larger is better", "goal direction")] = "min"
    trials: Annotated[int | None, key("number of trials of random and tpe", "num_samples n_trials", ge=1, le=10_000)] = None
    seed: Annotated[int, key("seed of the samples", ge=0, lt=2**63)] = 0
    jobs: Annotated[Count, key("number of trials that run at the same time, each in a process of its own", "n_jobs max_concurrent")] = 1
