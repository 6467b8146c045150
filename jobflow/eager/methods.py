"""The methods of tensors: functions of `jobflow.functional`, each of which is imported with its module when it is first called.

A module hangs its functions on `Tensor` (`jobflow.functional.dispatch.method`); until it is imported, `Methods` has something in their places.
The stub beside this file has their types.
"""

from importlib import import_module
from typing import Any

#: a module, and below it the methods that it hangs on Tensor; written by scripts/refresh_methods
HOMES = {
    "binary_functions": """
        __add__ __and__ __floordiv__ __iadd__ __iand__ __ifloordiv__ __imod__ __imul__ __invert__ __ior__ __ipow__ __isub__ __itruediv__ __ixor__
        __matmul__ __mod__ __mul__ __neg__ __or__ __pos__ __pow__ __radd__ __rand__ __rfloordiv__ __rmatmul__ __rmod__ __rmul__ __ror__ __rpow__
        __rsub__ __rtruediv__ __rxor__ __sub__ __truediv__ __xor__ add add_ addcdiv addcdiv_ addcmul addcmul_ addmm addmm_ baddbmm baddbmm_
        bitwise_and bitwise_and_ bitwise_not bitwise_or bitwise_or_ bitwise_xor bitwise_xor_ bmm div div_ divide divide_ dot float_power floor_divide
        floor_divide_ fmod fmod_ ger lerp lerp_ matmul maximum minimum mm mul mul_ multiply multiply_ mv neg neg_ negative negative_ outer pow pow_
        remainder remainder_ rsub sub sub_ subtract subtract_ true_divide true_divide_
    """,
    "casting": """
        bfloat16 bool byte cast char double float half int is_floating_point long type type_as
    """,
    "comparing": """
        __eq__ __ge__ __gt__ __le__ __lt__ __ne__ allclose eq equal ge greater greater_equal gt isclose le less less_equal logical_and logical_not
        logical_or logical_xor lt ne not_equal where
    """,
    "creation": """
        empty_like full_like new_empty new_full new_ones new_tensor new_zeros ones_like zeros_like
    """,
    "drawing": """
        bernoulli multinomial rand_like randint_like randn_like
    """,
    "filling": """
        bernoulli_ copy_ fill_ normal_ random_ uniform_ zero_
    """,
    "global_tensors": """
        __deepcopy__ __reduce_ex__ contiguous cpu cuda data device element_size is_contiguous is_cuda itemsize nbytes pin_memory storage_offset stride
        to to_consistent to_global to_local
    """,
    "gradients": """
        backward clone detach detach_ grad register_hook requires_grad requires_grad_ retain_grad
    """,
    "indexing": """
        __getitem__ __setitem__
    """,
    "joining": """
        chunk narrow split unbind
    """,
    "nn_activations": """
        elu_ gelu leaky_relu_ log_softmax relu relu6_ relu_ selu_ sigmoid sigmoid_ silu silu_ softmax tanh tanh_
    """,
    "reductions": """
        all amax amin any argmax argmin count_nonzero cumprod cumsum logsumexp max mean median min nansum norm prod std std_mean sum var var_mean
    """,
    "selecting": """
        argwhere diag diagonal gather index_add index_add_ index_fill index_fill_ index_select masked_fill masked_fill_ masked_select nonzero roll
        scatter scatter_ scatter_add scatter_add_ select take tril tril_ triu triu_
    """,
    "shapes": """
        T broadcast_to dim expand expand_as flatten flip mT moveaxis movedim ndimension nelement numel permute repeat repeat_interleave reshape
        reshape_as size squeeze swapaxes swapdims t tile transpose unflatten unsqueeze view view_as
    """,
    "sorting": """
        argsort kthvalue searchsorted sort topk unique
    """,
    "unary_functions": """
        __abs__ abs abs_ absolute absolute_ acos acos_ acosh acosh_ arccos arccos_ arccosh arccosh_ arcsin arcsin_ arcsinh arcsinh_ arctan arctan2
        arctan_ arctanh arctanh_ asin asin_ asinh asinh_ atan atan2 atan_ atanh atanh_ ceil ceil_ clamp clamp_ clamp_max clamp_max_ clamp_min
        clamp_min_ clip clip_ cos cos_ cosh cosh_ erf erf_ erfc erfc_ exp exp2 exp_ expm1 expm1_ fix fix_ floor floor_ frac isfinite isinf isnan log
        log10 log1p log1p_ log2 log_ nan_to_num reciprocal reciprocal_ round round_ rsqrt rsqrt_ sgn sgn_ sign sign_ sin sin_ sinh sinh_ sqrt sqrt_
        square square_ tan tan_ trunc trunc_
    """,
    "values": """
        __array__ __bool__ __contains__ __float__ __format__ __index__ __int__ __iter__ __len__ __repr__ __str__ item numpy tolist
    """,
}


class Unloaded:
    """Stands for a method or property of a module that is not imported yet."""

    __slots__ = ("home", "name")

    def __init__(self, home: str, name: str) -> None:
        self.home = home
        self.name = name

    def load(self) -> None:
        """Import the module, which hangs the method on Tensor."""
        import_module(f"jobflow.functional.{self.home}")

    def __get__(self, x: Any, kind: type) -> Any:
        self.load()
        return getattr(kind if x is None else x, self.name)

    def __set__(self, x: Any, value: Any) -> None:
        self.load()
        setattr(x, self.name, value)


class Methods:
    """What `Tensor` has from `jobflow.functional`."""

    __slots__ = ()


for _home, _names in HOMES.items():
    for _name in _names.split():
        setattr(Methods, _name, Unloaded(_home, _name))
