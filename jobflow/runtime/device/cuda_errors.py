"""Errors of kernels, which a GPU reports at a later call.

After such an error, the context of the process is unusable: every call of CUDA fails.
"""

from __future__ import annotations

from jobflow.core.errors import JobflowError

#: numbers of cudaError for failed kernels and memory: ECC and NVLink errors, and 700 to 720
_FATAL = frozenset({214, 220, 700, 702, 709, 710, *range(714, 722)})
#: the remedy in messages
FIND = 'run again with flow.config.debug("sync") or CUDA_LAUNCH_BLOCKING=1, which names the instruction and its line, in a new process'


class KernelFailure(JobflowError):
    """Error of a kernel, with the text of CUDA; the process cannot use the GPU any more."""

    #: True if the message names the job and its instructions
    is_located = False


def is_kernel_failure(error: BaseException) -> bool:
    """Return True for an error of CUDA by an earlier kernel or copy, which any later call may report."""
    return isinstance(error, KernelFailure) or getattr(error, "status", None) in _FATAL
