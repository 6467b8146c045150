"""Files and checkpoints: local paths and object stores, size limits of reads, and `flow.checkpoint`.

`__init__.pyi` lists the public names of `flow.checkpoint`, which are imported on first use.
"""

from jobflow.core.lazy_imports import attach as _attach

__getattr__, __dir__ = _attach(__name__, __file__)
