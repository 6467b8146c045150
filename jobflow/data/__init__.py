"""Data for programs: readers of samples, sample orders, batches, MNIST or its substitute, and readers inside jobs.

`__init__.pyi` lists the public names, which the other modules define.
"""

from jobflow.core.lazy_imports import attach as _attach

__getattr__, __dir__ = _attach(__name__, __file__)
