"""Hooks of mkdocs for the documentation site: links to files outside of docs/, and Markdown lists as code hosts read them."""

from __future__ import annotations

import os
import posixpath
import re
import sys
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File, Files, InclusionLevel

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "scripts" / "site"))

import reference  # noqa: E402

LINK = re.compile(r"(?<!`)(\[[^]]+\])\((\.\./[^)\s#]+)(#[^)\s]*)?\)")
#: how pages show a file of the repository that is not Markdown
LANGUAGES = {".py": "python", ".yaml": "yaml", ".yml": "yaml", ".sh": "bash", ".json": "json"}


def outside(page: str, target: str) -> Path | None:
    """Return the file of the repository that a link of a page leads to, if it is not in docs/."""
    path = ROOT / posixpath.normpath(posixpath.join("docs", posixpath.dirname(page), target))
    return path if path.is_file() and not path.is_relative_to(ROOT / "docs") else None


def is_folder(page: str, target: str) -> bool:
    return (ROOT / "docs" / posixpath.dirname(page) / target).is_dir()


def site_path(path: Path) -> str:
    """Return the page of the site that shows a file of the repository."""
    return "repository/" + path.relative_to(ROOT).as_posix().removesuffix(".md") + ".md"


def as_page(path: Path) -> str:
    """Return the Markdown of a page that shows a file of the repository."""
    text = path.read_text(encoding="utf-8")
    if path.suffix == ".md":
        # links of these pages lead to files of the repository, which the site does not contain
        return re.sub(r"(?<!!)\[([^]]+)\]\((?!https?://|#)[^)]+\)", r"\1", text)
    return f"# {path.relative_to(ROOT)}\n\n```{LANGUAGES.get(path.suffix, 'text')}\n{text}```\n"


def on_files(files: Files, config: Any) -> Files:
    """Add the pages of the API reference, and a page for each file outside of docs/ that a page links to."""
    for path, text in reference.pages().items():
        files.append(File.generated(config, path, content=text))
    for file in list(files.documentation_pages()):
        for _, target, _ in LINK.findall(file.content_string):
            path = outside(file.src_uri, target)
            if path is not None and files.get_file_from_path(site_path(path)) is None:
                files.append(File.generated(config, site_path(path), content=as_page(path), inclusion=InclusionLevel.NOT_IN_NAV))
    return files


def on_page_markdown(markdown: str, page: Any, **options: Any) -> str:
    """Lead links to files outside of docs/ to their pages, and show pages that are not guides after them in results of the search."""
    if page.file.src_uri.startswith(("internals/", "repository/")):
        page.meta.setdefault("search", {"boost": 0.3})

    def link_to_site(match: re.Match[str]) -> str:
        path = outside(page.file.src_uri, match[2])
        if path is None:  # a page of docs/, or a folder of the repository, which is shown as text
            return match[1][1:-1] if is_folder(page.file.src_uri, match[2]) else match[0]
        return f"{match[1]}({os.path.relpath(site_path(path), posixpath.dirname(page.file.src_uri) or '.')}{match[3] or ''})"

    return LINK.sub(link_to_site, markdown)
