"""The namespace `flow.cuda`: queries of the GPUs of this process.

Only jobs run on GPUs.  With a GPU present, tensors and graphs reject the device "cuda"; without a GPU, the device "cuda" uses host memory.
"""

from jobflow.runtime.device import cupy_device as cuda


def device_count() -> int:
    """Return the number of GPUs visible to this process."""
    return cuda.available()


def is_available() -> bool:
    """Return True if this process has at least one GPU."""
    return device_count() > 0
