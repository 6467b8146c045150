"""PyTorch's path of `flow.from_dlpack` and `flow.to_dlpack`."""

from jobflow.functional.capsules import from_dlpack as from_dlpack
from jobflow.functional.capsules import to_dlpack as to_dlpack

__all__ = ["from_dlpack", "to_dlpack"]
