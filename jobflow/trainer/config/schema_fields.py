"""Fields of the schema: sections, keys with their notes, and common types."""

from __future__ import annotations

from typing import Annotated, Any, ClassVar, Self

from pydantic import BaseModel, ConfigDict, Field, model_serializer, model_validator
from pydantic.fields import FieldInfo

from jobflow.core.dataclass import dataclass
from jobflow.core.imports import IMPORT_PATH


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
#: a fraction, or the decay rate of a running mean
Share = Annotated[float, Field(ge=0, lt=1)]
#: pattern of the name of an evaluation metric
METRIC = r"^validation/\w+$"
MetricKey = Annotated[str, Field(pattern=METRIC)]
Imported = Annotated[str, Field(pattern=IMPORT_PATH)]
#: the value of `name` that stands for an import path in messages and tables
IMPORTED = "module:function"


def selector(value: Any) -> str | None:
    """Return the section that the key `name` of a section selects: `IMPORTED` for an import path; None without a name."""
    name = value.get("name") if isinstance(value, dict) else getattr(value, "name", None)
    return None if name is None else IMPORTED if ":" in str(name) else str(name)
