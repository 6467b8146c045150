"""Fields of the schema: sections, keys with their notes, and common types."""

from __future__ import annotations

from typing import Annotated, Any, ClassVar, Self

from pydantic import BaseModel, ConfigDict, Field, model_serializer, model_validator
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


class OneOf(Section):
    """A map whose only key is a kind; `_such` describes an entry for messages."""

    _such: ClassVar[str]

    @model_validator(mode="after")
    def _is_one(self) -> Self:
        kinds = [name for name in type(self).model_fields if getattr(self, name) is not None]
        if len(kinds) != 1:
            raise ValueError(f"{self._such}; got {' and '.join(kinds) or 'none'}, each {type(self).__name__.lower()} begins with its own -")
        return self

    @property
    def kind(self) -> str:
        """The only key, such as "dense"."""
        return next(name for name in type(self).model_fields if getattr(self, name) is not None)

    @property
    def arguments(self) -> Section:
        """The value of the only key, such as a `Dense`."""
        return getattr(self, self.kind)

    @model_serializer
    def _written(self) -> dict[str, Any]:
        return {self.kind: self.arguments.model_dump()}


Count = Annotated[int, Field(ge=1)]
Positive = Annotated[float, Field(gt=0)]
NotNegative = Annotated[float, Field(ge=0)]
