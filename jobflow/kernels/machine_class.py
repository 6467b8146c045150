"""Classes of CPUs for which costs are measured apart, and the one that this job chooses for.

What all ranks compute they must compute in the same way, so where their CPUs differ they choose for the least (`agree`).
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Iterable, Mapping
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Any, Literal, TypeAlias

from jobflow.core.errors import ConfigError

#: by their vector registers; whatever has none of 64 bytes counts as "avx2", on processors of other kinds too.  "amx" has matrix registers as well
MachineClass: TypeAlias = Literal["avx2", "avx512", "amx"]
#: the least first
CLASSES: tuple[MachineClass, ...] = ("avx2", "avx512", "amx")
#: the environment variable that names a lesser class than the CPU's own
SETTING = "JOBFLOW_CPU"
#: of Linux on x86-64: the call of the system that asks for a part of a processor's state, and the part that matrix registers are
_ARCH_PRCTL, _REQUEST_PERMISSION, _TILE_DATA = 158, 0x1023, 18
CPUINFO = Path("/proc/cpuinfo")
_agreed: list[MachineClass] = []


@cache
def own_class() -> MachineClass:
    """That of this CPU, or the lesser one that is set; ConfigError if what is set is no class, or a better one."""
    found: Mapping[str, Any] = import_module("numpy").show_config(mode="dicts")["SIMD Extensions"]  # commands are listed without it
    names = {*found.get("baseline", ()), *found.get("found", ())}
    here: MachineClass = "avx2" if not names & {"AVX512_SKX", "X86_V4"} else "amx" if _has_amx() else "avx512"
    said = os.environ.get(SETTING, "").strip() or here
    for name in CLASSES[: CLASSES.index(here) + 1]:
        if name == said:
            return name
    raise ConfigError(f"{SETTING}={said}: this CPU can be used as one of {', '.join(CLASSES[: CLASSES.index(here) + 1])}")


def _has_amx() -> bool:
    """Whether this process may use AMX: Linux lets those that ask (its Documentation/arch/x86/xstate.rst), whose signals take 8 KB more of stack."""
    try:
        with CPUINFO.open() as file:
            known = "amx_bf16" in file.read(1 << 13)  # what the first core has
    except OSError:
        return False
    return known and ctypes.CDLL(None).syscall(_ARCH_PRCTL, _REQUEST_PERMISSION, _TILE_DATA) == 0


def machine_class() -> MachineClass:
    """The class that choices are made for: the same on all ranks."""
    return _agreed[0] if _agreed else own_class()


def agree(classes: Iterable[MachineClass]) -> None:
    """Choose from now on for the least of these, which are those of all ranks."""
    _agreed[:] = [min(classes, key=CLASSES.index)]
