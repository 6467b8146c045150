"""The reader "text": windows of characters, bytes or parts of words, with the same tokens shifted by one as targets."""

from __future__ import annotations

import ast
import os
import re
import sysconfig
import warnings
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from functools import lru_cache
from itertools import accumulate
from pathlib import Path
from pydoc_data.topics import topics
from typing import Any, Literal
from zlib import crc32

import numpy as np

from jobflow.core.errors import ArgumentError
from jobflow.core.types import Array, int32
from jobflow.data.files import UTF8_MARK, content_of, fault_of, files_at, text_of
from jobflow.data.samples import Field, Samples
from jobflow.data.vocabulary import Bytes, Characters, TokenizerFile, Vocabulary, points, read_tokenizer
from jobflow.storage.remote import AnyPath, path_of
from jobflow.storage.untrusted import MEMORY

WHAT = 'reader "text"'
fault = fault_of(WHAT)


class Text(Samples):
    """Windows of `length` tokens, int32[length]: `tokens`, and `targets` with the tokens one position later.

    `path` is a file, or a folder whose files that match `pattern` are concatenated in the order of their names. Without a path the text is Python's
    own documentation. `level` selects the tokens: characters, bytes, or those of `tokenizer`, the path of a file `tokenizer.json`. Characters form a
    `vocabulary` unless one is passed; with a tokenizer, `vocabulary` is the content of its file. Bytes are read from memory-mapped files, which may
    be larger than memory. A window starts every `stride` tokens, by default every `length`. The last fraction `validation` of the text is for
    validation. A byte-order mark is not part of the text.
    """

    what = WHAT

    def __init__(
        self,
        path: str | None = None,
        pattern: str = "*.txt",
        level: Literal["character", "byte", "token"] = "character",
        length: int = 128,
        stride: int | None = None,
        split: Literal["all", "train", "validation"] = "train",
        validation: float = 0.1,
        vocabulary: str | None = None,
        tokenizer: str | None = None,
    ) -> None:
        _check(level, length, stride, split, validation)
        if (level == "byte" and tokenizer is not None) or (level == "token" and tokenizer is None and vocabulary is None):
            raise ArgumentError(f"{WHAT}: level is {level!r} and tokenizer {tokenizer!r}; omit level and pass the path of a tokenizer.json")
        self.level = level if tokenizer is None else "token"
        self.length, self.stride = length, stride or length
        known = None if self.level == "byte" else _vocabulary(vocabulary if level == self.level else None, tokenizer, self.level)
        parts, self.vocabulary = _bytes(path, pattern) if self.level == "byte" else _encoded(path, pattern, known)
        self._stops = [0, *accumulate(map(len, parts))]
        self._parts = parts
        cut = self._stops[-1] - round(self._stops[-1] * validation)
        self._start, stop = {"all": (0, self._stops[-1]), "train": (0, cut), "validation": (cut, self._stops[-1])}[split]
        if stop - self._start <= length:
            raise fault(f"{stop - self._start} tokens for {split} do not fill a window of {length} and the following token; reduce length")
        kind = Field((length,), int32)
        super().__init__({"tokens": kind, "targets": kind}, (stop - self._start - length - 1) // self.stride + 1)

    @property
    def facts(self) -> dict[str, Any]:
        words = self.vocabulary
        content = words.characters if isinstance(words, Characters) else words.text if isinstance(words, TokenizerFile) else None
        return {"level": self.level, "vocabulary": content}

    def rows(self, numbers: Array, epoch: int, names: Sequence[str]) -> dict[str, Array]:
        starts = self._start + numbers * self.stride
        if len(self._parts) == 1:
            windows = self._parts[0][starts[:, None] + np.arange(self.length + 1)].astype(np.int32)
        else:
            windows = np.empty((len(numbers), self.length + 1), np.int32)
            for row, start in enumerate(starts.tolist()):
                self._fill(windows[row], start)
        cut = {"tokens": windows[:, :-1], "targets": windows[:, 1:]}
        return {name: np.ascontiguousarray(cut[name]) for name in names}

    def _fill(self, window: Array, start: int) -> None:
        part = bisect_right(self._stops, start) - 1
        done = 0
        while done < len(window):
            piece = self._parts[part][start + done - self._stops[part] :][: len(window) - done]
            window[done : done + len(piece)] = piece
            done, part = done + len(piece), part + 1


def _check(level: str, length: int, stride: int | None, split: str, validation: float) -> None:
    if level not in ("character", "byte", "token"):
        raise ArgumentError(f'{WHAT}: level must be "character", "byte" or "token", not {level!r}')
    if split not in ("all", "train", "validation"):
        raise ArgumentError(f"{WHAT}: split must be one of all, train, validation, not {split!r}")
    if length < 1 or (stride is not None and stride < 1) or not 0 <= validation < 1:
        raise ArgumentError(f"{WHAT}: length and stride must be at least 1 and validation in [0, 1), not {length}, {stride}, {validation}")


def _bytes(path: str | None, pattern: str) -> tuple[list[Array], Vocabulary]:
    if path is None:
        return [np.frombuffer(documentation_text().encode(), np.uint8)], Bytes()
    files = [file for file in files_at(path_of(path), pattern, fault) if file.stat().st_size]
    contents = [content_of(file, fault) for file in files]
    parts = [content[len(UTF8_MARK) :] if content[: len(UTF8_MARK)].tobytes() == UTF8_MARK else content for content in contents]
    if not any(map(len, parts)):
        raise fault(f"there is no text in {path}; set path to a file with text")
    return parts, Bytes()


def _vocabulary(vocabulary: str | None, tokenizer: str | None, level: str) -> Vocabulary | None:
    """Return the vocabulary of earlier samples or of a tokenizer file; None without both."""
    if vocabulary is not None:
        return Characters(vocabulary) if level == "character" else TokenizerFile(vocabulary)
    return None if tokenizer is None else read_tokenizer(path_of(tokenizer), fault)


def _encoded(path: str | None, pattern: str, known: Vocabulary | None) -> tuple[list[Array], Vocabulary]:
    """Return the tokens of each file, in the smallest type for the vocabulary, and the vocabulary: `known`, or all characters of the texts."""
    texts = dict(texts_at(path, pattern))
    if known is None:
        alphabet: set[int] = set().union(*(np.unique(points(text)).tolist() for text in texts.values()))
        if not alphabet:
            raise fault(f"there is no text in {', '.join(texts)}; set path to a file with text")
        known = Characters("".join(map(chr, sorted(alphabet))))
    kind = np.min_scalar_type(known.size - 1)
    return [known.encode(text, f"{WHAT}: {name}").astype(kind) for name, text in texts.items() if text], known


def texts_at(path: str | None, pattern: str) -> Iterator[tuple[str, str]]:
    """Yield the name and the text of a file, or of the files in a folder that match `pattern`; without a path, Python's own documentation."""
    if path is None:
        yield "documentation", documentation_text()
        return
    for file in files_at(path_of(path), pattern, fault):
        yield str(file), _decoded(file)


def _decoded(file: AnyPath) -> str:
    content, begin = text_of(file, fault)
    MEMORY.check(len(content), f"{file}: it", fault)
    try:
        return content[begin:].tobytes().decode()
    except UnicodeDecodeError as error:
        place = begin + error.start
        raise fault(f"{file} is not valid UTF-8 at byte {place}: {error.reason}; convert it, or set level: byte") from None


# Python's own documentation as a text: about 600,000 characters of English, available on each machine --------------

#: folders that contain no documentation of the library
LEFT_OUT = {"site-packages", "dist-packages", "test", "tests", "idle_test", "__pycache__"}
PARAGRAPHS = re.compile(r"\n(?:[ \t]*\n)+")
#: the docstring of a module, after comments
FIRST = re.compile(r"""\A(?:[ \t]*(?:\#[^\n]*)?\n)*([rRuU]?(?:\"\"\".*?(?<!\\)\"\"\"|'''.*?(?<!\\)'''|"[^"\n]+"|'[^'\n]+'))""", re.DOTALL)


@lru_cache(maxsize=1)
def documentation_text() -> str:
    """Return the topics of `help()` and the docstrings of the standard library, in the order of their checksums.

    This order mixes the sources, so the last fraction of the text, for validation, resembles the beginning. Repeated paragraphs occur only once, so
    training and validation texts do not overlap. The text depends on the version of Python.
    """
    parts = sorted((text.strip() for text in [*topics.values(), *_docstrings()]), key=lambda text: (crc32(text.encode()), text))
    return "\n\n".join(dict.fromkeys(paragraph for part in parts for paragraph in PARAGRAPHS.split(part) if paragraph)) + "\n"


def _modules(root: str) -> Iterator[str]:
    for folder, inner, files in os.walk(root):
        inner[:] = [name for name in inner if name not in LEFT_OUT]
        yield from (os.path.join(folder, name) for name in files if name.endswith(".py"))


def _docstrings() -> Iterator[str]:
    for path in sorted(_modules(sysconfig.get_path("stdlib"))):
        docstring = FIRST.match(Path(path).read_text(encoding="utf-8", errors="replace"))
        if docstring:
            with warnings.catch_warnings(action="ignore"):  # some contain invalid escape sequences
                yield str(ast.literal_eval(docstring[1]))
