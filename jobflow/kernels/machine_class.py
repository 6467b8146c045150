"""Classes of CPUs with separately measured costs, and the class that this job uses.

Ranks must compute the same values in the same way.  If their CPUs differ, all ranks use the lowest class (`agree`).
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Iterable, Mapping
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Any, Literal, TypeAlias

from jobflow.core.errors import VariableError

#: by vector registers: without registers of 64 bytes, a CPU of any architecture counts as "avx2".  "amx" also has matrix registers
MachineClass: TypeAlias = Literal["avx2", "avx512", "amx"]
#: the lowest first
CLASSES: tuple[MachineClass, ...] = ("avx2", "avx512", "amx")
#: the environment variable that names a lower class than the CPU's own
SETTING = "JOBFLOW_CPU"
#: Linux on x86-64: the number of the system call arch_prctl, its request ARCH_REQ_XCOMP_PERM, and the state component of matrix registers
_ARCH_PRCTL, _REQUEST_PERMISSION, _TILE_DATA = 158, 0x1023, 18
CPUINFO = Path("/proc/cpuinfo")
_agreed: list[MachineClass] = []


@cache
def own_class() -> MachineClass:
    """Return the class of this CPU, or the lower class that JOBFLOW_CPU names; raise VariableError for an unknown or higher class."""
    extensions: Mapping[str, Any] = import_module("numpy").show_config(mode="dicts")[
        "SIMD Extensions"
    ]  # imported here, so that commands can be listed without NumPy
    names = {*extensions.get("baseline", ()), *extensions.get("found", ())}
    here: MachineClass = "avx2" if not names & {"AVX512_SKX", "X86_V4"} else "amx" if _has_amx() else "avx512"
    setting = os.environ.get(SETTING, "").strip() or here
    for name in CLASSES[: CLASSES.index(here) + 1]:
        if name == setting:
            return name
    raise VariableError(f"{SETTING}={setting}: this CPU does not belong to the class; use one of {', '.join(CLASSES[: CLASSES.index(here) + 1])}")


def _has_amx() -> bool:
    """Request AMX for this process, and return True if it may use AMX.

    Linux grants AMX on request (Documentation/arch/x86/xstate.rst of its source); signal handlers then need 8 KB more of stack.
    """
    try:
        with CPUINFO.open() as file:
            known = "amx_bf16" in file.read(1 << 13)  # lists the first core
    except OSError:
        return False
    return known and ctypes.CDLL(None).syscall(_ARCH_PRCTL, _REQUEST_PERMISSION, _TILE_DATA) == 0


def machine_class() -> MachineClass:
    """Return the class that determines the choice of kernels; it is the same on all ranks."""
    return _agreed[0] if _agreed else own_class()


def agree(classes: Iterable[MachineClass]) -> None:
    """Set the class of this process to the lowest of the ranks' classes."""
    _agreed[:] = [min(classes, key=CLASSES.index)]
