"""The class of tensors, composed of the methods of each family of functions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, overload

from jobflow.core.layout import Layout
from jobflow.core.types import Array, TensorType
from jobflow.functional import einops_finder
from jobflow.functional.binary_functions import ArithmeticMethods
from jobflow.functional.casting import CastingMethods
from jobflow.functional.comparing import ComparisonMethods
from jobflow.functional.creation import CreationMethods
from jobflow.functional.filling import FillingMethods
from jobflow.functional.global_tensors import PlacementMethods
from jobflow.functional.gradients import GradientMethods
from jobflow.functional.indexing import IndexingMethods
from jobflow.functional.joining import JoiningMethods
from jobflow.functional.later_methods import LaterMethods
from jobflow.functional.reductions import ReductionMethods
from jobflow.functional.sampling import RandomMethods
from jobflow.functional.selecting import SelectionMethods
from jobflow.functional.shapes import ShapeMethods
from jobflow.functional.sorting import SortingMethods
from jobflow.functional.unary_functions import ElementwiseMethods
from jobflow.functional.values import ValueMethods
from jobflow.tensors.tensor import TensorBase

if TYPE_CHECKING:
    import numpy as np


class Tensor(
    ArithmeticMethods,
    CastingMethods,
    ComparisonMethods,
    CreationMethods,
    ElementwiseMethods,
    FillingMethods,
    GradientMethods,
    IndexingMethods,
    JoiningMethods,
    LaterMethods,
    PlacementMethods,
    RandomMethods,
    ReductionMethods,
    SelectionMethods,
    ShapeMethods,
    SortingMethods,
    ValueMethods,
    TensorBase,
):
    """A tensor, created by functions such as `flow.tensor`, `flow.randn` and `to_global`."""

    __slots__ = ()

    #: tensors hash by identity
    __hash__ = object.__hash__

    if TYPE_CHECKING:

        @overload
        def __init__(self, type: TensorType, layout: Layout | None, array: Array, traced: Any = None) -> None: ...
        @overload  # programs call flow.Tensor, see `jobflow.functional.classes`
        def __init__(self, *data: complex | Sequence[Any] | np.ndarray[Any, Any], **options: Any) -> None: ...
        def __init__(self, *arguments: Any, **options: Any) -> None: ...


TensorBase.new = Tensor
einops_finder.register()
