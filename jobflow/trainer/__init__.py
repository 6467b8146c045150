"""Training from a configuration file: `train("run.yaml")`, or `jobflow train run.yaml`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from jobflow.trainer.loop import train as train

__all__ = ["train"]


def __getattr__(name: str) -> Any:
    """Import `train`, which needs pydantic, on first access."""
    if name == "train":
        from jobflow.trainer.loop import train

        return train
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
