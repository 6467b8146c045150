"""Python's own documentation as text: about 600,000 characters of English, available on every machine."""

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

#: folders that contain no documentation of the library
LEFT_OUT = {"site-packages", "dist-packages", "test", "tests", "idle_test", "__pycache__"}
PARAGRAPHS = re.compile(r"\n(?:[ \t]*\n)+")
#: the docstring of a module, after comments
FIRST = re.compile(r"""\A(?:[ \t]*(?:\#[^\n]*)?\n)*([rRuU]?(?:\"\"\".*?(?<!\\)\"\"\"|'''.*?(?<!\\)'''|"[^"\n]+"|'[^'\n]+'))""", re.DOTALL)


@lru_cache(maxsize=1)
def documentation_text() -> str:
    """Return the topics of `help()` and the docstrings of the standard library, in the order of their checksums.

    The order mixes the sources, so a held-out part resembles the others. Repeated paragraphs occur once, so the parts do not overlap. The text
    depends on the version of Python.
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
