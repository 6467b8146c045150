"""What the rank half of the compiler must know of the device that a plan is for, and how its operations are to be computed there."""

from __future__ import annotations

from functools import lru_cache
from importlib import import_module
from importlib.util import find_spec
from typing import TYPE_CHECKING, Literal, TypeAlias

from jobflow.core.dataclass import dataclass

if TYPE_CHECKING:
    from jobflow.kernels.patterns import Patterns

Kind: TypeAlias = Literal["cpu", "cuda"]
#: who computes: each operation's plain kernel; array operations and BLAS, prepared once; loops that are compiled for regions, by LLVM for
#: CPUs and by NVRTC for GPUs
Tier: TypeAlias = Literal["reference", "numpy", "llvm", "nvrtc"]
#: what `flow.config.kernels` takes; "auto" is the fastest that is installed, see `cpu_tier`
SETTINGS: dict[str, Tier] = {"auto": "llvm", "reference": "reference", "numpy": "numpy", "llvm": "llvm"}
#: the same for GPUs, where CuPy does nothing without NVRTC: a compiler for CPUs says nothing about them
GPU_SETTINGS: dict[str, Tier] = {"auto": "nvrtc", "reference": "reference", "numpy": "numpy", "llvm": "nvrtc"}
#: the tiers that may compute an operation in a plan of each tier, the best first
TIERS: dict[Tier, tuple[Tier, ...]] = {
    "reference": ("reference",),
    "numpy": ("numpy", "reference"),
    "llvm": ("llvm", "numpy", "reference"),
    "nvrtc": ("nvrtc", "numpy", "reference"),
}


@dataclass(frozen=True)
class FusionLimits:
    """How much one region may hold: more members, inputs or outputs than this spill registers or streams of memory."""

    members: int = 64
    inputs: int = 16
    outputs: int = 8


@dataclass(frozen=True)
class Target:
    """A kind of device and the tier of kernels on it.  Plans for different targets differ, so what is compiled is kept by target.

    alignment        bytes; where every tensor in the arena begins
    tables           the module with the target's PATTERNS: what becomes of operations side by side, and how values are stored
    fusion           what a region of operations may hold; None where operations stay apart
    """

    kind: Kind = "cpu"
    tier: Tier = "numpy"
    alignment: int = 64
    tables: str = "jobflow.kernels.patterns"
    fusion: FusionLimits | None = None

    def __str__(self) -> str:
        return f"{self.kind}, {self.tier}"

    @property
    def patterns(self) -> Patterns:
        found: Patterns = import_module(self.tables).PATTERNS
        return found

    @property
    def tiers(self) -> tuple[Tier, ...]:
        """The tiers that may compute an operation here, the best first."""
        return TIERS[self.tier]


def cpu_tier(setting: str) -> Tier:
    """The tier of a setting on CPUs."""
    return SETTINGS[setting] if fallback(setting) is None else "numpy"


def fallback(setting: str) -> str | None:
    """Why CPUs do without the tier that a setting stands for; None if they do not, as where a tier is asked for by name."""
    if setting != "auto" or SETTINGS[setting] != "llvm" or find_spec("llvmlite") is not None:
        return None
    return '"auto" is "numpy", because llvmlite is not installed'


@lru_cache
def target_of(tag: str, setting: str = "auto") -> Target:
    """The target of a device "cpu" or "gpu" under a setting of `flow.config.kernels`."""
    if tag == "gpu":
        tier = GPU_SETTINGS[setting]
        return Target("cuda", tier, alignment=256, fusion=FusionLimits() if tier == "nvrtc" else None)
    tier = cpu_tier(setting)
    if tier == "reference":
        return Target("cpu", tier)
    if tier == "llvm":
        return Target("cpu", tier, tables="jobflow.kernels.llvm.loop_patterns", fusion=FusionLimits())
    return Target("cpu", tier, tables="jobflow.kernels.cpu.cpu_patterns")


#: the target where nothing else is said
CPU = target_of("cpu", "numpy")
