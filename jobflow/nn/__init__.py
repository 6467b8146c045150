"""flow.nn: functions of the job API, modules and graphs of tensors.

Everything is defined elsewhere; `__init__.pyi` is the table of contents.  Names that both have - functions in the body of a job,
classes elsewhere - are classes here; `jobflow.nn.modules` says which.
"""

from jobflow.core.lazy_imports import attach as _attach

__getattr__, __dir__, __all__ = _attach(__name__, __file__)
