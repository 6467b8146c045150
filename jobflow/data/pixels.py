"""Pixels of image files as Pillow opens them: rotated upright, and scaled by the bit depth of the file."""

from __future__ import annotations

from typing import Any

import numpy as np

from jobflow.core.errors import DataError
from jobflow.core.types import Array

#: EXIF tag of the orientation, and the transposition that reverts each value
ORIENTATION = 0x0112
_TURNS = {2: "FLIP_LEFT_RIGHT", 3: "ROTATE_180", 4: "FLIP_TOP_BOTTOM", 5: "TRANSPOSE", 6: "ROTATE_270", 7: "TRANSVERSE", 8: "ROTATE_90"}
#: TIFF tags: bits per sample, and photometric interpretation, which is 0 if zero is white
_BITS, _PHOTOMETRIC = 258, 262
BYTE = 255


class PixelError(DataError):
    """Error for pixels that cannot be read, without the name of the file."""


def white_of(opened: Any) -> int:
    """Return the value of white in an opened image: 255, or more with more than 8 bits.

    Raises: PixelError for 32-bit integers and floats, whose range is unknown.
    """
    mode, tags = opened.mode, getattr(opened, "tag_v2", None)
    if mode.startswith("I;16"):
        if tags is None:
            return 2**16 - 1
        bits = tags.get(_BITS, 16)
        return int(2 ** (bits[0] if isinstance(bits, tuple) else bits) - 1)
    if mode == "I" and opened.format in ("PNG", "PPM"):
        return 2**16 - 1
    if mode in ("I", "F"):
        kind = "floats" if mode == "F" else "integers of 32 bits, or with a sign"
        raise PixelError(f'its pixels are {kind}, whose range is unknown; save it with 8 or 16 bits, or read arrays with the reader "numpy"')
    return BYTE


def deep_grey(opened: Any, white: int) -> Array:
    """Return the pixels of a grey image with more than 8 bits as float32 from 0 to 255."""
    pixels = np.asarray(opened, np.float32) * np.float32(BYTE / white)
    tags = getattr(opened, "tag_v2", None)
    return BYTE - pixels if tags is not None and tags.get(_PHOTOMETRIC) == 0 else pixels


def upright(image: Any, opened: Any, transpose: Any) -> Any:
    """Return `image` rotated or mirrored by the EXIF orientation of `opened`; `transpose` is Pillow's enumeration."""
    turn = _TURNS.get(opened.getexif().get(ORIENTATION, 1))
    return image if turn is None else image.transpose(getattr(transpose, turn))
