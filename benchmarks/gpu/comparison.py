"""Comparison of jobflow and PyTorch: a table and a row for RESULTS.md."""

from __future__ import annotations

import datetime
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, Protocol

JOBFLOW, EAGER, COMPILED = "jobflow", "torch eager", "torch compile"
#: losses of the same batch
FIRST_LOSS, LOSS = "loss_2", "loss_10"
#: relative tolerance of the step-10 loss, by precision; on the small models the largest distances are 5e-5 and 0.0025
LOSS_TOLERANCE = {"float32": 0.005, "bfloat16": 0.01}
#: columns of RESULTS.md that hold a ratio: model and batch, in bfloat16
RESULTS_COLUMNS = (("gpt2", 8), ("gpt2", 16), ("resnet50", 128), ("resnet50", 256))


class HasResults(Protocol):
    results: list[dict[str, Any]]


def commit(root: Path) -> str:
    """Read the commit from .git without running git; return "unknown" on failure."""
    folder = root / ".git"
    try:
        head = (folder / "HEAD").read_text(encoding="utf-8").strip()
        if not head.startswith("ref: "):
            return head[:8]
        name = head.removeprefix("ref: ")
        if (folder / name).exists():
            return (folder / name).read_text(encoding="utf-8").strip()[:8]
        packed = (folder / "packed-refs").read_text(encoding="utf-8").splitlines()
        return next(line.split()[0][:8] for line in packed if line.endswith(f" {name}"))
    except (OSError, StopIteration):
        return "unknown"


def steps(outcomes: Iterable[HasResults]) -> dict[tuple[str, str, int, str], dict[str, Any]]:
    """Index the training-step results by side, model, batch and precision."""
    every = [result for outcome in outcomes for result in outcome.results if result.get("figure") == "step"]
    return {(row["side"], row["model"], row["batch"], row["precision"]): row for row in every}


def ratio(rows: dict[Any, dict[str, Any]], side: str, model: str, batch: int, precision: str) -> str:
    """Return jobflow's step time divided by that of `side`, or "-"."""
    ours, theirs = rows.get((JOBFLOW, model, batch, precision)), rows.get((side, model, batch, precision))
    return f"{ours['ms'] / theirs['ms']:.2f}" if ours and theirs else "-"


def disagreements(outcomes: Iterable[HasResults]) -> Iterator[str]:
    """Yield a line for each loss that did not fall, or is outside the tolerance around that of PyTorch eager."""
    rows = steps(outcomes)
    for (side, model, batch, precision), ours in rows.items():
        theirs = rows.get((EAGER, model, batch, precision))
        if side == JOBFLOW and not ours[LOSS] < ours[FIRST_LOSS]:
            yield f"{model}, batch {batch}, {precision}: the loss of one batch is {ours[FIRST_LOSS]:.6g} at step 2 and {ours[LOSS]:.6g} at step 10"
        if side != JOBFLOW or theirs is None:
            continue
        distance = abs(ours[LOSS] - theirs[LOSS]) / abs(theirs[LOSS])
        if not distance <= LOSS_TOLERANCE[precision]:  # NaN is a disagreement
            what = f"the loss of step 10 is {ours[LOSS]:.6g}, PyTorch's {theirs[LOSS]:.6g}"
            yield f"{model}, batch {batch}, {precision}: {what}; more than {LOSS_TOLERANCE[precision]:.1%} apart"


def report(outcomes: Iterable[HasResults], measured: str) -> Iterator[str]:
    """Yield the final report of `scripts/gpu_check speed`."""
    outcomes = list(outcomes)
    rows = steps(outcomes)
    if not rows:
        return
    yield "| model | batch | precision | jobflow ms | items/s | MiB | loss of step 10 | of eager | of compile | peers: ms | MiB | loss |"
    yield "|---|---:|---|---:|---:|---:|---:|---:|---:|---|---|---|"
    for (side, model, batch, precision), ours in rows.items():
        if side != JOBFLOW:
            continue
        peers = [rows.get((peer, model, batch, precision)) for peer in (EAGER, COMPILED)]
        of = [ratio(rows, peer, model, batch, precision) for peer in (EAGER, COMPILED)]
        own = f"{ours['ms']:.2f} | {ours['items_per_s']:.0f} | {_number(ours['peak_mib'], 0)} | {ours[LOSS]:.4f}"
        theirs = " | ".join(
            " / ".join(_number(peer and peer[name], digits) for peer in peers) for name, digits in (("ms", 2), ("peak_mib", 0), (LOSS, 4))
        )
        yield f"| {model} | {batch} | {precision} | {own} | {of[0]} | {of[1]} | {theirs} |"
    card = next((result["card"] for outcome in outcomes for result in outcome.results if "card" in result), "unknown card")
    cells = [
        f"{rows[key]['ms']:.1f} ms, {ratio(rows, EAGER, *key[1:])}, {ratio(rows, COMPILED, *key[1:])}" if key in rows else "-" for key in _keys()
    ]
    yield f"row for RESULTS.md: | {datetime.date.today()} | {card} | {measured} | {' | '.join(cells)} |"


def _keys() -> list[tuple[str, str, int, str]]:
    return [(JOBFLOW, model, batch, "bfloat16") for model, batch in RESULTS_COLUMNS]


def _number(value: float | None, digits: int) -> str:
    return "-" if value is None else f"{value:.{digits}f}"
