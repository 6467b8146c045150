"""The search for missing rules finds removed rules, and nothing if the rules are complete."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from missing_rules import missing

from jobflow.ops.activation import Sigmoid
from jobflow.ops.matmul import MatMul

ROOT = Path(__file__).parents[2]


def missing_signatures(cls: Any) -> set[str]:
    return {str(signature) for signature in missing(next(cls.samples()))}


@pytest.mark.parametrize(
    ("changes", "signature"),
    [
        ({"linear": ((1,),)}, "P B -> P"),
        ({"spec": "mK,Kn->mn"}, "S(1) S(0) -> P"),
        ({"spec": "Mk,kn->Mn"}, "S(0) B -> S(0)"),
    ],
)
def test_a_removed_rule_is_missing(changes: dict[str, Any], signature: str, monkeypatch: pytest.MonkeyPatch) -> None:
    right = MatMul.rule
    assert signature not in missing_signatures(MatMul)
    monkeypatch.setattr(MatMul, "rule", lambda self, *types: replace(right(self, *types), **changes))
    assert missing_signatures(MatMul) == {signature}


def test_increasing_functions_of_partial_maxima_have_no_rule() -> None:
    assert missing_signatures(Sigmoid) == {"P(max) -> P(max)", "P(min) -> P(min)"}


@pytest.mark.full
def test_the_page_is_up_to_date() -> None:
    done = subprocess.run([sys.executable, "scripts/refresh_docs", "--rules", "--check"], cwd=ROOT, check=False)
    assert done.returncode == 0, "run scripts/refresh_docs --rules"
