"""A rank of a run in which only rank 1 receives SIGTERM, in its third step; arguments: the configuration, and settings."""

from __future__ import annotations

import os
import signal
import sys
from typing import Any

from jobflow.trainer.config import load
from jobflow.trainer.jobs import Jobs
from jobflow.trainer.loop import train


def main() -> int:
    inner, calls = Jobs.call, [0]

    def call(jobs: Jobs, *rest: Any) -> Any:
        calls[0] += 1
        if calls[0] == 3 and os.environ["PMI_RANK"] == "1":
            os.kill(os.getpid(), signal.SIGTERM)
        return inner(jobs, *rest)

    Jobs.call = call  # type: ignore[method-assign]
    outcome = train(load(sys.argv[1], sys.argv[2:]))
    print(outcome.message)
    return outcome.exit_code


if __name__ == "__main__":
    sys.exit(main())
