"""The target of a plan: a kind of device, and the tier of kernels that compute its operations."""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache
from importlib import import_module
from importlib.util import find_spec
from typing import TYPE_CHECKING, Literal, NamedTuple, TypeAlias

from jobflow.core.dataclass import dataclass

if TYPE_CHECKING:
    from jobflow.kernels.patterns import Patterns

Kind: TypeAlias = Literal["cpu", "cuda"]
#: the plain kernel of the operation; array functions and BLAS, prepared once; loops compiled for regions, by LLVM for CPUs and by NVRTC for GPUs;
#: "exact" is NVRTC without fused multiply-add
Tier: TypeAlias = Literal["reference", "numpy", "llvm", "nvrtc", "exact"]
#: values of `flow.config.kernels`; "auto" is the fastest installed tier, see `cpu_tier`
SETTINGS: dict[str, Tier] = {"auto": "llvm", "reference": "reference", "numpy": "numpy", "llvm": "llvm", "exact": "llvm"}
#: the same for GPUs, where "llvm" selects NVRTC, which CuPy requires anyway; "exact" is for comparisons with CPUs, whose loops are always exact
GPU_SETTINGS: dict[str, Tier] = {"auto": "nvrtc", "reference": "reference", "numpy": "numpy", "llvm": "nvrtc", "exact": "exact"}
#: the tiers that may compute an operation in a plan of each tier, the best first
TIERS: dict[Tier, tuple[Tier, ...]] = {
    "reference": ("reference",),
    "numpy": ("numpy", "reference"),
    "llvm": ("llvm", "numpy", "reference"),
    "nvrtc": ("nvrtc", "numpy", "reference"),
    "exact": ("exact", "nvrtc", "numpy", "reference"),
}


#: operations that one launch of a GPU computes on different tensors
MOST_TENSORS = 512


@dataclass(frozen=True)
class FusionLimits:
    """Bounds on the size of one region.  More members, inputs or outputs spill registers or exceed the number of memory streams.

    `tensors` bounds the number of operations that one call computes on different tensors; 0 if the target has no such calls.
    """

    members: int = 64
    inputs: int = 16
    outputs: int = 8
    tensors: int = 0


@dataclass(frozen=True)
class ProductMode:
    """The way in which a GPU computes matrix products.

    tf32           factors of float32 products are rounded to TF32
    deterministic  the sum of an element is never split among thread blocks
    timed          the fastest algorithm is found by timing; otherwise all ranks use the first one, without communication
    """

    tf32: bool = False
    deterministic: bool = False
    timed: bool = True


#: the default: float32 products in float32, by timed algorithms
PRODUCTS = ProductMode()


class Checks(NamedTuple):
    """Checks of each run of a program.

    synchronous  the host waits for a GPU after each call, so that an error names its instruction
    anomalies    NaN in gradients and results raises an error, before variables change
    """

    synchronous: bool = False
    anomalies: bool = False

    def __str__(self) -> str:
        return ", ".join(name for name, value in self._asdict().items() if value)


#: the default: errors of kernels are reported late, and NaN is a value
NO_CHECKS = Checks()


@dataclass(frozen=True)
class Target:
    """A kind of device and the tier of its kernels.  Plans for different targets differ, so compiled programs are cached by target.

    alignment        alignment of every tensor in the arena, in bytes
    tables           the module with the target's PATTERNS: folds of adjacent operations, and storage formats of values
    fusion           bounds of a region of operations; None if operations are not fused
    products         the way in which a GPU computes matrix products
    checks           checks of each run
    """

    kind: Kind = "cpu"
    tier: Tier = "numpy"
    alignment: int = 64
    tables: str = "jobflow.kernels.patterns"
    fusion: FusionLimits | None = None
    products: ProductMode = PRODUCTS
    checks: Checks = NO_CHECKS

    def __str__(self) -> str:
        return ", ".join(filter(None, (self.kind, self.tier, str(self.checks))))

    @property
    def patterns(self) -> Patterns:
        patterns: Patterns = import_module(self.tables).PATTERNS
        return patterns

    @property
    def tiers(self) -> tuple[Tier, ...]:
        """The tiers that may compute an operation on this target, the best first."""
        return TIERS[self.tier]


def cpu_tier(setting: str) -> Tier:
    """Return the tier that a value of `flow.config.kernels` selects on CPUs; "auto" and "exact" select "numpy" without llvmlite."""
    return SETTINGS[setting] if fallback(setting) is None else "numpy"


def fallback(setting: str) -> str | None:
    """Return the reason CPUs use "numpy" for this setting instead of a faster tier, or None if the setting applies.

    A tier requested by name always applies.
    """
    if setting not in ("auto", "exact") or find_spec("llvmlite") is not None:
        return None
    return f'"{setting}" is "numpy", because llvmlite is not installed'


@lru_cache
def target_of(tag: str, setting: str = "auto", products: ProductMode = PRODUCTS, checks: Checks = NO_CHECKS) -> Target:
    """Return the target of a device "cpu" or "gpu" under a setting of `flow.config.kernels`; `products` has no effect on CPUs."""
    target = _gpu_target(GPU_SETTINGS[setting], products) if tag == "gpu" else _cpu_target(setting)
    return replace(target, checks=checks) if any(checks) else target


def _gpu_target(tier: Tier, products: ProductMode) -> Target:
    if tier not in ("nvrtc", "exact"):
        return Target("cuda", tier, alignment=256, products=ProductMode(deterministic=True) if products.deterministic else PRODUCTS)
    # merged operations are rounded once, which "exact" excludes
    merges = tier == "nvrtc" and import_module("jobflow.kernels.cuda.cublaslt_library").find().library is not None
    tables = "jobflow.kernels.cuda.product_patterns" if merges else "jobflow.kernels.cuda.image_patterns"
    return Target("cuda", tier, alignment=256, tables=tables, fusion=FusionLimits(tensors=MOST_TENSORS), products=products)


def _cpu_target(setting: str) -> Target:
    tier = cpu_tier(setting)
    if tier == "reference":
        return Target("cpu", tier)
    if tier == "llvm":
        return Target("cpu", tier, tables="jobflow.kernels.llvm.loop_patterns", fusion=FusionLimits())
    return Target("cpu", tier, tables="jobflow.kernels.cpu.cpu_patterns")


class Computing(NamedTuple):
    """The settings of a program that determine its kernels; programs are compiled again if they change."""

    kernels: str = "auto"
    matmul_precision: str = "highest"
    deterministic: bool = False
    checks: Checks = NO_CHECKS

    def target(self, tag: str, timed: bool) -> Target:
        """Return the target of a device "cpu" or "gpu"; `timed` algorithms suit programs of one rank, if memory holds their operands."""
        products = ProductMode(self.matmul_precision != "highest", self.deterministic, timed and not self.deterministic)
        return target_of(tag, self.kernels, products, self.checks)


#: the default target
CPU = target_of("cpu", "numpy")
