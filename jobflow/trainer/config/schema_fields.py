"""Fields of the schema: sections, keys with their notes, and common types."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field
from pydantic.fields import FieldInfo

from jobflow.core.dataclass import dataclass


@dataclass(frozen=True)
class Notes:
    """Notes of a key that pydantic does not store: its names in other programs, and its value derived from other keys."""

    also: tuple[str, ...]
    derived: str


def key(meaning: str, also: str = "", derived: str = "", **bounds: Any) -> Any:
    """Return the pydantic field of a key.

    `also` lists names of the key in other programs. `derived` is the value of an omitted key, usually a reference to another key.
    """
    field: FieldInfo = Field(description=meaning, **bounds)
    field.metadata.append(Notes(tuple(also.split()), derived))
    return field


class Section(BaseModel):
    """A frozen section; unknown keys, numbers written as strings, infinity and NaN are errors."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, allow_inf_nan=False)


Count = Annotated[int, Field(ge=1)]
Positive = Annotated[float, Field(gt=0)]
NotNegative = Annotated[float, Field(ge=0)]
