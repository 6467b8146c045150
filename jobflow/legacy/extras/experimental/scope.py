"""`experimental.scope.config`: pipeline stages, and regions that are recomputed for the backward pass."""

from jobflow.core.scope import config

__all__ = ["config"]
