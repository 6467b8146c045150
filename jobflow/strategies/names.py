"""Short names of strategies, for command lines."""

from __future__ import annotations

import re
from collections.abc import Callable

from jobflow.core.errors import ConfigError, did_you_mean_or
from jobflow.strategies.combine import mesh
from jobflow.strategies.data_parallel import consistent, data_parallel, mirrored, zero
from jobflow.strategies.pipeline import pipeline
from jobflow.strategies.strategy_class import Strategy
from jobflow.strategies.tensor_parallel import tensor_parallel

_SHORT = {
    "consistent": consistent(),
    "mirrored": mirrored(),
    "dp": data_parallel(),
    "tp": tensor_parallel(),
    "pp": pipeline(),
    "zero1": zero(1),
    "zero2": zero(2),
    "zero3": zero(3),
}
_ALONG: dict[str, Callable[[int], Strategy]] = {"dp": data_parallel, "tp": tensor_parallel, "pp": pipeline}
_SIZES = ("data", "tensor", "pipeline", "zero", "microbatches", "stages", "least")


def named(text: str) -> Strategy:
    """Return the strategy with the short name `text`.

    dp, tp, pp, zero1, zero2, zero3     over all ranks; a number of ranks may follow dp, tp and pp
    2x2, 2x2x2                          data x tensor, pipeline x data x tensor
    data=2,tensor=2,zero=1              the arguments of `mesh`
    """
    short = re.fullmatch(r"(dp|tp|pp)(\d+)", text)
    if text in _SHORT:
        return _SHORT[text]
    if short is not None:
        return _ALONG[short[1]](int(short[2]))
    if re.fullmatch(r"\d+x\d+(x\d+)?", text):
        *stages, data, tensor = map(int, text.split("x"))
        return mesh(pipeline=stages[0] if stages else 1, data=data, tensor=tensor)
    if "=" in text:
        return mesh(**dict(_assigned(text, part) for part in text.split(",")))  # type: ignore[arg-type]
    advice = f"write {', '.join(_SHORT)}, 2x2, or data=2,tensor=2,zero=1"
    raise ConfigError(f"unknown strategy {text!r}{did_you_mean_or(text, _SHORT, advice)}")


def _assigned(text: str, part: str) -> tuple[str, int | str]:
    name, _, value = (word.strip() for word in part.partition("="))
    if name == "schedule":
        return name, value
    if name not in _SIZES or not value.isdecimal():
        near = did_you_mean_or(name, (*_SIZES, "schedule"), "write numbers, such as data=2")
        raise ConfigError(f'strategy "{text}": unknown part {part!r}{near}')
    return name, int(value)
