"""Valid values of the attributes of published operation types, by default value or by name."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from numbers import Integral, Real
from typing import Any

import numpy as np

from jobflow.core.types import DType
from jobflow.legacy.optimizer.option_ranges import out_of_range


def _listed(one: Callable[[Any], bool]) -> Callable[[Any], bool]:
    return lambda x: isinstance(x, list | tuple | np.ndarray) and np.ndim(x) > 0 and all(map(one, x))


def _is(*kinds: type) -> Callable[[Any], bool]:
    return lambda x: isinstance(x, kinds)


_INTEGER, _NUMBER, _TEXT = _is(Integral), _is(Real), _is(str, os.PathLike)
_SAYS: Mapping[str, Callable[[Any], bool]] = {
    "True or False": lambda x: isinstance(x, bool | np.bool_) or (isinstance(x, int) and x in (0, 1)),
    "an integer": _INTEGER,
    "a number": _NUMBER,
    "a string": _TEXT,
    "a list of integers": _listed(_INTEGER),
    "an integer, or a list of integers": lambda x: _INTEGER(x) or _listed(_INTEGER)(x),
    "a list of numbers": _listed(_NUMBER),
    "a string, or a list of integers": lambda x: _TEXT(x) or _listed(_INTEGER)(x),
    "a list of strings": _listed(_TEXT),
    "an element type such as flow.float32": _is(DType),
}
#: attributes whose default does not determine the kind
_NAMED: Mapping[str, str] = {
    "True or False": "training is_floating_value has_seed has_reshape has_batch_padding dynamic_out",
    "an integer": (
        "alignment batch_size begin_norm_axis begin_params_axis depth dim filters head_size instance_dims k max_acc_num max_dim_size "
        "max_target_length num_sample num_samples num_segments num_spatial_dims pack_num random_seed repeat_num seed seq_length session_id "
        "split_index stop_update_after_iters target_height target_size target_width unpack_num"
    ),
    "a number": "alpha delta epsilon exponent height_scale limit max_val min_val rate scale width_scale",
    "a string": "annotation_file data_dir data_file_prefix data_format image_dir image_feature_name key label_feature_name mark_prefix name",
    "a list of integers": (
        "axes batch_padding broadcast_axes dilation_rate in_shape instance_shape kernel_size out_shape output_padding padding_after padding_before "
        "perm pool_size reshape shape split_sizes static_shape stride strides"
    ),
    "an integer, or a list of integers": "axis",
    "a string, or a list of integers": "padding",
    "a list of strings": "parallel_distribution",
    "a list of numbers": "mean random_area random_aspect_ratio std value_list",
    "an element type such as flow.float32": "data_type dtype out_dtype out_idx output_dtype",
}
#: numbers that may be infinite or NaN: values and bounds of elements
_OF_ELEMENTS = (
    *("delta", "exponent", "float_operand", "floating_constant_value", "floating_fill_value", "floating_max", "floating_min"),
    *("floating_off_value", "floating_on_value", "floating_value", "limit", "max_val", "min_val", "tril_fill_value"),
)
_BY_NAME = {word: kind for kind, words in _NAMED.items() for word in words.split()}
_BY_DEFAULT: Mapping[type, str] = {
    bool: "True or False",
    int: "an integer",
    float: "a number",
    str: "a string",
    DType: "an element type such as flow.float32",
}


def unfitting(name: str, value: Any, default: Any) -> str:
    """Describe the valid values of the attribute `name` if `value` is invalid; return "" otherwise.

    The type of `default`, or for another default the name, determines the valid values.
    """
    kind = _BY_DEFAULT.get(type(default)) or _BY_NAME.get(name, "")
    if not kind or (value is None and default is None):
        return ""
    if kind == "a number" and name not in _OF_ELEMENTS:
        return out_of_range(name, value)
    return "" if _SAYS[kind](value) else kind
