"""Training from a configuration file: `train("run.yaml")`, or `jobflow train run.yaml`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from jobflow.trainer.callbacks import Callback as Callback
    from jobflow.trainer.loop import train as train
    from jobflow.trainer.training_run import TrainingRun as TrainingRun

__all__ = ["Callback", "TrainingRun", "train"]

_MODULES = {"Callback": "callbacks", "TrainingRun": "training_run", "train": "loop"}


def __getattr__(name: str) -> Any:
    """Import a public name on first access; `train` needs pydantic."""
    if name in _MODULES:
        from importlib import import_module

        return getattr(import_module(f"{__name__}.{_MODULES[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
