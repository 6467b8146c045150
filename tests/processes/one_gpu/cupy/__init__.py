"""A fake CuPy that finds one GPU, for programs that only count the GPUs."""

from __future__ import annotations

from types import SimpleNamespace

__version__ = "14.0.0"
cuda = SimpleNamespace(is_available=lambda: True, runtime=SimpleNamespace(getDeviceCount=lambda: 1))
