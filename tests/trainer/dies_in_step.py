"""`dies_in_step.py RANK CONFIGURATION SETTINGS`: `jobflow train`; the process of that rank exits in its sixth step with code 0."""

from __future__ import annotations

import os
import sys
from typing import Any

from jobflow.cli import main
from jobflow.runtime.world.environment import rank
from jobflow.trainer.jobs import Jobs

if __name__ == "__main__":
    inner, calls = Jobs.call, [0]

    def call(jobs: Jobs, *rest: Any) -> Any:
        calls[0] += 1
        if calls[0] == 6 and rank() == int(sys.argv[1]):
            os._exit(0)
        return inner(jobs, *rest)

    Jobs.call = call  # type: ignore[method-assign]
    settings = [word for setting in sys.argv[3:] for word in ("--set", setting)]
    sys.exit(main(["train", sys.argv[2], *settings]))
