"""What the legacy face kept under `experimental`."""

from jobflow.legacy.experimental import scope

__all__ = ["scope"]
