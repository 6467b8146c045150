"""Patterns and formats where matrices are multiplied by compiled loops: those of CPUs, but that no product is made faster column by column."""

from __future__ import annotations

from dataclasses import replace

from jobflow.kernels.cpu import cpu_patterns

PATTERNS = replace(cpu_patterns.PATTERNS, formats=replace(cpu_patterns.PATTERNS.formats, columns={}))
