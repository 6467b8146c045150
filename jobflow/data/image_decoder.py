"""Decoding of image files to squares of pixels, with random crops, flips and augmentations."""

from __future__ import annotations

from typing import Any, BinaryIO

import numpy as np

from jobflow.core.dataclass import dataclass
from jobflow.core.errors import ArgumentError, DataError
from jobflow.core.extras import optional
from jobflow.core.types import Array
from jobflow.data.augmentation import Augmentation
from jobflow.data.pixels import BYTE, PixelError, deep_grey, upright, white_of
from jobflow.expressions import philox
from jobflow.storage.untrusted import IMAGE, Fault

WHAT = 'reader "images"'
#: the formats of Pillow that are read; some of its other formats start programs
FORMATS = ("PNG", "JPEG", "BMP", "GIF", "WEBP", "TIFF", "PPM")
#: Pillow's mode by number of channels
MODES = {1: "L", 3: "RGB"}


@dataclass(frozen=True)
class Decoder:
    """A decoder of image files to squares; `crop` and `flip` make random choices possible."""

    size: int
    channels: int
    #: pixels of the shorter side before the crop
    resize: int
    orientation: bool = True
    crop: bool = False
    flip: bool = False
    augmentation: Augmentation = Augmentation()
    #: the key of random choices
    key: philox.Key = (0, 0)

    def random_words(self, indices: Array, epoch: int) -> Array | None:
        """Return the random words of the samples with these indices as uint32[4,n]; None if nothing is random."""
        if not (self.crop or self.flip or self.augmentation.is_active):
            return None
        return philox.words(np, self.key, indices.astype(np.uint64), epoch)

    def square(self, content: BinaryIO, name: str, fault: Fault, random_words: Array | None = None) -> Array:
        """Return the cropped square of an image file as float32[channels, size, size] in 0..1; raise the error of `fault` for a damaged file.

        `random_words` determine a random crop and flip; with None, the square is in the centre and not mirrored.
        """
        image_module = pillow()
        try:
            with image_module.open(content, formats=FORMATS) as opened:
                IMAGE.check(opened.width * opened.height, name, fault)
                image = self._decoded(opened, image_module)
        except PixelError as error:
            raise fault(f"{name}: {error}") from None
        except DataError:  # too many pixels
            raise
        except image_module.UnidentifiedImageError:
            raise fault(f"{name} cannot be read as an image: it has none of the formats {', '.join(FORMATS)}; convert or remove the file") from None
        except Exception as error:  # a broken image can raise any exception in the decoder
            raise fault(f"{name} cannot be read as an image: {error}; replace or remove the file") from error
        if random_words is not None and self.augmentation.is_active:
            image = self.augmentation.applied(image.convert(MODES[self.channels]), random_words)
        return self._cropped(image, image_module.Resampling.BILINEAR, random_words)

    def _decoded(self, opened: Any, image_module: Any) -> Any:
        """Return an opened image as a Pillow image with pixels in 0..255: bytes, or floats for more than 8 bits."""
        white = white_of(opened)
        if white == BYTE:
            opened.draft(MODES[self.channels], (self.resize, self.resize))  # decodes JPEG at the nearest larger scale
            image = opened.convert(MODES[self.channels])
        else:
            image = image_module.fromarray(deep_grey(opened, white))
        return upright(image, opened, image_module.Transpose) if self.orientation else image

    def _cropped(self, image: Any, resampling: Any, random_words: Array | None) -> Array:
        factor = self.resize / min(image.size)
        sides = [max(self.resize, round(side * factor)) for side in image.size]
        free = [side - self.size for side in sides]
        left, top = (
            (int(word) % (n + 1) for word, n in zip(random_words[:2], free, strict=True))
            if random_words is not None and self.crop
            else (n // 2 for n in free)
        )
        pixels = np.asarray(image.resize(sides, resampling), np.float32)[top : top + self.size, left : left + self.size]
        square = pixels.reshape(self.size, self.size, -1) / np.float32(BYTE)
        if self.flip and random_words is not None and random_words[2] & 1:
            square = square[:, ::-1]
        return square.transpose(2, 0, 1)


def pillow() -> Any:
    """Return Pillow's Image module; its limit of image sizes is increased if the user configured a larger limit."""
    Image = optional("PIL.Image", WHAT)
    if IMAGE.most > IMAGE.default:
        Image.MAX_IMAGE_PIXELS = IMAGE.most  # Pillow's own limit
    return Image


def decoder_of(
    what: str,
    *,
    size: int,
    channels: int,
    resize: int | None,
    crop: str,
    flip: bool,
    rotation: float,
    colour: float,
    rand_augment: int,
    magnitude: int,
    seed: int,
    orientation: bool = True,
) -> Decoder:
    """Return the decoder for arguments of the reader `what`; raise ArgumentError for arguments out of range."""
    augmentation = Augmentation(rotation, colour, rand_augment, magnitude, what)
    shorter = size if resize is None else resize
    if crop not in ("center", "random") or channels not in MODES:
        raise ArgumentError(f'{what}: crop must be "center" or "random" and channels 1 or 3, not "{crop}" and {channels}')
    if not 1 <= size <= shorter:
        raise ArgumentError(f"{what}: size {size} must be at least 1 and at most resize {shorter}, the shorter side of an image in pixels")
    return Decoder(size, channels, shorter, orientation, crop == "random", flip, augmentation, philox.key_of(seed, "augmentation"))
