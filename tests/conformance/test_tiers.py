"""The same records in the tiers of kernels in which single operations do not run by themselves: compiled loops, and the reference."""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache

import conformance_deliberate as deliberate
import pytest
from conformance_replay import replay_of
from test_recorded import ENTRIES, NUMBERS

from jobflow.kernels import compiled_loops, registry
from jobflow.kernels.target import target_of
from jobflow.tensors import run
from jobflow.tensors.state import state

#: of the functions, modules and optimizers every so manieth is always replayed, the others with --full
STEP = 24
TIERS = ("llvm", "reference")
PARTS = [pytest.param(tier, part, marks=pytest.mark.full if part else ()) for tier in TIERS for part in range(STEP)]


@pytest.fixture
def kernels(request: pytest.FixtureRequest) -> Iterator[None]:
    """Have operations that run at once bound in a tier, however small they are."""
    known = state().prepared
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(run, "CPU", target_of("cpu", request.getfixturevalue("tier")))
        patch.setattr(compiled_loops, "FEWEST", 1)
        patch.setattr(registry, "_unsupported_reason", lru_cache(registry._unsupported_reason.__wrapped__))
        known.clear()
        yield
    known.clear()


@pytest.mark.parametrize(("tier", "part"), PARTS)
@pytest.mark.usefixtures("kernels")
def test_recorded_cases_in_a_tier(tier: str, part: int) -> None:
    wrong = []
    names = sorted(ENTRIES)[part::STEP]
    for name in names:
        outcomes = deliberate.marked(list(replay_of(name, ENTRIES[name], NUMBERS).outcomes()))
        wrong += [f"{outcome.kind}: {outcome.key}: {outcome.reason}" for outcome in outcomes if outcome.kind not in ("equal", "deliberate")]
    assert names
    assert wrong == []
