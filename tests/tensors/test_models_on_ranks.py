"""Models that create tensors on the device of their input, on one, two and four ranks under mpiexec."""

from __future__ import annotations

from pathlib import Path

import processes
import pytest

PROGRAMS = Path(__file__).parent / "programs"


@pytest.mark.mpi
@pytest.mark.full
def test_models_that_create_tensors_have_the_losses_of_one_rank() -> None:
    alone = processes.run(PROGRAMS / "models.py")
    assert (alone.code, alone.err, len(alone.lines)) == (0, "", 9)
    for ranks in (2, 4):
        several = processes.run(PROGRAMS / "models.py", ranks=ranks)
        assert (several.code, several.lines) == (0, alone.lines), several.err
    losses = {(line.split()[0], *line.split()[2:]) for line in alone.lines}
    assert len(losses) == 3, "eager, compiled and graph differ"
