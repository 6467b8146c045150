"""Names, order and defaults of parameters are those that programs were written against."""

from __future__ import annotations

import inspect
import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from jobflow import distribute, initializers, layers, linalg, math, nn, random, regularizers
from jobflow.core import types
from jobflow.legacy import arrays, variables
from jobflow.legacy import loss_functions as losses

TABLE = Path(__file__).parent / "data" / "signatures.txt"
LINE = re.compile(r"(T\d) ([\w.]+)(\(.*\))\n")
SPACES = {"nn": nn, "layers": layers, "math": math, "linalg": linalg, "random": random, "regularizers": regularizers, "distribute": distribute}
TOP = (arrays, variables, initializers, distribute, losses, math)
FLOW = SimpleNamespace(float=types.float32, float32=types.float32)


def published() -> list[tuple[str, str]]:
    return [(m[2], m[3]) for m in LINE.finditer(TABLE.read_text(encoding="utf-8"))]


def ours(name: str) -> Any:
    space, _, word = name.rpartition(".")
    if space == "nn" and isinstance(getattr(nn, word), type):  # in the body of a job
        return getattr(nn, word).job_function
    homes = (SPACES[space],) if space else TOP
    return next(getattr(home, word) for home in homes if hasattr(home, word))


def parameters(function: Any) -> list[tuple[str, Any]]:
    """(name, default) of each positional parameter, in order."""
    found = inspect.signature(function).parameters.values()
    assert all(p.kind is p.POSITIONAL_OR_KEYWORD for p in found)
    return [(p.name, p.default) for p in found]


def expected(text: str) -> list[tuple[str, Any]]:
    space: dict[str, Any] = {"flow": FLOW, "distribute": distribute}
    exec(f"def published{text}: ...", space)
    return parameters(space["published"])


def test_the_table_is_read() -> None:
    assert len(published()) > 200


@pytest.mark.parametrize(("name", "text"), published(), ids=[name for name, _ in published()])
def test_parameters(name: str, text: str) -> None:
    assert parameters(ours(name)) == expected(text)
