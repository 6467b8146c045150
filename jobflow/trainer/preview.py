"""The preview of a run for `--dry-run`: its strategy, its steps, and the memory and communication of each rank.

The train job is compiled for full batches. No rank starts, and no file is written.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from jobflow.core.dataclass import dataclass
from jobflow.core.errors import counted
from jobflow.core.tables import TextTable
from jobflow.data.samples import Samples
from jobflow.plan.footprint import CATEGORIES
from jobflow.runtime.comm import shared_memory
from jobflow.runtime.world.environment import usable_cores
from jobflow.trainer.figures import Figures, figures_in, host_memory
from jobflow.trainer.freezing import frozen_text
from jobflow.trainer.jobs import Jobs, prepared
from jobflow.trainer.optimizing import slow_start
from jobflow.trainer.parameter_groups import groups_text
from jobflow.trainer.start_from import comparison
from jobflow.trainer.units import count_text, size_text

#: a warning appears if a rank gets fewer rows of a batch at a time, because kernels are then inefficient
FEW_ROWS = 4
#: fraction of the machine's memory above which a warning appears
FULL = 0.8


@dataclass(frozen=True)
class Schedule:
    """The numbers of samples and steps of a run."""

    #: None for a stream of unknown length
    samples: int | None
    batch_size: int
    steps_per_epoch: int
    steps: int
    #: samples of the last batch of an epoch, if it is smaller
    last: int | None


@dataclass(frozen=True)
class Preview:
    """The schedule, figures and warnings of a run, computed before its start."""

    name: str
    strategy: str
    schedule: Schedule
    figures: Figures
    warnings: tuple[str, ...]
    #: the tables that a run prints before its first step
    before: str = ""

    def text(self) -> str:
        """Return the preview as text."""
        parts = [
            f"{self.name}: {self.strategy}",
            *([self.before] if self.before else []),
            str(TextTable([], [*summary(self.schedule, self.figures)])),
            "\n".join(["Memory of each rank at its peak", str(memory_table(self.figures)), *common_memory(self.figures)]),
            f"Communication of each rank in a step\n{traffic_table(self.figures) or 'no communication'}",
            f"Plan of each rank\n{plan_table(self.figures)}",
        ]
        if self.warnings:
            parts.append("\n".join([f"{len(self.warnings)} warning{'s' * (len(self.warnings) > 1)}", *(f"  ! {text}" for text in self.warnings)]))
        return "\n\n".join([*parts, "This was a dry run; no step was executed."])


def preview(loaded: Any) -> Preview:
    """Return the preview of a configuration, with the number of ranks of a run on this machine."""
    with prepared(loaded, only=("train", "validation")) as jobs:
        result = preview_of(jobs)
        jobs.check_metrics()
        start = "" if loaded.config.start_from is None else comparison(jobs)
        tables = filter(None, [start, frozen_text(loaded, jobs.variables), groups_text(loaded, jobs.variables)])
        return replace(result, before="\n".join(tables), warnings=(*result.warnings, *slow_start(loaded, jobs.steps)))


def preview_of(jobs: Jobs) -> Preview:
    """Return the preview of prepared jobs."""
    config, training, size = jobs.config, jobs.samples["train"], jobs.config.data.batch_size
    samples = len(training) if isinstance(training, Samples) else None
    last = None if config.data.drop_last or samples is None or samples % size == 0 else samples % size
    schedule = Schedule(samples, size, jobs.steps_per_epoch, jobs.steps, last)
    job = jobs.train(size if samples is None else min(size, samples))
    figures = figures_in(jobs.session, job.compile(jobs.session, job.declared_shapes(jobs.session), 0).programs)
    jobs.check_lengths()
    words = strategy_text(config.strategy, len(figures.ranks))
    return Preview(config.name, words, schedule, figures, tuple(warnings_of(figures, schedule, config.strategy)))


# -------------------------------------------------------------------- words


def strategy_text(strategy: Any, ranks: int) -> str:
    """Describe the parallelism of a run."""
    if ranks == 1:
        first = "one rank, no parallelism"
    elif strategy.view == "mirrored":
        first = f"{ranks} ranks, each with its own tensors and its part of every batch (mirrored view)"
    else:
        first = f"{ranks} ranks: {', '.join(dimensions(strategy, ranks)) or 'layouts chosen by the compiler'}"
    return "; ".join([first, *extras(strategy)])


def dimensions(strategy: Any, ranks: int) -> Iterator[str]:
    """Yield a description of each dimension of the mesh."""
    tensor, pipeline = strategy.tensor or 1, strategy.pipeline or 1
    data = strategy.data or max(ranks // (tensor * pipeline), 1)
    if pipeline > 1:
        yield f"{pipeline} pipeline stages"
    if data > 1:
        each = f"{data} groups of ranks" if tensor * pipeline > 1 else f"{data} ranks"
        yield f"every batch is split over {each} (data parallel)"
    if tensor > 1:
        yield f"tensors of the model are split over {tensor} ranks (tensor parallel)"


def extras(strategy: Any) -> Iterator[str]:
    """Yield descriptions of the strategy's options outside of the mesh, such as ZeRO, accumulation and precision."""
    sharded = {1: "optimizer state is", 2: "gradients and optimizer state are", 3: "parameters, gradients and optimizer state are"}
    if strategy.zero:
        yield f"{sharded[strategy.zero]} sharded (ZeRO {strategy.zero})"
    if (strategy.accumulation or 1) > 1:
        yield f"gradients are accumulated over {strategy.accumulation} parts of a batch"
    if strategy.microbatches and (strategy.pipeline or 1) > 1:
        yield f"{strategy.microbatches} microbatches in the pipeline"
    if strategy.recompute:
        yield "activations are recomputed in the backward pass"
    if strategy.precision and strategy.precision != "float32":
        yield f"matrix products in {strategy.precision}"


def summary(schedule: Schedule, figures: Figures) -> Iterator[tuple[str, str]]:
    """Yield (label, text) for each of the first lines of the preview."""
    each = schedule.steps_per_epoch
    yield "parameters", count_text(figures.parameters)
    yield "samples", f"{'a stream' if schedule.samples is None else f'{schedule.samples:,}'} for training, {schedule.batch_size:,} in a batch"
    epochs = f": {schedule.steps / each:.4g} epoch{'' if schedule.steps == each else 's'} of {each:,}" if each else ""
    yield "steps", f"{schedule.steps:,}{epochs}"
    if figures.operations:
        yield "operations of a step", f"{count_text(figures.operations)} in products and convolutions, all ranks together"
    yield "checkpoint", f"about {size_text(figures.variable_bytes)}, {figures.variables} tensors"
    yield "memory", f"{size_text(figures.largest)} on the rank with the largest total"


def memory_table(figures: Figures) -> TextTable:
    """Return a table of each rank's memory at its peak; consecutive ranks with equal figures share a row."""
    used = [category for category in CATEGORIES if any(f.memory.at_peak[category] for f in figures.ranks)]
    rows = []
    for ranks, figure in alike(figures, lambda f: (f.memory, f.common)):
        sizes = [size_text(figure.memory.at_peak[category]) if figure.memory.at_peak[category] else "-" for category in used]
        rows.append([ranks, *sizes, size_text(figure.memory.total), figure.memory.peak])
    return TextTable(["rank", *used, "allocated", "peak at"], rows, right=range(1, len(used) + 2))


def common_memory(figures: Figures) -> list[str]:
    """Return a list with a sentence about the variables that the ranks of a machine share; [] without shared variables."""
    common = max((f.common for f in figures.ranks), default=0)
    return [f"{size_text(common)} of the variables are stored once, in memory shared by all ranks of a machine"] if common else []


def traffic_table(figures: Figures) -> TextTable | None:
    """Return a table of bytes that each rank sends, by kind of communication; None without communication."""
    kinds = figures.kinds()
    rows = []
    for ranks, figure in alike(figures, lambda f: f.traffic):
        cells = [f"{size_text(t.nbytes)} in {t.operations}" if (t := figure.traffic.get(kind)) else "-" for kind in kinds]
        rows.append([ranks, *cells, size_text(figure.sent)])
    return TextTable(["rank", *(kind.replace("_", "-") for kind in kinds), "sends"], rows, right=range(1, len(kinds) + 2)) if kinds else None


def plan_table(figures: Figures) -> TextTable:
    """Return a table of the numbers of computing and communicating instructions per rank."""
    rows = [[ranks, f.computing, f.communicating] for ranks, f in alike(figures, lambda f: (f.computing, f.communicating))]
    return TextTable(["rank", "computing instructions", "communications"], rows, right=(1, 2))


def alike(figures: Figures, key: Any) -> Iterator[tuple[str, Any]]:
    """Yield (range, figures) for each group of consecutive ranks with equal `key(figures)`; the range is a text such as "0-3" or "4"."""
    first = 0
    for i, figure in enumerate(figures.ranks):
        if i + 1 == len(figures.ranks) or key(figures.ranks[i + 1]) != key(figure):
            yield (f"{first}-{i}" if i > first else str(i)), figure
            first = i + 1


# -------------------------------------------------------------------- warnings


def warnings_of(figures: Figures, schedule: Schedule, strategy: Any) -> Iterator[str]:
    """Yield warnings about idle ranks, batches, cores and memory."""
    ranks = len(figures.ranks)
    idle = [str(f.rank) for f in figures.ranks if f.computing == 0]
    if idle:
        yield f"rank{'s' * (len(idle) > 1)} {', '.join(idle)} without computation"
    yield from _batch_warnings(schedule, strategy, ranks)
    if ranks > len(usable_cores()):
        yield f"{ranks} ranks for {len(usable_cores())} cores of this machine; on one machine they share cores"
    memory, whole = host_memory(), sum(f.memory.total - f.common for f in figures.ranks) + max((f.common for f in figures.ranks), default=0)
    if whole > FULL * memory:
        yield f"the ranks allocate {size_text(whole)} together; this machine has {size_text(memory)}"
    yield from _shared_memory_warnings(figures)


def _shared_memory_warnings(figures: Figures) -> Iterator[str]:
    shared = sum(f.shared for f in figures.ranks) + max((f.common for f in figures.ranks), default=0)
    if len(figures.ranks) > 1 and shared > shared_memory.free():
        yield f"the ranks share {size_text(shared)}, more than the free shared memory; {shared_memory.shortage()}. The ranks send messages instead"


def _batch_warnings(schedule: Schedule, strategy: Any, ranks: int) -> Iterator[str]:
    if schedule.samples is not None and schedule.batch_size > schedule.samples:
        yield f"a batch of {schedule.batch_size} is larger than the data set of {counted(schedule.samples, 'sample')}"
    inner = (strategy.tensor or 1) * (strategy.pipeline or 1)
    cut = ranks if strategy.view == "mirrored" else strategy.data or max(ranks // inner, 1)
    parts = (strategy.accumulation or 1) * ((strategy.microbatches or 1) if (strategy.pipeline or 1) > 1 else 1)
    rows = schedule.batch_size / (cut * parts)
    if rows < FEW_ROWS and cut * parts > 1:
        yield f"a batch of {schedule.batch_size} gives each of {cut * parts} parts {rows:.3g} samples; larger batches use ranks better"
    elif schedule.batch_size % (cut * parts):
        yield f"a batch of {schedule.batch_size} does not divide into {cut * parts} equal parts; some ranks wait for others"
    if schedule.last is not None and schedule.last < cut:
        yield f"the last batch of an epoch has {counted(schedule.last, 'sample')} for {cut} parts of the ranks; data.drop_last: true omits it"
