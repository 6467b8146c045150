"""`flow.tensorrt`: calibrations for int8 in TensorRT, which runs no jobs here."""

from __future__ import annotations

from jobflow.core.notices import notice

__all__ = ["cache_int8_calibration", "write_int8_calibration"]


def cache_int8_calibration() -> None:
    """Accepted, without effect."""
    notice("flow.tensorrt has no effect and is ignored: jobs run in the precision that their configuration asks for")


def write_int8_calibration(path: str) -> None:
    """Accepted, without effect: nothing is written."""
    cache_int8_calibration()
