"""Programs of the documents about global tensors, in `tests/seeds/programs`, on placements of any type."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from ranks import on_ranks

import jobflow as flow
from jobflow.core.errors import PlacementError
from jobflow.tensors.gpus import gpu_count, gpu_of
from jobflow.tensors.state import state

FOLDER = Path(__file__).parents[1] / "seeds" / "programs"
#: the programs, and the numbers of their ranks
PROGRAMS = {
    f"{path.parent.name}/{path.name}": 4 if path.stem.startswith("mixed_") else 2
    for path in sorted([*FOLDER.glob("global/*.py"), *FOLDER.glob("global_on_threads/*.py")])
    if path.stem != "in_turn"
}


def results(program: str, type: str) -> list[dict[str, Any]]:
    """Run a program with `type` as the type of its placements, on ranks that are threads; return its tensors on each rank as arrays.

    Tensors must be on the GPU of their rank, if there is one and `type` is "cuda".
    """
    path = FOLDER / program
    code = compile(path.read_text(encoding="utf-8").replace('"cuda"', f'"{type}"'), str(path), "exec")

    def on_rank(rank: int) -> dict[str, Any]:
        flow.manual_seed(7)
        names: dict[str, Any] = {"__name__": "__main__", "__file__": str(path), "print": lambda *values: None}
        exec(code, names)
        tensors = {name: x for name, x in names.items() if isinstance(x, flow.Tensor)}
        for name, x in tensors.items():
            if x.is_global and rank in x.placement.ranks.ravel():
                expected = state().gpus[rank % gpu_count(state())] if type == "cuda" and gpu_count(state()) else None
                if x.placement.type != type or gpu_of(x.array) is not expected:
                    raise PlacementError(f"{program}: {name} is on {x.placement} and {gpu_of(x.array)}, not on {expected or 'the host'}")
        return {name: x.numpy() for name, x in tensors.items()}

    return on_ranks(PROGRAMS[program], on_rank, anew=True)


def compare(program: str, ours: list[dict[str, Any]], theirs: list[dict[str, Any]], values: bool = True) -> None:
    """Raise AssertionError unless two runs have tensors of equal names, shapes, types and, if `values`, elements on each rank."""
    assert [list(each) for each in ours] == [list(each) for each in theirs] and ours[0]
    for rank, (mine, other) in enumerate(zip(ours, theirs, strict=True)):
        for name, x in mine.items():
            assert (x.shape, x.dtype) == (other[name].shape, other[name].dtype), name
            if values:
                np.testing.assert_allclose(x, other[name], rtol=1e-5, atol=1e-6, err_msg=f"{program}, rank {rank}, {name}")
