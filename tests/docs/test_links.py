"""Links between README, the user guide and the internals lead to files and headings that exist, and every page is in its index."""

from __future__ import annotations

import re
from pathlib import Path

from pages import ROOT

DOCS = ROOT / "docs"
PAGES = [ROOT / "README.md", ROOT / "CHANGELOG.md", *sorted(DOCS.rglob("*.md"))]
LINK = re.compile(r"(?<!`)\[[^]]+\]\(([^)\s]+)\)")

#: internals name the files of the package without its name
NAMED = re.compile(r"`((?:jobflow|tests|scripts|examples|configs|benchmarks|docs)/[\w./-]*|[a-z_]+/[\w/]+\.py)`")


def links(page: Path) -> list[str]:
    """Targets within the repository; code is left out."""
    text = re.sub(r"^```.*?^```$|`[^`\n]*`", "", page.read_text(encoding="utf-8"), flags=re.MULTILINE | re.DOTALL)
    return [target for target in LINK.findall(text) if "://" not in target]


def headings(page: Path) -> set[str]:
    """The anchors of a page, as GitHub makes them."""
    titles = re.findall(r"^#+ (.+)$", page.read_text(encoding="utf-8"), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in titles}


def broken(page: Path, target: str) -> bool:
    name, _, anchor = target.partition("#")
    path = (page.parent / name).resolve() if name else page
    return not path.exists() or (bool(anchor) and anchor not in headings(path))


def test_links_lead_somewhere() -> None:
    assert len(PAGES) > 40, "the pages were not found"
    assert [f"{page.relative_to(ROOT)}: {target}" for page in PAGES for target in links(page) if broken(page, target)] == []


def test_named_files_exist() -> None:
    """Files of the repository that pages name between backticks; decisions speak of their time."""
    named = [(page.name, path) for page in PAGES if "decisions" not in page.parts for path in NAMED.findall(page.read_text(encoding="utf-8"))]
    assert len(named) > 40, "no names were found"
    assert [(page, path) for page, path in named if not any((base / path).exists() for base in (ROOT, ROOT / "jobflow"))] == []


def test_every_page_is_in_its_index() -> None:
    for index, pages in (
        (DOCS / "index.md", [*DOCS.glob("*.md"), DOCS / "internals" / "index.md"]),
        (DOCS / "internals" / "index.md", sorted((DOCS / "internals").rglob("*.md"))),
    ):
        listed = {(index.parent / target).resolve() for target in links(index)}
        assert [page.name for page in pages if page != index and page not in listed] == []
