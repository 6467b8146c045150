"""The model of a configuration as a function of a batch: a builder, a module, or a list of layers."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Container, Mapping
from dataclasses import replace
from functools import partial
from types import CodeType
from typing import Any

import jobflow.core.scope as scope
import jobflow.legacy.arrays as arrays
import jobflow.legacy.layers as layers
import jobflow.legacy.math as math
import jobflow.nn as nn
from jobflow.core.dataclass import dataclass
from jobflow.core.errors import ConfigError, SourceLine, at_line, counted, did_you_mean_or
from jobflow.core.filters import matches
from jobflow.core.scope import checkpointed
from jobflow.core.types import TensorType, float32, int32
from jobflow.engine.placements import placement, sbp
from jobflow.engine.session import current_session
from jobflow.functional.sampling import manual_seed
from jobflow.legacy.initializers import random_normal_initializer
from jobflow.legacy.variables import get_variable
from jobflow.models.building_blocks import he
from jobflow.models.generation.key_value_cache import Cache
from jobflow.nn.modules.module import Module
from jobflow.trainer.config import Loaded
from jobflow.trainer.config.functions import makes_module
from jobflow.trainer.criterion import LABELS, Criterion, criterion_of, separate_mixture

#: the name of a list of layers in messages
LISTED = "the list of layers"
#: the parameter of a model for a key-value cache
CACHE = "cache"


@dataclass(frozen=True)
class Network:
    """A model as a function from named fields to named outputs; `where` is the source line of the function."""

    function: Callable[..., Mapping[str, Any]]
    #: accepted fields, required fields, and True if the function accepts any other field
    known: tuple[str, ...]
    needed: tuple[str, ...]
    others: bool
    where: SourceLine
    what: str
    #: the model's key in the configuration, and the key's source line
    key: str
    #: the module; None for a builder and for a list of layers
    module: Module | None = None
    #: the loss of scores; None for a builder, which returns its own
    criterion: Criterion | None = None
    #: True if the function accepts a key-value cache, the parameter `cache`
    cached: bool = False

    def __call__(self, batch: Mapping[str, Any], cache: Cache | None = None) -> Mapping[str, Any]:
        """Return the outputs for a batch, and extend the cache; raise ConfigError if the outputs are not a dict of tensors."""
        outputs = self.function(dict(batch), **({} if cache is None else {CACHE: cache}))
        if isinstance(outputs, Mapping) and all(map(_is_tensor, outputs.values())):
            return outputs
        what = f"{self.named} returned {_described(outputs)}, for {', '.join(batch)}"
        advice = 'a builder returns a dict of tensors, such as {"loss": loss} or, without labels, {"scores": scores}'
        if isinstance(outputs, Module):
            advice = "a function that returns a module has the annotation -> nn.Module"
        elif self.module is not None:
            what = f"{self.key}: forward of {self.what} at {_forward_line(self.module)} returned {_described(outputs)}, for {', '.join(batch)}"
            advice = 'return the tensor of scores, or a dict of tensors such as {"loss": loss}'
        raise ConfigError(f"{what}; {advice}")

    def taken(self, fields: Mapping[str, TensorType]) -> dict[str, TensorType]:
        """Return the fields that the model uses; raise ConfigError if a required field is missing, or if the model uses none of the fields."""
        missing = [name for name in self.needed if name not in fields]
        if missing:
            near = did_you_mean_or(missing[0], fields, f"the samples have {', '.join(fields) or 'none'}{self._advice()}")
            raise ConfigError(f'{self.named} needs a field "{missing[0]}"{near}')
        arguments = {name: type for name, type in fields.items() if self.others or name in self.known}
        if fields and not arguments:
            message = f"{self.named} takes none of the fields {', '.join(fields)}"
            raise ConfigError(f"{message}{self._advice()}")
        return arguments

    def inputs(self, fields: Mapping[str, TensorType]) -> dict[str, TensorType]:
        """Return the required fields, which a prediction reads; optional fields such as labels are omitted."""
        return {name: type for name, type in self.taken(fields).items() if name in self.needed}

    def _advice(self) -> str:
        if self.module is not None or self._is_own:
            return ""
        what = "parameters of a builder are fields, unless model.arguments sets them"
        return f"; {what}. A function that returns a module has the annotation -> nn.Module"

    def without_loss(self, outputs: Mapping[str, Any], batch: Mapping[str, Any], fields: Mapping[str, TensorType]) -> ConfigError:
        """Return the error for outputs of a training batch without a loss; `fields` are the fields of the samples."""
        message = f"{self.named} returned {', '.join(outputs) or 'an empty dict'}, for {', '.join(batch)}"
        if LABELS not in fields:
            first = "" if self.what == LISTED else 'return {"loss": loss}, or '
            others = {LABELS: next((name for name in fields if name not in batch), "TARGETS")}
            renamed = ", ".join(f"{field}: {name}" for field, name in ({name: name for name in batch} | others).items())
            advice = f'the samples have {", ".join(fields)}, and no field "{LABELS}": {first}name it, such as data.train.fields: {{{renamed}}}'
        elif self.module is not None and (wrong := _not_a_field(self.module, fields)):
            first = next(iter(batch))
            advice = f'the parameter "{wrong}" of forward is not a field, so forward gets "{first}" alone: name the parameter "{first}"'
        elif self.module is not None and LABELS in _parameters(self.module):
            advice = 'forward takes labels, so it returns {"loss": loss}, or a dict with more; or omit its parameter "labels" and return the scores'
        else:
            advice = "add it to the dict" + (", or return the tensor of scores" if self.module is not None else "")
        return ConfigError(f'{message}; training needs a "loss". {advice[0].upper()}{advice[1:]}')

    @property
    def named(self) -> str:
        """The start of messages: the key of the configuration, its value, and the source line of the value."""
        return f"{self.key}: {self.what}" + ("" if self._is_own else f" at {self.where}")

    @property
    def _is_own(self) -> bool:
        return self.what == LISTED or self.what.startswith("jobflow.")


def network_of(loaded: Loaded) -> Network:
    """Return the model of a configuration that was loaded with its builder."""
    model = loaded.config.model
    if model.builder is None:
        return _listed(loaded)
    key = _key_of(loaded, "model.builder")
    if loaded.builder is None:
        raise ConfigError(f"model.builder: {model.builder} was not imported; load the configuration with look_outside=True")
    if makes_module(loaded.builder):
        return _of_module(loaded, loaded.builder, model.builder, key)
    return _built(loaded.builder, model.builder, dict(model.arguments), loaded.config.strategy.recompute, key)


def _key_of(loaded: Loaded, key: str) -> str:
    return f"{key} at {line_of(loaded, key)}"


def _is_tensor(value: Any) -> bool:
    return isinstance(getattr(value, "tensor_type", None), TensorType)


def _described(value: Any) -> str:
    """Describe a result that is not a dict of tensors."""
    if value is None:
        return "nothing: it has no return"
    if isinstance(value, Mapping):
        name, wrong = next((name, one) for name, one in value.items() if not _is_tensor(one))
        return f'a dict whose "{name}" is {_described(wrong)}'
    if isinstance(value, list | tuple):
        return f"a {type(value).__name__} of {counted(len(value), 'value')}"
    return "a tensor" if _is_tensor(value) else f"{value!r:.100} of type {type(value).__name__}"


@dataclass(frozen=True)
class KeyLine(SourceLine):
    """The line of a key of a configuration; prints as ``lenet.yaml:12 (strategy.accumulation)``, or as the setting of a command line."""

    key: str

    def __str__(self) -> str:
        return f"{SourceLine.__str__(self)} ({self.key})" if self.line else self.file


def key_line(loaded: Loaded, key: str) -> KeyLine:
    """Return the line of a key, or its setting on the command line, for messages about its value."""
    source = loaded.origin(key)
    return KeyLine(source.file, source.line, key)


def line_of(loaded: Loaded, key: str) -> SourceLine:
    """Return the source line of a configuration value for messages and tables; the file's first line for defaults and settings."""
    origin = loaded.origin(key)
    return SourceLine(origin.file, origin.line) if origin.line else SourceLine(loaded.files[0], 1)


# -------------------------------------------------------------------- builders


def _built(function: Callable[..., Any], target: str, arguments: dict[str, Any], recompute: bool, key: str) -> Network:
    parameters = inspect.signature(function).parameters
    anything = any(p.kind is p.VAR_KEYWORD for p in parameters.values())
    if recompute:
        arguments = {**arguments, "recompute": True}
    named = {n: p for n, p in parameters.items() if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY) and n not in arguments}
    # keyword-only parameters are arguments of the configuration, not fields
    fields = {n: p for n, p in named.items() if p.kind is p.POSITIONAL_OR_KEYWORD}
    code = getattr(inspect.unwrap(function), "__code__", None)
    where = SourceLine(target, 0) if code is None else _line_of(code)

    def outputs(batch: Mapping[str, Any], **cache: Any) -> Mapping[str, Any]:
        results: Mapping[str, Any] = function(**batch, **arguments, **cache)
        return results

    needed = tuple(n for n, p in fields.items() if p.default is p.empty)
    return Network(outputs, tuple(fields), needed, anything, where, target, key, cached=CACHE in named and CACHE not in fields)


# -------------------------------------------------------------------- modules


def _of_module(loaded: Loaded, builder: Callable[..., Any], target: str, key: str) -> Network:
    """Return the network of a module that is built with the configuration's seed, so that initial values are the same on all ranks.

    Raises: ConfigError if `builder` does not return a module.
    """
    config = loaded.config
    manual_seed(config.seed)
    recompute = {"recompute": True} if config.strategy.recompute else {}
    module = builder(**config.model.arguments, **recompute)
    if not isinstance(module, Module):
        raise ConfigError(f"{key}: {target} is annotated to return an nn.Module, but returned {module!r}; return a module")
    session = current_session()
    if session.multi and session.device_tag == "cpu":  # the strategy lays out a global module; a local one is replicated
        module.to_global(placement("cpu", range(session.device_count())), sbp.broadcast)
    code = type(module).forward.__code__ if inspect.isclass(builder) else inspect.unwrap(builder).__code__
    criterion = criterion_of(loaded)
    cached = CACHE in _parameters(module)
    return Network(partial(_measured, module, criterion), (), (), True, _line_of(code), target, key, module, criterion, cached)


def _line_of(code: CodeType) -> SourceLine:
    return SourceLine(code.co_filename, code.co_firstlineno)


def _measured(module: Module, criterion: Criterion, batch: dict[str, Any], **cache: Any) -> Mapping[str, Any]:
    """Apply a module to a batch and to a cache, if any, and return its dict of outputs.

    If the module returns a tensor of scores, the dict has the loss of the scores against the labels, or only the scores without labels.
    """
    mixed = separate_mixture(batch)
    fields = {name: _scaled(x) if name != LABELS else x for name, x in batch.items()}
    named = _by_name(module, batch)
    labels = None if named is not None and LABELS in named else fields.pop(LABELS, None)
    job: Any = scope.current().interpreter
    modes = [(each, each.training) for each in module.modules()]
    module.train(job.trainable)
    for name, each in module.named_modules():  # frozen statistics normalize as in evaluation
        if any(matches(job.frozen, f"{name}.{buffer}".lstrip(".")) for buffer, _ in each.named_buffers(recurse=False)):
            each.training = False
    try:
        results = module(*fields.values(), **cache) if named is None else module(**fields, **cache)
    finally:
        for each, mode in modes:
            each.training = mode
    if mixed is not None and (labels is None or not _is_tensor(results)):
        raise ConfigError(
            f"forward of {type(module).__name__} at {_forward_line(module)} computes its own loss, and mixup and cutmix need the loss of scores for "
            f"both labels; return the tensor of scores and set model.loss, or omit data.mixup and data.cutmix"
        )
    return criterion(results, labels, mixed) if _is_tensor(results) else results


def _scaled(x: Any) -> Any:
    """Convert uint8 pixels to floats from 0 to 1."""
    return math.multiply(arrays.cast(x, float32), 1 / 255) if x.tensor_type.dtype.name == "uint8" else x


def _by_name(module: Module, fields: Container[str]) -> dict[str, bool] | None:
    """Return {parameter name: True if it is required} for the module's `forward`.

    Return None if `forward` has no named parameters, or if a required parameter is not in `fields`.
    """
    named = _parameters(module)
    return named if named and all(n in fields for n, needed in named.items() if needed) else None


def _parameters(module: Module) -> dict[str, bool]:
    """Return {parameter name: True if it is required} for the module's `forward`, without `*args` and `**kwargs`."""
    kinds = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
    return {n: p.default is p.empty for n, p in inspect.signature(module.forward).parameters.items() if p.kind in kinds}


def _not_a_field(module: Module, fields: Container[str]) -> str:
    """Return the first required parameter of `forward` that is not a field, or ""."""
    return next((name for name, needed in _parameters(module).items() if needed and name not in fields), "")


def _forward_line(module: Module) -> SourceLine:
    return _line_of(inspect.unwrap(type(module).forward).__code__)


def _check_takes_one(module: Module, network: Network, fields: Mapping[str, TensorType]) -> None:
    """Raise ConfigError, with the fields of the samples, unless `forward` of the module accepts a single positional argument."""
    try:
        inspect.signature(module.forward).bind(None)
    except TypeError:
        needed = [name for name, is_needed in _parameters(module).items() if is_needed]
        wrong = _not_a_field(module, fields)
        advice = f"the samples have {', '.join(fields)}. Name the parameters after these fields, or take one tensor"
        message = f"{network.key}: forward of {network.what} at {_forward_line(module)} takes {', '.join(needed) or 'no fields'}"
        if not wrong:
            raise ConfigError(f"{message}; {advice}") from None
        raise ConfigError(f'{message}, and "{wrong}" is not a field{did_you_mean_or(wrong, fields, advice)}') from None


# -------------------------------------------------------------------- layers


def _listed(loaded: Loaded) -> Network:
    """Return a sequential net: the layers applied in order to the input, and a loss against the labels."""
    config = loaded.config
    listed, criterion = config.model.layers or (), criterion_of(loaded)

    def outputs(batch: Mapping[str, Any]) -> Mapping[str, Any]:
        own = dict(batch)
        labels, mixed = own.pop(LABELS, None), separate_mixture(own)
        x = next(iter(own.values()))
        if not x.tensor_type.dtype.is_float and listed[0].kind != "embedding":
            # pixel values are converted; embedding indices stay integers
            x = math.multiply(arrays.cast(x, float32), 1 / 255 if x.tensor_type.dtype.name == "uint8" else 1.0)
        for index, layer in enumerate(listed, 1):
            apply = checkpointed(_LAYERS[layer.kind]) if config.strategy.recompute else _LAYERS[layer.kind]
            with at_line(line_of(loaded, f"model.layers.{index - 1}")):
                x = apply(x, layer.arguments, f"{layer.kind}{index}")
        with at_line(line_of(loaded, "model.loss" if "model.loss" in loaded.origins else "model.layers")):
            return criterion(x, labels, mixed)

    return Network(outputs, (), (), True, line_of(loaded, "model.layers"), LISTED, _key_of(loaded, "model.layers"), None, criterion)


def layered(network: Network, fields: Mapping[str, TensorType]) -> Network:
    """Bind a list of layers or a module to samples with these fields; return other networks unchanged.

    The field "labels" contains the labels, and the first other field is the input. A module whose `forward` has parameters named after fields takes
    those fields.
    """
    if not fields or (network.what != LISTED and network.module is None):
        return network
    named = None if network.module is None else _by_name(network.module, fields)
    if named is None and network.module is not None:
        _check_takes_one(network.module, network, fields)
    inputs = [name for name in fields if name != LABELS] if named is None else [name for name, needed in named.items() if needed]
    if not inputs:
        raise ConfigError(
            f"{network.key}: {network.what} needs an input field, but the samples have {', '.join(fields) or 'no fields'}; add a field to data.train"
        )
    if named is None:
        del inputs[1:]
    return replace(network, known=(*inputs, *(named or {}), LABELS), needed=tuple(inputs), others=False)


def _swish(x: Any, name: str | None = None) -> Any:
    return math.multiply(x, math.sigmoid(x), name=name)


def _function(name: str | None) -> Any:
    if name is None:
        return None
    return _swish if name == "swish" else getattr(nn, name, None) or getattr(math, name)


def _rows(x: Any) -> Any:
    return arrays.reshape(x, [x.tensor_type.shape[0], -1])


def _pair(size: Any) -> Any:
    return size if isinstance(size, int) else list(size)


def _dense(x: Any, layer: Any, name: str) -> Any:
    return layers.dense(x, layer.units, _function(layer.activation), layer.use_bias, he(), name=name)


def _conv2d(x: Any, layer: Any, name: str) -> Any:
    size, strides, padding = _pair(layer.kernel_size), _pair(layer.strides), layer.padding.upper()
    options = {"groups": layer.groups, "activation": _function(layer.activation), "use_bias": layer.use_bias, "kernel_initializer": he()}
    return layers.conv2d(x, layer.filters, size, strides, padding, name=name, **options)


def _pool(function: Callable[..., Any], x: Any, layer: Any, name: str) -> Any:
    return function(x, ksize=_pair(layer.size), strides=_pair(layer.strides or layer.size), padding=layer.padding.upper(), name=name)


def _embedding(x: Any, layer: Any, name: str) -> Any:
    table = get_variable(name, (layer.rows, layer.units), initializer=random_normal_initializer(stddev=0.05))
    return arrays.gather(table, arrays.cast(x, int32))


_LAYERS: dict[str, Callable[[Any, Any, str], Any]] = {
    "dense": _dense,
    "conv2d": _conv2d,
    "max_pool2d": partial(_pool, nn.max_pool2d),
    "avg_pool2d": partial(_pool, nn.avg_pool2d),
    "global_avg_pool2d": lambda x, layer, name: math.reduce_mean(x, axis=[2, 3]),
    "flatten": lambda x, layer, name: _rows(x),
    "dropout": lambda x, layer, name: nn.dropout(x, rate=layer.rate, name=name),
    "batch_norm": lambda x, layer, name: layers.batch_normalization(x, layer.axis, layer.momentum, layer.epsilon, name=name),
    "layer_norm": lambda x, layer, name: layers.layer_norm(x, begin_norm_axis=x.tensor_type.ndim - 1, epsilon=layer.epsilon, name=name),
    "activation": lambda x, layer, name: _function(layer.function)(x),
    "embedding": _embedding,
    "reshape": lambda x, layer, name: arrays.reshape(x, [x.tensor_type.shape[0], *layer.shape]),
}
