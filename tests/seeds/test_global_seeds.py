"""The programs of the documents about global tensors, as they are written, on ranks that are threads: what each rank prints."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from jobflow.core import notices

HERE = Path(__file__).parent
from ranks import on_ranks  # noqa: E402 - from the folder that has just become known


@pytest.fixture(autouse=True)
def quiet(capsys: pytest.CaptureFixture[str]) -> Iterator[None]:
    """Notices are given anew: that there is no GPU, and that a form of placements is old."""
    notices.forget()
    yield
    capsys.readouterr()


def run(program: str, ranks: int, inspect_names: Callable[[dict[str, Any]], Any] | None = None) -> list[tuple[list[str], Any]]:
    """Return the output of each rank, and the result of `inspect_names` for the program's final names."""
    path = HERE / "programs" / program
    code = compile(path.read_text(encoding="utf-8"), str(path), "exec")

    def on_rank(rank: int) -> tuple[list[str], Any]:
        printed: list[str] = []
        names = {"__name__": "__main__", "__file__": str(path), "print": lambda *values: printed.append(" ".join(map(str, values)))}
        exec(code, names)
        return printed, inspect_names(names) if inspect_names is not None else None

    return on_ranks(ranks, on_rank)


def test_strategies() -> None:
    def values_of(names: dict[str, Any]) -> Any:
        return names["x"].numpy(), names["w"].numpy(), names["out"].numpy(), names["in_stage0"].numpy(), names["out_stage1"].numpy()

    for printed, (x, w, out, first, last) in run("global_on_threads/strategies.py", 2, values_of):
        assert printed == [
            "jobflow.Size([4, 8])",
            "jobflow.Size([4, 8])",
            "(jobflow.sbp.split(dim=0),)",
            "jobflow.Size([4, 8])",
            "(jobflow.sbp.split(dim=1),)",
            "jobflow.Size([4, 8])",
            "jobflow.Size([4, 3])",
            'jobflow.placement(type="cuda", ranks=[1])',
        ]
        np.testing.assert_allclose(out, x @ w, rtol=1e-5, atol=1e-6)
        assert first.shape == (4, 5) and last.shape == (4, 3) and np.abs(last).min() > 0


@pytest.mark.parametrize("program", ["global/mixed_eager.py", "global/mixed_graph.py"])
def test_mixed_parallelism(program: str) -> None:
    def values_of(names: dict[str, Any]) -> Any:
        model = names["graph"].model if "graph" in names else names["model"]
        weights = [model.m_stage0.w, model.m_stage1.w]
        return [names["in_stage0"].numpy(), *(w.numpy() for w in weights), names["out_stage0"].numpy(), names["out_stage1"].numpy()]

    for printed, (x, w0, w1, first, second) in run(program, 4, values_of):
        assert printed == ["jobflow.Size([4, 8]) jobflow.Size([4, 3])"]
        np.testing.assert_allclose(first, x @ w0, rtol=1e-5, atol=1e-5)
        np.testing.assert_allclose(second, x @ w0 @ w1, rtol=1e-4, atol=1e-5)


def test_two_consoles() -> None:
    def values_of(names: dict[str, Any]) -> Any:
        return [names[name].numpy() for name in ("x_global", "x", "w1", "w2", "z")]

    consoles = run("global_on_threads/interactive.py", 2, values_of)
    size = "jobflow.Size([4, 5])"
    for rank, (printed, (together, x, w1, w2, z)) in enumerate(consoles):
        assert [printed[0], *printed[2:]] == [
            size,
            size,
            "(jobflow.sbp.split(dim=0),)",
            "jobflow.Size([4, 8])",
            "(jobflow.sbp.split(dim=1),)",
            "jobflow.Size([4, 8])",
            "(jobflow.sbp.split(dim=1),)",
            "jobflow.Size([4, 6])",
        ]
        number = r" *-?\d\.\d{4}(e[-+]\d\d)?"
        rows = ",\n        ".join([rf"\[{', '.join([number] * 5)}\]"] * 2)
        assert re.fullmatch(rf"tensor\(\[{rows}\],\s+device='cuda:{rank}',\s+dtype=jobflow.float32\)", printed[1]), printed[1]
        assert (together[:2] != together[2:]).any(), "each console draws tensors of its own"
        np.testing.assert_allclose(z, x @ w1 @ w2, rtol=1e-4, atol=1e-5)
    assert consoles[0][0][1] != consoles[1][0][1]
