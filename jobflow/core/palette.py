"""Colours of HTML in notebooks, of medium lightness, because they must be legible on light and dark pages."""

from __future__ import annotations

BLUE, SKY, GREEN, AMBER, PURPLE, GREY = "#2f8fd0", "#5fb8ea", "#1fa57c", "#e0a020", "#cc79a7", "#8a929a"
ORANGE, RED = "#e8743b", "#d9534f"
