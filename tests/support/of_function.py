"""A graph of any function."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jobflow as flow


class OfFunction(flow.nn.Graph):  # type: ignore[misc]
    """A graph of one function of tensors."""

    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__()
        self.function = [function]

    def build(self, *tensors: Any) -> Any:
        return self.function[0](*tensors)
