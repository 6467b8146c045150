"""Conversion between text and tokens."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from functools import cached_property
from typing import Any

import numpy as np

from jobflow.core.errors import DataError
from jobflow.core.types import Array


class Vocabulary(ABC):
    """A bijection between tokens 0 .. size - 1 and texts."""

    size: int

    @abstractmethod
    def encode(self, text: str, what: str = "the text") -> Array:
        """Return the tokens of a text as int32[n]; raise DataError for a character without a token."""

    @abstractmethod
    def decode(self, tokens: Any) -> str:
        """Return the text that the tokens represent."""


class Bytes(Vocabulary):
    """The vocabulary of UTF-8 bytes."""

    size = 256

    def encode(self, text: str, what: str = "the text") -> Array:
        return np.frombuffer(text.encode(), np.uint8).astype(np.int32)

    def decode(self, tokens: Any) -> str:
        return np.asarray(tokens).astype(np.uint8).tobytes().decode(errors="replace")


class Characters(Vocabulary):
    """A vocabulary with one token per character of `characters`, in this order."""

    def __init__(self, characters: str) -> None:
        self.characters, self.size = characters, len(characters)
        if not characters or len(set(characters)) < len(characters):
            raise DataError(f"a vocabulary must contain at least one character, and none twice, not {characters!r}")

    @cached_property
    def _sorted(self) -> tuple[Array, Array]:
        codes = points(self.characters)
        order = np.argsort(codes)
        return codes[order], order.astype(np.int32)

    def encode(self, text: str, what: str = "the text") -> Array:
        codes, tokens = self._sorted
        characters = points(text)
        places = np.minimum(np.searchsorted(codes, characters), self.size - 1)
        unknown = np.flatnonzero(codes[places] != characters)
        if unknown.size:
            first = int(unknown[0])
            raise DataError(f"{what}: character {first} is {text[first]!r}, which is not in the vocabulary of {self.size}: {self.characters!r}")
        return tokens[places]

    def decode(self, tokens: Any) -> str:
        return "".join(self.characters[i] for i in np.asarray(tokens).reshape(-1).tolist())


def points(text: str) -> Array:
    """Return the code points of a text as uint32[n]."""
    return np.frombuffer(text.encode("utf-32-le", "surrogatepass"), np.uint32)


def vocabulary_of(facts: Mapping[str, Any]) -> Vocabulary:
    """Return the vocabulary in the `facts` of a text reader."""
    return Characters(facts["vocabulary"]) if facts["level"] == "character" else Bytes()
