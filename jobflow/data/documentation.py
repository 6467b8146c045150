"""Python's own documentation as a text: about 600,000 characters of English, present on every machine."""

from __future__ import annotations

import ast
import os
import re
import sysconfig
import warnings
from collections.abc import Iterator
from functools import lru_cache
from pathlib import Path
from pydoc_data.topics import topics
from zlib import crc32

#: what is no part of the library, or nobody's to read
LEFT_OUT = {"site-packages", "dist-packages", "test", "tests", "idle_test", "__pycache__"}
PARAGRAPHS = re.compile(r"\n(?:[ \t]*\n)+")
#: the string that a module begins with, after comments
FIRST = re.compile(r"""\A(?:[ \t]*(?:\#[^\n]*)?\n)*([rRuU]?(?:\"\"\".*?(?<!\\)\"\"\"|'''.*?(?<!\\)'''|"[^"\n]+"|'[^'\n]+'))""", re.DOTALL)


@lru_cache(maxsize=1)
def documentation_text() -> str:
    """The topics of `help()` and the docstrings of the standard library's modules, mixed: in the order of their checksums.

    So a part that is held out is text of the same kind as the rest, and as paragraphs that several of them share are there once, it is
    not the same text.  It is that of the Python that runs: another version has other text.
    """
    parts = sorted((text.strip() for text in [*topics.values(), *_docstrings()]), key=lambda text: (crc32(text.encode()), text))
    return "\n\n".join(dict.fromkeys(paragraph for part in parts for paragraph in PARAGRAPHS.split(part) if paragraph)) + "\n"


def _modules(root: str) -> Iterator[str]:
    for folder, inner, files in os.walk(root):
        inner[:] = [name for name in inner if name not in LEFT_OUT]
        yield from (os.path.join(folder, name) for name in files if name.endswith(".py"))


def _docstrings() -> Iterator[str]:
    for path in sorted(_modules(sysconfig.get_path("stdlib"))):
        found = FIRST.match(Path(path).read_text(encoding="utf-8", errors="replace"))
        if found:
            with warnings.catch_warnings(action="ignore"):  # some have escapes that Python frowns upon
                yield str(ast.literal_eval(found[1]))
