"""Allocated and planned bytes of each rank, as JSON in a file: mpiexec -n N python window_memory.py OUT MODEL STRATEGY PRECISION."""

from __future__ import annotations

import json
import sys
from pathlib import Path

ROOT = Path(__file__).parents[3]
sys.path[:0] = [str(ROOT / "tests" / "runtime"), str(ROOT / "examples")]

import memory_cases  # noqa: E402

import jobflow as flow  # noqa: E402
from jobflow.engine.session import current_session  # noqa: E402
from jobflow.program.allocation import allocation  # noqa: E402
from jobflow.program.program import Program, StorageChoice  # noqa: E402
from jobflow.runtime.device import numpy_device  # noqa: E402


def main(out: str, model: str, strategy: str, precision: str) -> None:
    numpy_device.aligned_zeros = memory_cases.COUNTED
    make, batch = memory_cases.MODELS[model]
    train = make(flow.strategies.named(strategy), precision)
    for _ in range(2):
        train(*batch)  # on the client; the other ranks serve it until the program ends
    session = current_session()
    assert session.world is not None
    ranks = session.world.size
    allocated = session.world.call(memory_cases.allocated_in_windows, [None] * ranks)
    (compiled,) = session._compiled.values()
    storage = StorageChoice(share=True, io_buffers=True)
    planned = []
    for rank, program in enumerate(compiled.programs):
        figures = allocation(Program(program, storage, session.target()), rank, ranks, processes=True)
        assert figures is not None
        planned.append(figures.total - (figures.common if rank else 0))
    Path(out).write_text(json.dumps([allocated, planned]))


if __name__ == "__main__":
    main(*sys.argv[1:])
