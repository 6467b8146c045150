"""Self-contained HTML pages from the files in templates/; inserted values are escaped."""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from jinja2 import Environment


def page(template: str, title: str, **values: object) -> str:
    """Render a template with values as an HTML page; raise UndefinedError if the template needs another value."""
    return _templates().get_template(template).render({"title": title, "badge": None, "subtitle": "", "sections": {}, **values})


@cache
def _templates() -> Environment:
    from jinja2 import Environment, PackageLoader, StrictUndefined

    return Environment(loader=PackageLoader("jobflow.tools"), autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True)
