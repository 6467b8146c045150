"""Names that Python and Pillow removed and programs of 2020 use: `collections.Iterable`, `inspect.getargspec`, `Image.ANTIALIAS`."""

from __future__ import annotations

import collections
import collections.abc
import inspect
import time
from collections.abc import Callable, Mapping
from importlib.util import find_spec
from typing import Any, NamedTuple

#: image filters by their names before Pillow 10
FILTERS = {"ANTIALIAS": "LANCZOS", "LINEAR": "BILINEAR", "CUBIC": "BICUBIC"}


class ArgSpec(NamedTuple):
    """The parameters of a function, without keyword-only parameters and annotations."""

    args: list[str]
    varargs: str | None
    keywords: str | None
    defaults: tuple[Any, ...] | None


def getargspec(func: Callable[..., Any]) -> ArgSpec:
    """Return the parameters of a function that has neither keyword-only parameters nor annotations."""
    spec = inspect.getfullargspec(func)
    if spec.kwonlyargs or spec.annotations:
        raise ValueError("Function has keyword-only parameters or annotations, use inspect.signature() API which can support them")
    return ArgSpec(spec.args, spec.varargs, spec.varkw, spec.defaults)


def textsize(self: Any, text: str, font: Any = None, *arguments: Any, **options: Any) -> tuple[int, int]:
    """Return the width and height in pixels of `text` drawn at the origin, as the removed `ImageDraw.textsize` did."""
    box = self.textbbox((0, 0), text, font, None, *arguments, **options)
    return int(box[2]), int(box[3])


def getsize(self: Any, text: str, *arguments: Any, **options: Any) -> tuple[int, int]:
    """Return the width and height in pixels of `text` in this font, as the removed method `getsize` of fonts did."""
    box = self.getbbox(text, *arguments, **options)
    return int(box[2]), int(box[3])


def restore() -> None:
    """Add missing names to the standard library and, if it is installed, to Pillow, for the rest of the process."""
    add(collections, {name: getattr(collections.abc, name) for name in collections.abc.__all__})
    add(inspect, {"getargspec": getargspec, "ArgSpec": ArgSpec})
    add(time, {"clock": time.perf_counter})
    if find_spec("PIL") is None:
        return
    from PIL import Image, ImageDraw, ImageFont

    add(Image, {old: getattr(Image.Resampling, new) for old, new in FILTERS.items()})
    add(ImageDraw.ImageDraw, {"textsize": textsize})
    add(ImageFont.FreeTypeFont, {"getsize": getsize})


def add(owner: Any, names: Mapping[str, Any]) -> None:
    """Set the attributes in `names` that `owner` lacks.

    The check reads `vars(owner)`, because `getattr` of a deprecated name warns.
    """
    for name, value in names.items():
        if name not in vars(owner):
            setattr(owner, name, value)
