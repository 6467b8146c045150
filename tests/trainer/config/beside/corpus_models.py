"""Builders for the corpus: only their signatures matter."""

from __future__ import annotations

from typing import Any, Literal


def net(images: Any, labels: Any = None, *, classes: int = 10, width: float = 1.0, norm: Literal["batch", "layer"] = "batch") -> dict[str, Any]:
    return {"loss": images}


def deep(images: Any, labels: Any = None, *, depth: int, sizes: tuple[int, ...] = (3, 3), recompute: bool = False) -> dict[str, Any]:
    return {"loss": images}


def open_ended(images: Any, labels: Any = None, **rest: Any) -> dict[str, Any]:
    return {"loss": images}


number = 3


class Groups:
    """A place for a builder."""

    @staticmethod
    def net(images: Any, labels: Any = None, *, classes: int = 10) -> dict[str, Any]:
        return {"loss": images}
