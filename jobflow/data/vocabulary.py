"""Conversion between text and tokens: characters, bytes, and files `tokenizer.json` of the package `tokenizers` of Hugging Face."""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import cached_property, lru_cache
from typing import Any

import numpy as np

from jobflow.core.errors import DataError
from jobflow.core.extras import optional
from jobflow.core.types import Array
from jobflow.storage.remote import AnyPath
from jobflow.storage.untrusted import HEADER, Fault, content, json_tree

WHAT = 'reader "text", tokenizer'
#: characters that are encoded at once, because an encoding takes about a hundred bytes per token
PIECE = 1 << 20
#: unused token numbers that a vocabulary may have beyond its number of tokens
UNUSED = 1 << 16


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


class TokenizerFile(Vocabulary):
    """The vocabulary of a `tokenizer.json`; `text` is its content, and `what` names it in messages.

    Special tokens are not added, and truncation and padding of the file do not apply. Raises: DataError for other content.
    """

    def __init__(self, text: str, what: str = "the tokenizer") -> None:
        tokenizers = optional("tokenizers", WHAT)
        advice = "pass a file tokenizer.json of the package tokenizers, or create one with `jobflow tokenizer`"
        with _errors_of_package(f"{what} is not a tokenizer file", advice):
            tree = json_tree(text.encode())
            if not isinstance(tree, Mapping) or "model" not in tree:
                raise ValueError('it has no key "model"')
            self._tokenizer = tokenizers.Tokenizer.from_str(text)
            self._tokenizer.no_truncation()
            self._tokenizer.no_padding()
            self._tokenizer.post_processor = None  # it adds special tokens
            ids = self._tokenizer.get_vocab(with_added_tokens=True)
        self.size = max(ids.values(), default=-1) + 1
        if not ids or self.size > len(ids) + UNUSED:
            raise DataError(f"{what} has {len(ids):,} tokens with numbers up to {self.size - 1:,}; use a file whose tokens are numbered from 0")

    @property
    def text(self) -> str:
        """The content of the file, which checkpoints store."""
        return json.dumps(json.loads(self._tokenizer.to_str()), ensure_ascii=False, separators=(",", ":"))

    def encode(self, text: str, what: str = "the text") -> Array:
        ids: list[Array] = []
        with _errors_of_package(f"{what} cannot be encoded", "use a tokenizer of bytes, or one with an unknown token"):
            for piece in pieces_of(text):
                ids.append(np.array(self._tokenizer.encode(piece, add_special_tokens=False).ids, np.int32))
        return np.concatenate(ids) if ids else np.empty(0, np.int32)

    def decode(self, tokens: Any) -> str:
        return str(self._tokenizer.decode(np.asarray(tokens).reshape(-1).tolist(), skip_special_tokens=False))


@contextmanager
def _errors_of_package(message: str, advice: str) -> Iterator[None]:
    """Raise DataError for any error of the package in the block; a panic of its Rust code is no `Exception`."""
    try:
        yield
    except (KeyboardInterrupt, SystemExit, MemoryError):
        raise
    except BaseException as error:  # noqa: BLE001 - damaged files can raise any exception
        raise DataError(f"{message}: {type(error).__name__}: {error!s:.200}; {advice}") from None


def pieces_of(text: str) -> Iterator[str]:
    """Split a text into pieces of about PIECE characters that end with a line, if lines are shorter."""
    start = 0
    while start < len(text):
        stop = min(start + PIECE, len(text))
        if stop < len(text):
            stop = text.rfind("\n", start, stop) + 1 or stop
        yield text[start:stop]
        start = stop


def read_tokenizer(path: AnyPath, fault: Fault) -> TokenizerFile:
    """Return the vocabulary of a file `tokenizer.json`; raise the error of `fault`, or DataError, for a missing or damaged file."""
    try:
        text = content(path, HEADER, fault).decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise fault(f"{path} is not a tokenizer file: it is not UTF-8 at byte {error.start}; pass a file tokenizer.json") from None
    except FileNotFoundError:
        raise fault(f"there is no tokenizer file {path}; correct tokenizer, or create the file with `jobflow tokenizer`") from None
    except OSError as error:
        raise fault(f"{path}: {error.strerror or error}") from error
    return TokenizerFile(text, f"{WHAT}: {path}")


@lru_cache(maxsize=4)
def _stored(text: str) -> TokenizerFile:
    return TokenizerFile(text)


def vocabulary_of(facts: Mapping[str, Any]) -> Vocabulary:
    """Return the vocabulary in the `facts` of a text reader."""
    if facts["level"] == "byte":
        return Bytes()
    return _stored(facts["vocabulary"]) if facts["level"] == "token" else Characters(facts["vocabulary"])
