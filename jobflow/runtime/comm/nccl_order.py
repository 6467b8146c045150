"""The order in which NCCL adds the values of ranks, which its environment variables fix."""

from __future__ import annotations

import os

from jobflow.core.notices import notice

#: one algorithm and protocol for messages of all sizes, and no sums in switches
SETTINGS = {"NCCL_ALGO": "Ring", "NCCL_PROTO": "Simple", "NCCL_NVLS_ENABLE": "0"}
#: set when the first communicator of the process reads the variables
_started: list[bool] = []


def note_start() -> None:
    """Note that a communicator of this process is created."""
    _started.append(True)


def fix_order() -> None:
    """Set the variables that the user has not set; print a notice if communicators exist, because they do not read the variables again."""
    missing = {name: value for name, value in SETTINGS.items() if name not in os.environ}
    if missing and _started:
        settings = " ".join(f"{name}={value}" for name, value in missing.items())
        notice(
            "use_deterministic_algorithms comes too late for the sums of NCCL: call it before the first job or graph on several GPUs, "
            f"or set {settings}"
        )
        return
    os.environ.update(missing)
