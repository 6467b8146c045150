"""Modules of `flow.nn`, with argument checks as in functions; `__init__.pyi` lists the names."""

from jobflow.core.lazy_imports import attach as _attach

__getattr__, __dir__ = _attach(__name__, __file__)
