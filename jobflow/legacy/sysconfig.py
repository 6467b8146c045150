"""The namespace `flow.sysconfig`: properties of the installation. Ops are Python classes, so a compiler needs no flags."""

from __future__ import annotations

from pathlib import Path

from jobflow.core.notices import notice
from jobflow.runtime.device import cuda_device

__all__ = [
    "get_compile_flags", "get_include", "get_lib", "get_link_flags", "has_rpc_backend_grpc", "has_rpc_backend_local", "with_cuda", "with_xla",
]  # fmt: skip

_PACKAGE = str(Path(__file__).parents[1])


def _nothing_to_compile() -> list[str]:
    notice("sysconfig.get_compile_flags and get_link_flags return no flags: ops in C++ are not supported; write a Python class")
    return []


def get_compile_flags() -> list[str]:
    """Return an empty list, with a notice: ops in C++ are not supported."""
    return _nothing_to_compile()


def get_link_flags() -> list[str]:
    """Return an empty list, with a notice: ops in C++ are not supported."""
    return _nothing_to_compile()


def get_include() -> str:
    """Return the folder of the package."""
    return _PACKAGE


def get_lib() -> str:
    """Return the folder of the package, which contains no library."""
    return _PACKAGE


def has_rpc_backend_grpc() -> bool:
    """Return False: processes communicate through MPI or sockets."""
    return False


def has_rpc_backend_local() -> bool:
    """Return True: a program can run in one process."""
    return True


def with_cuda() -> bool:
    """Return True if a GPU is available."""
    return cuda_device.available() > 0


def with_xla() -> bool:
    """Return False: LLVM and NVRTC compile loops."""
    return False
