"""The namespace `flow.tensorrt`: int8 calibration for TensorRT, accepted without effect."""

from __future__ import annotations

from jobflow.core.notices import notice

__all__ = ["cache_int8_calibration", "write_int8_calibration"]


def cache_int8_calibration() -> None:
    """Do nothing but write a notice."""
    notice("flow.tensorrt has no effect and is ignored: jobs run in the precision of their configuration")


def write_int8_calibration(path: str) -> None:
    """Do nothing but write a notice."""
    cache_int8_calibration()
