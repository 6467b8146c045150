"""Methods of tensors whose modules are imported at the first use of a method, because most programs use few of them."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from jobflow.functional.dlpack import DlpackMethods
    from jobflow.functional.element_writes import WritingMethods
    from jobflow.functional.gpu_exchange import GpuExchangeMethods
    from jobflow.functional.histograms import CountingMethods
    from jobflow.functional.in_place_shapes import ShapeInPlaceMethods
    from jobflow.functional.index_updates import UpdateMethods
    from jobflow.functional.matrix_functions import MatrixMethods
    from jobflow.functional.matrix_products import ProductMethods
    from jobflow.functional.memory_queries import MemoryMethods
    from jobflow.functional.nn_activations import ActivationMethods
    from jobflow.functional.order_statistics import OrderMethods
    from jobflow.functional.rearranging import RearrangingMethods
    from jobflow.functional.slice_updates import SliceUpdateMethods
    from jobflow.functional.sparse_tensors import SparseMethods
    from jobflow.functional.special_functions import SpecialMethods
    from jobflow.functional.statistics import StatisticsMethods

#: one entry per class of methods: its module and name, and its methods
_TABLE = """
dlpack.DlpackMethods: __dlpack__ __dlpack_device__
gpu_exchange.GpuExchangeMethods: __cuda_array_interface__
element_writes.WritingMethods: apply_ arctan2_ atan2_ bitwise_not_ cauchy_ cumprod_ cumsum_ einsum eq_ exp2_ exponential_ fill_diagonal_
    float_power_ frac_ ge_ geometric_ greater_ greater_equal_ gt_ le_ less_ less_equal_ log10_ log2_ log_normal_ logical_and_ logical_not_
    logical_or_ logical_xor_ lt_ map_ nan_to_num_ ne_ not_equal_
histograms.CountingMethods: bincount histc histogram isin searchsorted unique_consecutive
in_place_shapes.ShapeInPlaceMethods: resize_ resize_as_ set_ squeeze_ swapaxes_ swapdims_ t_ transpose_ unsqueeze_
index_updates.UpdateMethods: index_copy index_copy_ index_put index_put_ index_reduce index_reduce_ masked_scatter masked_scatter_ scatter_reduce
    scatter_reduce_ take_along_dim
matrix_functions.MatrixMethods: cholesky cholesky_inverse cholesky_solve det inverse logdet lu lu_solve matrix_exp matrix_power pinverse qr
    slogdet svd
matrix_products.ProductMethods: addbmm addbmm_ addmv addmv_ addr addr_ cross dist inner kron trace vdot
memory_queries.MemoryMethods: _version data_ptr dim_order get_device is_complex is_conj is_cpu is_inference is_meta is_mps is_pinned is_quantized
    is_same_size is_set_to is_shared is_signed is_sparse is_xpu record_stream share_memory_ storage to_dense untyped_storage
nn_activations.ActivationMethods: elu_ gelu leaky_relu_ log_softmax relu relu6_ relu_ selu_ sigmoid sigmoid_ silu silu_ softmax tanh tanh_
order_statistics.OrderMethods: aminmax cummax cummin logcumsumexp mode msort nanmean nanmedian nanquantile quantile
rearranging.RearrangingMethods: H diag_embed diagflat diff dsplit fliplr flipud hsplit mH ravel rot90 tensor_split unfold vsplit
slice_updates.SliceUpdateMethods: as_strided diagonal_scatter put put_ select_scatter slice_scatter
special_functions.SpecialMethods: __ilshift__ __irshift__ __lshift__ __rlshift__ __rrshift__ __rshift__ bitwise_left_shift bitwise_left_shift_
    bitwise_right_shift bitwise_right_shift_ copysign copysign_ deg2rad deg2rad_ digamma digamma_ erfinv erfinv_ fmax fmin gcd gcd_ heaviside
    heaviside_ hypot hypot_ i0 i0_ isneginf isposinf lcm lcm_ ldexp ldexp_ lgamma lgamma_ logaddexp logaddexp2 mvlgamma mvlgamma_ nextafter
    nextafter_ polygamma polygamma_ rad2deg rad2deg_ signbit sinc sinc_ xlogy xlogy_
statistics.StatisticsMethods: corrcoef cov renorm renorm_
sparse_tensors.SparseMethods: is_sparse_csr to_sparse to_sparse_csr
"""


class _LaterMethod:
    """A placeholder for the method `name`, which the method itself replaces at the first lookup."""

    def __init__(self, module: str, family: str, name: str) -> None:
        self.module, self.family, self.name = module, family, name

    def __get__(self, instance: Any, owner: type) -> Any:
        methods = getattr(import_module(self.module), self.family)
        method = vars(methods)[self.name]
        setattr(LaterMethods, self.name, method)  # concurrent threads set the same method
        return method.__get__(instance, owner)


def families() -> dict[tuple[str, str], list[str]]:
    """Return the names of the methods, by the module and the name of the class that defines them."""
    entries = [entry.partition(":") for entry in _TABLE.replace("\n    ", " ").strip().splitlines()]
    classes = [(*path.split("."), names) for path, _, names in entries]
    return {(f"jobflow.functional.{module}", family): names.split() for module, family, names in classes}


if TYPE_CHECKING:

    class LaterMethods(
        DlpackMethods,
        GpuExchangeMethods,
        WritingMethods,
        CountingMethods,
        ShapeInPlaceMethods,
        UpdateMethods,
        MatrixMethods,
        ProductMethods,
        MemoryMethods,
        ActivationMethods,
        OrderMethods,
        RearrangingMethods,
        SliceUpdateMethods,
        SpecialMethods,
        StatisticsMethods,
        SparseMethods,
    ):
        __slots__ = ()

else:

    class LaterMethods:
        """Methods of tensors that are imported at their first use."""

        __slots__ = ()

    for (_module, _family), _names in families().items():
        for _name in _names:
            setattr(LaterMethods, _name, _LaterMethod(_module, _family, _name))
