"""Patterns and formats of CPUs whose products are compiled loops: no product is faster in column-major order."""

from __future__ import annotations

from dataclasses import replace

from jobflow.kernels.cpu import cpu_patterns

PATTERNS = replace(cpu_patterns.PATTERNS, formats=replace(cpu_patterns.PATTERNS.formats, columns={}))
