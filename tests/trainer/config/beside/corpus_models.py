"""Builders for the corpus; only their signatures matter."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import date
from enum import Enum
from typing import Any, Literal

from typing_extensions import TypedDict

from jobflow.trainer import Callback


def net(images: Any, labels: Any = None, *, classes: int = 10, width: float = 1.0, norm: Literal["batch", "layer"] = "batch") -> dict[str, Any]:
    return {"loss": images}


def deep(images: Any, labels: Any = None, *, depth: int, sizes: tuple[int, ...] = (3, 3), recompute: bool = False) -> dict[str, Any]:
    return {"loss": images}


def open_ended(images: Any, labels: Any = None, **rest: Any) -> dict[str, Any]:
    return {"loss": images}


class Kind(Enum):
    PLAIN = "plain"
    ROUND = "round"


class Head(TypedDict):
    """A dict with known keys."""

    size: int
    mode: Literal["mean", "first"]


@dataclass
class Body:
    """A type of arguments."""

    depth: int
    width: float = 1.0


def of_kinds(images: Any, *, kind: Kind | None = None, head: Head | None = None, body: Body | None = None, since: date | None = None) -> Any:
    return {"loss": images}


number = 3


class Groups:
    """A namespace with a builder."""

    @staticmethod
    def net(images: Any, labels: Any = None, *, classes: int = 10) -> dict[str, Any]:
        return {"loss": images}


class Stop(Callback):
    def __init__(self, last: int, below: float = 0.0) -> None:
        self.last = last
