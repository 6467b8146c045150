"""What all sections of a configuration have in common."""

from __future__ import annotations

from dataclasses import dataclass

from pydantic import BaseModel, ConfigDict


@dataclass(frozen=True)
class Derived:
    """Marks a key that follows from others if nobody writes it; `text` is what it has then, usually a reference."""

    text: str


class Section(BaseModel):
    """Frozen; unknown keys, numbers written as texts, infinity and what is no number are errors."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, allow_inf_nan=False)
