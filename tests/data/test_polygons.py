"""Polygons as masks, to the pixel as the reference of the COCO data set paints them."""

from __future__ import annotations

import numpy as np
import pytest

from jobflow.legacy.extras.object_stages import painted

#: corners, and the bits of the mask of 12 x 16 pixels that pycocotools 2.0 makes of them
RECORDED = [
    ([[16.8, 7.7], [17.5, -1.3], [9.8, 4.9]], "000100030007000f003f001f000300000000000000000000"),
    ([[13.8, 0.7], [15.3, 8.4], [15.9, 7.0], [6.0, 13.6]], "000000040004000c001e001e003e003f007c00f000e00180"),
    ([[17.7, 4.8], [17.3, 16.5], [0.7, 9.8], [11.8, 16.8], [11.0, -0.2]], "00100018001e001f001f001f001f001f001f001f200f080f"),
    ([[7.5, 7.4], [7.5, 17.1], [4.3, 1.7], [8.0, 10.5], [16.7, 9.2], [2.6, 16.5], [7.3, 11.2]], "0000000000000000040004000400020002000201027c02f0"),
    ([[7.0, 1.6], [11.5, 13.2], [1.0, 6.7], [7.0, 1.6]], "00000000020007000f003f807f803f800fc003c001e00060"),
]


@pytest.mark.parametrize(("corners", "bits"), RECORDED)
def test_masks_are_those_of_the_reference(corners: list[list[float]], bits: str) -> None:
    assert np.packbits(painted(np.array(corners), 12, 16)).tobytes().hex() == bits
