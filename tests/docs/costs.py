"""The table of docs/strategies.md: memory and traffic of a rank under each strategy, from the plans of the configuration that the page shows."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from pathlib import Path

import pages

import jobflow as flow
from jobflow.trainer.config import load
from jobflow.trainer.figures import Figures, RankFigures
from jobflow.trainer.preview import preview
from jobflow.trainer.units import size_text

#: keys of `strategy` in the configuration, each on four ranks but for the first
ALONE = "devices=1"
STRATEGIES = (
    ALONE,
    "data=4",
    "data=4 zero=1",
    "data=4 zero=2",
    "data=4 zero=3",
    "tensor=4",
    "data=2 tensor=2",
    "pipeline=4 microbatches=4",
)
HEAD = "| `strategy:` | variables | optimizer state | buffers | total | sent per step |\n|---|---|---|---|---|---|"


def figures(strategy: str) -> Figures:
    """Return the figures of the train job of the page's configuration; nothing runs."""
    settings = [f"strategy.{key}" for key in strategy.split()]
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "wide.yaml"
        path.write_text(pages.saved("strategies.md")["wide.yaml"], encoding="utf-8")
        try:
            return preview(load(path, settings if strategy == ALONE else [*settings, "strategy.devices=4"])).figures
        finally:
            flow.clear_default_session()


def table() -> str:
    rows = []
    for strategy in STRATEGIES:
        ranks = figures(strategy).ranks
        cells = [
            _largest(ranks, lambda rank: rank.memory.at_peak["variables"]),
            _largest(ranks, lambda rank: rank.memory.at_peak["optimizer state"]),
            _largest(ranks, lambda rank: rank.memory.allocated),
            _largest(ranks, lambda rank: rank.memory.total),
            _largest(ranks, lambda rank: rank.sent),
        ]
        keys = ", ".join(key.replace("=", ": ") for key in strategy.split())
        rows.append(f"| `{{{keys}}}` | {' | '.join(cells)} |")
    return "\n".join([HEAD, *rows])


def _largest(ranks: tuple[RankFigures, ...], value: Callable[[RankFigures], int]) -> str:
    most = max(map(value, ranks))
    return size_text(most) if most else "nothing"
