"""Comparisons between the clients of a job, which must trace equal programs and pass equal arguments."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from jobflow.core.errors import ArgumentError, JobError, user_line
from jobflow.core.types import Array
from jobflow.engine.compiled import Compiled
from jobflow.graph.graph_text import physical_text
from jobflow.kernels.target import Target
from jobflow.program.commands import ExchangeItems
from jobflow.program.rank_group import compare_programs
from jobflow.runtime.world.world import World
from jobflow.typing.lazy import Lazy

if TYPE_CHECKING:
    from jobflow.engine.job import Job


def compare_traced_programs(world: World, job: Job, compiled: Compiled, target: Target) -> None:
    """Raise JobError if the clients traced different programs of this job.  Collective over all clients."""
    lines = [f"kernels: {target}", *"\n".join(map(physical_text, compiled.programs)).splitlines()]
    exchange = partial(ExchangeItems, about=f"the programs of job {job.name}")
    if difference := compare_programs(lines, range(world.size), lambda item: world.call(exchange(item))):
        first, other = difference.ranks
        raise JobError(
            f"job {job.name} at {job.where}: ranks {first} and {other} traced different programs; with multi client, run the same script with "
            f"the same settings on every rank. {difference}"
        )


def compare_passed_arguments(world: World, job: Job, arrays: Mapping[str, Sequence[Array | Lazy]]) -> None:
    """Raise ArgumentError if the clients passed different arguments.  Collective over all clients."""
    mine = {name: digest(*map(_print, values)) for name, values in arrays.items()}
    for rank, others in enumerate(world.call(ExchangeItems(mine, f"the arguments of job {job.name}"))):
        different = [name for name in mine if others.get(name) != mine[name]]
        if different:
            raise ArgumentError(
                f'{job.name}({different[0]}=...) at {user_line()}: argument "{different[0]}" differs between ranks '
                f"{world.ranks[0].index} and {rank}; with multi client, pass the same whole arrays on "
                f"every rank: use the same seed for random inputs"
            )


def _print(value: Array | Lazy) -> str | memoryview:
    return value.fingerprint if isinstance(value, Lazy) else np.ascontiguousarray(value).data


def digest(*parts: str | memoryview) -> str:
    """Return the SHA-256 digest of the parts, as hexadecimal digits."""
    sha = hashlib.sha256()
    for part in parts:
        sha.update(part.encode() if isinstance(part, str) else part)
    return sha.hexdigest()
