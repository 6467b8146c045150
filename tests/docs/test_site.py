"""The documentation site: every page is in its navigation, and nothing is loaded from other hosts."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from pages import ROOT

sys.path.insert(0, str(ROOT / "scripts" / "site"))

import public_names

DOCS = ROOT / "docs"
SITE = yaml.safe_load((ROOT / "mkdocs.yml").read_text(encoding="utf-8"))
PACKAGES_OF_THE_SITE = ("material", "mkdocstrings_handlers.python")
#: what makes a browser load something: attributes of HTML, functions of CSS
LOADED = (
    re.compile(r"""<(?:script|img|iframe|source|video|audio|embed|input|object)\b[^>]*?\b(?:src|data)=["']?([^"'\s>]+)"""),
    re.compile(r"""<link\b(?![^>]*rel=["']?(?:canonical|prev|next))[^>]*?href=["']?([^"'\s>]+)"""),
    re.compile(r"""(?:url\(|@import\s)\s*["']?([^"')\s]+)"""),
)
#: addresses that scripts of the theme load -> when they do so
DORMANT = {
    "https://unpkg.com/mermaid": 'class="mermaid"',
    "https://unpkg.com/resize-observer-polyfill": "browsers before 2020",
    "https://api.github.com": 'data-md-component="source"',
}
#: an address in quotes, after the name of a function or an assignment; not in comments
ADDRESS = re.compile(r"""[(=]["'`](https?://[\w.-]+\.[a-z]+(?:/[\w-]+)?)""")


def entries(navigation: Any) -> Iterator[str]:
    """Yield the pages of a navigation, in its order."""
    for entry in navigation if isinstance(navigation, list) else [navigation]:
        if isinstance(entry, str):
            yield entry
        else:
            for value in entry.values():
                yield from entries(value)


def test_every_page_is_once_in_the_navigation() -> None:
    """A new page of docs/ has a line in `nav` of mkdocs.yml, where a reader needs it; decisions are listed by internals/index.md."""
    listed = [page for page in entries(SITE["nav"]) if not page.startswith("reference/")]
    pages = {path.relative_to(DOCS).as_posix() for path in DOCS.rglob("*.md") if path.parent.name != "decisions"}
    assert sorted(listed) == sorted(pages)


def test_every_public_name_has_a_page_of_the_reference() -> None:
    pages = {public_names.page_of(name) for name in public_names.names()}
    assert pages == set(public_names.PAGES) == {page[10:-3] for page in entries(SITE["nav"]) if page.startswith("reference/")} - {"index"}


def test_the_site_uses_no_fonts_of_other_hosts() -> None:
    assert SITE["theme"]["font"] is False and SITE["strict"] is True


def test_the_script_explains_itself() -> None:
    done = subprocess.run([ROOT / "scripts" / "docs", "--help"], capture_output=True, text=True, check=True)
    assert "--serve" in done.stdout


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The built site."""
    for module in PACKAGES_OF_THE_SITE:
        pytest.importorskip(module, reason='the packages of the site are missing: pip install "jobflow-sbp[docs]"')
    folder = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(folder)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, env={**os.environ, "NO_MKDOCS_2_WARNING": "1"}, timeout=900)
    assert done.returncode == 0, done.stdout + done.stderr
    return folder


def loaded(path: Path) -> Iterator[str]:
    text = path.read_text(encoding="utf-8")
    shown = re.sub(r"<pre.*?</pre>|<code.*?</code>", "", text, flags=re.DOTALL) if path.suffix == ".html" else text
    patterns = LOADED if path.suffix == ".html" else LOADED[2:]
    yield from (match for pattern in patterns for match in pattern.findall(shown))


def leads_to(site: Path, page: Path, target: str) -> Path:
    """Return the file of a reference; a reference that begins with a slash starts at the root of the site."""
    return site / target[1:] if target.startswith("/") else (page.parent / target).resolve()


@pytest.mark.full
def test_pages_and_styles_load_only_files_of_the_site(site: Path) -> None:
    files = [path for path in site.rglob("*") if path.suffix in (".html", ".css")]
    references = [(path, target) for path in files for target in loaded(path) if not target.startswith(("data:", "#"))]
    assert len(files) > 100 and len(references) > 500
    assert [(path.name, target) for path, target in references if not leads_to(site, path, re.split("[?#]", target)[0]).exists()] == []


@pytest.mark.full
def test_scripts_load_nothing_from_other_hosts(site: Path) -> None:
    """Some scripts of the theme contain addresses for features that no page uses."""
    scripts = [path for path in site.rglob("*.js") if "lunr" not in path.parts]
    assert any(path.name.startswith("search") for path in scripts), "the search worker is not in the site"
    addresses = {match for path in scripts for match in ADDRESS.findall(path.read_text(encoding="utf-8"))}
    assert [address for address in addresses if not address.startswith(tuple(DORMANT))] == []
    texts = [path.read_text(encoding="utf-8") for path in site.rglob("*.html")]
    assert [mark for mark in DORMANT.values() if any(mark in text for text in texts)] == []


@pytest.mark.full
def test_the_reference_has_an_entry_for_every_public_name(site: Path) -> None:
    anchors = {anchor for path in (site / "reference").glob("*.html") for anchor in re.findall(r'id="([^"]+)"', path.read_text(encoding="utf-8"))}
    assert len(anchors) > 4000
    assert [name.path for name in public_names.names().values() if name.anchor not in anchors] == []
