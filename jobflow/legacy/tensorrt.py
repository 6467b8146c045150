"""`flow.tensorrt`: calibration for int8 in TensorRT, which is not used here."""

from __future__ import annotations

from jobflow.core.notices import notice

__all__ = ["cache_int8_calibration", "write_int8_calibration"]


def cache_int8_calibration() -> None:
    """Accept the call without an effect."""
    notice("flow.tensorrt has no effect and is ignored: jobs run in the precision that their configuration asks for")


def write_int8_calibration(path: str) -> None:
    """Accept the call without an effect."""
    cache_int8_calibration()
