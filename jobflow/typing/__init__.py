"""Annotations of the parameters and results of job functions: ``images: tp.Numpy.Placeholder((100, 784))``, ``-> tp.Numpy``."""

from jobflow.typing.annotations import Bundle, Callback, FixedTensorDef, ListListNumpy, ListNumpy, MirroredTensorDef, MirroredTensorListDef, Numpy
from jobflow.typing.results import Results
from jobflow.typing.signature import JobSignature

__all__ = [
    "Bundle",
    "Callback",
    "FixedTensorDef",
    "JobSignature",
    "ListListNumpy",
    "ListNumpy",
    "MirroredTensorDef",
    "MirroredTensorListDef",
    "Numpy",
    "Results",
]
