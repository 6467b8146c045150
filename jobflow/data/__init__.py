"""Data for programs: readers of samples, their order, batches of them; MNIST, or a stand-in for it; and readers in the body of a job.

Everything is defined elsewhere; `__init__.pyi` is the table of contents.
"""

from jobflow.core.lazy_imports import attach as _attach

__getattr__, __dir__, __all__ = _attach(__name__, __file__)
