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
from jobflow.functional.dlpack import DlpackMethods
from jobflow.functional.element_writes import WritingMethods
from jobflow.functional.filling import FillingMethods
from jobflow.functional.global_tensors import PlacementMethods
from jobflow.functional.gradients import GradientMethods
from jobflow.functional.histograms import CountingMethods
from jobflow.functional.in_place_shapes import ShapeInPlaceMethods
from jobflow.functional.index_updates import UpdateMethods
from jobflow.functional.indexing import IndexingMethods
from jobflow.functional.joining import JoiningMethods
from jobflow.functional.matrix_functions import MatrixMethods
from jobflow.functional.matrix_products import ProductMethods
from jobflow.functional.memory_queries import MemoryMethods
from jobflow.functional.nn_activations import ActivationMethods
from jobflow.functional.order_statistics import OrderMethods
from jobflow.functional.rearranging import RearrangingMethods
from jobflow.functional.reductions import ReductionMethods
from jobflow.functional.sampling import RandomMethods
from jobflow.functional.selecting import SelectionMethods
from jobflow.functional.shapes import ShapeMethods
from jobflow.functional.slice_updates import SliceUpdateMethods
from jobflow.functional.sorting import SortingMethods
from jobflow.functional.sparse_tensors import SparseMethods
from jobflow.functional.special_functions import SpecialMethods
from jobflow.functional.statistics import StatisticsMethods
from jobflow.functional.unary_functions import ElementwiseMethods
from jobflow.functional.values import ValueMethods
from jobflow.tensors.tensor import TensorBase

if TYPE_CHECKING:
    import numpy as np


class Tensor(
    ActivationMethods,
    ArithmeticMethods,
    CastingMethods,
    ComparisonMethods,
    CreationMethods,
    DlpackMethods,
    UpdateMethods,
    OrderMethods,
    CountingMethods,
    ElementwiseMethods,
    FillingMethods,
    GradientMethods,
    IndexingMethods,
    JoiningMethods,
    MemoryMethods,
    MatrixMethods,
    PlacementMethods,
    RearrangingMethods,
    ProductMethods,
    RandomMethods,
    ReductionMethods,
    SelectionMethods,
    ShapeInPlaceMethods,
    ShapeMethods,
    SliceUpdateMethods,
    SortingMethods,
    SpecialMethods,
    SparseMethods,
    StatisticsMethods,
    ValueMethods,
    WritingMethods,
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
