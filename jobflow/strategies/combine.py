"""Combinations of strategies, each along one dimension of a mesh of ranks."""

from __future__ import annotations

import math
from collections.abc import Sequence

from jobflow.core.dataclass import dataclass
from jobflow.core.errors import ConfigError, user_line
from jobflow.core.scope import View
from jobflow.strategies.data_parallel import data_parallel
from jobflow.strategies.data_parallel import zero as zero_of
from jobflow.strategies.pipeline import pipeline
from jobflow.strategies.strategy_class import Strategy
from jobflow.strategies.tensor_parallel import Patterns, tensor_parallel


@dataclass(frozen=True)
class Combined(Strategy):
    """A combination of strategies from the outermost mesh dimension to the innermost; neighbouring ranks differ along the last one."""

    parts: tuple[Strategy, ...]

    @property
    def size(self) -> int | None:  # type: ignore[override]
        each = [part.size for part in self.parts]
        return None if None in each else math.prod(size for size in each if size is not None)

    @property
    def dimensions(self) -> tuple[Strategy, ...]:
        return tuple(dimension for part in self.parts for dimension in part.dimensions)

    @property
    def view(self) -> View | None:
        return next((part.view for part in self.parts if part.view is not None), None)

    @property
    def microbatches(self) -> int | None:
        return next((part.microbatches for part in self.parts if part.microbatches is not None), None)

    @property
    def schedule(self) -> str | None:
        return next((part.schedule for part in self.parts if part.schedule is not None), None)


def combine(*strategies: Strategy) -> Strategy:
    """Combine strategies; the first one is the outermost dimension of the ranks.

        combine(pipeline(2), data_parallel(2), tensor_parallel(2))

    The product of the sizes is the number of ranks; one size may be omitted.  Strategies split variables along different mesh dimensions.
    Raises: ConfigError if an argument is not a strategy, or without arguments.
    """
    for strategy in strategies:
        if not isinstance(strategy, Strategy):
            raise ConfigError(f"strategies.combine at {user_line()}: arguments must be strategies such as data_parallel(2), not {strategy!r}")
    if not strategies:
        raise ConfigError(f"strategies.combine at {user_line()}: no argument; pass at least one strategy")
    return strategies[0] if len(strategies) == 1 else Combined(strategies)


def mesh(
    *,
    data: int | None = None,
    tensor: int = 1,
    pipeline: int = 1,
    zero: int = 0,
    microbatches: int | None = None,
    schedule: str = "1f1b",
    stages: int | None = None,
    cuts: Sequence[str] = (),
    columns: Patterns = (),
    rows: Patterns = (),
    vocabulary: Patterns = (),
    least: int = zero_of.least,
) -> Strategy:
    """Return a strategy over pipeline x data x tensor ranks, tensor innermost; `zero` is the ZeRO stage along the data dimension.

    `data=None` means all ranks that the other dimensions do not use.  Further arguments are passed to `pipeline`, `tensor_parallel` and `zero`.
    """
    if pipeline == 1 and (microbatches or stages or cuts):
        raise ConfigError(
            f"strategies.mesh at {user_line()}: microbatches, stages and cuts require pipeline=2 or more; to accumulate gradients without a "
            f"pipeline, set train.num_gradient_accumulation_steps"
        )
    if tensor == 1 and (columns or rows or vocabulary):
        raise ConfigError(f"strategies.mesh at {user_line()}: columns, rows and vocabulary require tensor=2 or more")
    dimensions: list[Strategy] = []
    if pipeline > 1:
        dimensions.append(_pipeline(pipeline, microbatches, schedule, stages, tuple(cuts)))
    if zero:
        dimensions.append(zero_of(zero, data, least))
    elif data != 1 or (tensor == 1 and pipeline == 1):
        dimensions.append(data_parallel(data))
    if tensor > 1:
        dimensions.append(tensor_parallel(tensor, columns, rows, vocabulary))
    return combine(*dimensions)


_pipeline = pipeline
