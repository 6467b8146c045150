"""Names that NumPy, Pillow and Python have dropped since; prints nothing."""

import collections
import inspect
import time

import numpy as np
from PIL import Image, ImageDraw, ImageFont

assert isinstance([], collections.Iterable) and isinstance({}, collections.MutableMapping) and callable(time.clock)
assert inspect.getargspec(lambda a, b=1, *c, **d: 0) == (["a", "b"], "c", "d", (1,))

assert Image.new("RGB", (4, 4)).resize((2, 2), Image.ANTIALIAS).size == (2, 2)
assert min(*ImageDraw.Draw(Image.new("L", (50, 50))).textsize("ab"), *ImageFont.load_default().getsize("ab")) > 0

bytes_of_two = np.arange(2, dtype=np.int8).tostring()
assert (bytes_of_two, np.int8(1).tostring()) == (b"\0\1", b"\1")
assert np.fromstring(bytes_of_two, np.int8).tolist() == [0, 1]
assert np.reshape(np.arange(6), newshape=(2, 3)).shape == np.reshape(np.arange(6), (2, 3)).shape == (2, 3)
assert np.asscalar(np.array([3.5])) == 3.5 and np.math.sqrt(4) == 2 and np.alen([1, 2]) == 2
assert np.cast[np.float32]([1, 2]).dtype == np.float32 and np.cast["int32"](1.5) == 1
assert np.find_common_type([np.float32], [np.int64]) == np.float32 and np.find_common_type([np.int64], [np.float64]) == np.float64
