"""Peak rates of this GPU: device copies and a bfloat16 product.

python ceilings.py [--small]
"""

from __future__ import annotations

import argparse
import importlib
from collections.abc import Callable
from statistics import median
from typing import Any

import numpy as np
import step_timing

WARM, TIMED = 3, 10


def milliseconds(cupy: Any, call: Callable[[], Any]) -> float:
    """Return the median GPU time of a call, measured by events."""
    begin, end = cupy.cuda.Event(), cupy.cuda.Event()
    times = []
    for turn in range(WARM + TIMED):
        begin.record()
        call()
        end.record()
        end.synchronize()
        if turn >= WARM:
            times.append(cupy.cuda.get_elapsed_time(begin, end))
    return median(times)


def copy_rate(cupy: Any, nbytes: int) -> None:
    """Copy within the GPU's memory; the rate counts bytes read and bytes written."""
    source, target = cupy.ones(nbytes, np.uint8), cupy.empty(nbytes, np.uint8)
    ms = milliseconds(cupy, lambda: target.data.copy_from_device_async(source.data, nbytes))
    step_timing.emit(figure="copy", gb=nbytes / 1e9, ms=ms, tb_per_s=2 * nbytes / ms / 1e9)


def product_rate(cupy: Any, side: int) -> None:
    """Multiply two square matrices of random bfloat16 numbers; zeros would be faster."""
    bfloat16 = importlib.import_module("ml_dtypes").bfloat16
    random = np.random.default_rng(0)
    a, b = (cupy.asarray(random.standard_normal((side, side), np.float32).astype(bfloat16)) for _ in range(2))
    ms = milliseconds(cupy, lambda: cupy.matmul(a, b))
    step_timing.emit(figure="product", side=side, ms=ms, tflop_per_s=2 * side**3 / ms / 1e9)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--small", action="store_true", help="megabytes, not gigabytes")
    options = parser.parse_args()
    cupy = importlib.import_module("cupy")
    copy_rate(cupy, 4 << (20 if options.small else 30))
    product_rate(cupy, 64 if options.small else 8192)


if __name__ == "__main__":
    main()
