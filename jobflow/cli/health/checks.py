"""All checks of `jobflow doctor`, in their order."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from jobflow.cli.health import gpu, libraries, machine, ranks
from jobflow.cli.health.finding import Finding

CHECKS: tuple[Callable[[], Iterator[Finding]], ...] = (
    machine.python,
    libraries.numpy,
    machine.job,
    machine.cores,
    machine.memory,
    ranks.mpi,
    machine.shared_memory,
    gpu.gpu,
    machine.disk,
    libraries.packages,
)
