"""What the legacy face kept under `experimental`."""

from jobflow.experimental import scope

__all__ = ["scope"]
