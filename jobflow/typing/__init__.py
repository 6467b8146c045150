"""Annotations of job functions: ``images: tp.Numpy.Placeholder((100, 784))``, ``-> tp.Numpy``."""

from jobflow.typing.annotations import Bundle, Callback, FixedTensorDef, ListNumpy, MirroredTensorDef, Numpy
from jobflow.typing.results import Results
from jobflow.typing.signature import JobSignature

__all__ = ["Bundle", "Callback", "FixedTensorDef", "JobSignature", "ListNumpy", "MirroredTensorDef", "Numpy", "Results"]
