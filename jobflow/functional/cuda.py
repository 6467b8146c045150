"""flow.cuda: whether there are GPUs.  Jobs run on them; tensors and graphs refuse the device "cuda" there, and without a GPU live on the host."""

from jobflow.runtime.device import cupy_device as cuda


def device_count() -> int:
    """How many GPUs this process sees."""
    return cuda.available()


def is_available() -> bool:
    """Whether there is one."""
    return device_count() > 0
