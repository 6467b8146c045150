"""Some random trainings: what is saved in the middle goes on elsewhere as if nothing had been; `scripts/fuzz_trainings` runs more."""

from __future__ import annotations

import pytest
from trainings import RUNS_BY_API, differences, drawn


@pytest.mark.parametrize("api", RUNS_BY_API)
@pytest.mark.parametrize("seed", [2, 5, 11, 117])
@pytest.mark.filterwarnings("ignore")
def test_losses_do_not_depend_on_devices_and_interruptions(api: str, seed: int) -> None:
    assert differences(drawn(seed), api) == []
