"""`experimental.scope.config`: stages of a pipeline, and regions that are made again for the backward pass."""

from jobflow.core.scope import config

__all__ = ["config"]
