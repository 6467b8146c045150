"""Self-contained HTML pages from the files in templates/; inserted values are escaped.

All pages share `page.html` and its style sheet `page.css`.  The sheet has colours for light and dark mode, and classes for cards, tables, legends,
figures and bars.
"""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Sequence
from functools import cache
from importlib.resources import files
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from jinja2 import Environment

#: the version of uPlot in templates/uplot
UPLOT = "1.6.32"


def page(template: str, title: str, *, scripts: Sequence[str] | None = None, **values: object) -> str:
    """Render a template with values as an HTML page; raise UndefinedError if the template needs another value.

    `scripts` names JavaScript files in templates/.  The page then contains these files, and its policy forbids other scripts and every request.
    A page without `scripts` has no policy.
    """
    sources = None if scripts is None else [script(name) for name in scripts]
    policy = None if sources is None else policy_of(sources)
    content = {"title": title, "badge": None, "subtitle": "", "sections": {}, "scripts": sources or [], "policy": policy, **values}
    return _templates().get_template(template).render(content)


def fragment(template: str, **values: object) -> str:
    """Render a template with values as a part of a page."""
    return _templates().get_template(template).render(values)


@cache
def script(name: str) -> str:
    """Return a script in templates/; the source of uPlot is preceded by its licence."""
    text = _text(name)
    if name.startswith("uplot/"):
        text = f"/*! uPlot {UPLOT}\n\n{_text('uplot/LICENSE').strip()}\n*/\n{text}"
    return text


def policy_of(scripts: Sequence[str]) -> str:
    """Return the content security policy that permits only these scripts, styles in the page, and images in the page."""
    hashes = " ".join(f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'" for text in scripts)
    return f"default-src 'none'; script-src {hashes}; style-src 'unsafe-inline'; img-src data:; base-uri 'none'; form-action 'none'"


def json_text(tree: Any) -> str:
    """Return JSON that cannot end the `script` element that contains it."""
    text = json.dumps(tree, separators=(",", ":"), allow_nan=False)
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def _text(name: str) -> str:
    return files("jobflow.tools").joinpath("templates", name).read_text(encoding="utf-8")


@cache
def _templates() -> Environment:
    from jinja2 import Environment, PackageLoader, StrictUndefined

    environment = Environment(loader=PackageLoader("jobflow.tools"), autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True)
    environment.filters["json_text"] = json_text
    return environment
