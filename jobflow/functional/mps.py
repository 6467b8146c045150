"""The namespaces `flow.mps` and `flow.xpu`: devices that do not exist, so that programs can query them."""

from __future__ import annotations

from typing import Any

from jobflow.functional import sampling


def is_available() -> bool:
    """Return False: there are no devices of this kind."""
    return False


def device_count() -> int:
    """Return 0: there are no devices of this kind."""
    return 0


def synchronize(device: Any = None) -> None:
    """Do nothing; operations have ended when they return."""


def empty_cache() -> None:
    """Do nothing; no memory of such devices is cached."""


def manual_seed(seed: int) -> None:
    """Set the seed as `flow.manual_seed` does."""
    sampling.manual_seed(seed)


def seed() -> None:
    """Set a random seed, as `flow.seed` does."""
    sampling.seed()


def current_allocated_memory() -> int:
    """Return 0: there are no devices of this kind."""
    return 0


def driver_allocated_memory() -> int:
    """Return 0: there are no devices of this kind."""
    return 0
