"""HTML pages from templates/: one file each that opens offline; whatever is put into a template is escaped."""

from __future__ import annotations


def page(template: str, title: str, **values: object) -> str:
    """The page that a template makes of values; one that it needs and that is not there is an error."""
    from jinja2 import Environment, PackageLoader, StrictUndefined

    found = Environment(loader=PackageLoader("jobflow.tools"), autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True)
    return found.get_template(template).render({"title": title, "badge": None, "subtitle": "", "sections": {}, **values})
