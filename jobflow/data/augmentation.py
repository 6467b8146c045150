"""Random changes of images: rotation, colour and RandAugment, as a function of random words.

The operations and their ranges are those of E. Cubuk et al., "RandAugment: Practical automated data augmentation" (2020).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from jobflow.core.dataclass import dataclass
from jobflow.core.errors import ArgumentError
from jobflow.core.extras import optional
from jobflow.core.types import Array

WHAT = 'reader "images"'
#: the largest magnitude of RandAugment
LARGEST = 30
#: grey of pixels that a change moves into the image
GREY = 128


@dataclass(frozen=True)
class Augmentation:
    """Random changes of an image before it is scaled and cropped."""

    #: the largest angle in degrees
    rotation: float = 0.0
    #: the largest relative change of brightness, contrast and saturation
    colour: float = 0.0
    #: the number of operations of RandAugment, and their magnitude from 0 to LARGEST
    operations: int = 0
    magnitude: int = 9
    #: the reader in messages
    what: str = WHAT

    def __post_init__(self) -> None:
        if not 0 <= self.rotation <= 180:
            raise ArgumentError(f"{self.what}: rotation must be an angle from 0 to 180 degrees, not {self.rotation}")
        if not 0 <= self.colour < 1:
            raise ArgumentError(f"{self.what}: colour must be at least 0 and less than 1, not {self.colour}")
        if self.operations < 0 or not 0 <= self.magnitude <= LARGEST:
            legal = f"rand_augment must be a number of operations from 0 and magnitude from 0 to {LARGEST}"
            raise ArgumentError(f"{self.what}: {legal}, not {self.operations} and {self.magnitude}")

    @property
    def is_active(self) -> bool:
        """True if the augmentation can change an image."""
        return bool(self.rotation or self.colour or self.operations)

    def applied(self, image: Any, random_words: Array) -> Any:
        """Return a changed Pillow image of mode L or RGB; the changes are a function of `random_words`."""
        random = np.random.Generator(np.random.Philox([int(word) for word in random_words]))
        if self.rotation:
            image = _rotated(image, random.uniform(-self.rotation, self.rotation))
        if self.colour:
            for name in ("Brightness", "Contrast", "Color"):
                image = _enhanced(image, name, random.uniform(-self.colour, self.colour))
        for _ in range(self.operations):
            operation = _OPERATIONS[int(random.integers(len(_OPERATIONS)))]
            image = operation(image, self.magnitude / LARGEST, 1 if random.integers(2) else -1)
        return image


def _enhanced(image: Any, name: str, change: float) -> Any:
    return getattr(optional("PIL.ImageEnhance", WHAT), name)(image).enhance(1 + change)


def _rotated(image: Any, angle: float) -> Any:
    return image.rotate(angle, optional("PIL.Image", WHAT).Resampling.BILINEAR, fillcolor=_fill(image))


def _fill(image: Any) -> Any:
    return GREY if image.mode == "L" else (GREY, GREY, GREY)


def _moved(image: Any, *matrix: float) -> Any:
    module = optional("PIL.Image", WHAT)
    return image.transform(image.size, module.Transform.AFFINE, matrix, module.Resampling.BILINEAR, fillcolor=_fill(image))


def _unary(name: str) -> Callable[[Any, float, int], Any]:
    return lambda image, strength, sign: getattr(optional("PIL.ImageOps", WHAT), name)(image)


def _enhancement(name: str) -> Callable[[Any, float, int], Any]:
    return lambda image, strength, sign: _enhanced(image, name, sign * 0.9 * strength)


#: functions of an image, the strength from 0 to 1, and a sign
_OPERATIONS: tuple[Callable[[Any, float, int], Any], ...] = (
    lambda image, strength, sign: image,
    _unary("autocontrast"),
    _unary("equalize"),
    *map(_enhancement, ("Brightness", "Contrast", "Color", "Sharpness")),
    lambda image, strength, sign: _rotated(image, sign * 30 * strength),
    lambda image, strength, sign: optional("PIL.ImageOps", WHAT).posterize(image, 8 - round(4 * strength)),
    lambda image, strength, sign: optional("PIL.ImageOps", WHAT).solarize(image, round(256 * (1 - strength))),
    lambda image, strength, sign: _moved(image, 1, sign * 0.3 * strength, 0, 0, 1, 0),
    lambda image, strength, sign: _moved(image, 1, 0, 0, sign * 0.3 * strength, 1, 0),
    lambda image, strength, sign: _moved(image, 1, 0, sign * 0.45 * strength * image.width, 0, 1, 0),
    lambda image, strength, sign: _moved(image, 1, 0, 0, 0, 1, sign * 0.45 * strength * image.height),
)
