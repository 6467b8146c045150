"""Checks of NumPy, its BLAS library, the compiler of kernels, and the optional packages."""

from __future__ import annotations

import importlib.metadata
import os
import re
from collections.abc import Iterator

from jobflow.cli.health.child import ask, probe
from jobflow.cli.health.finding import NOTE, OK, PROBLEM, Finding, judged
from jobflow.core.errors import ConfigError
from jobflow.core.extras import PACKAGES
from jobflow.kernels.machine_class import SETTING, own_class
from jobflow.kernels.object_cache import LIMIT, ObjectCache
from jobflow.kernels.target import cpu_tier
from jobflow.runtime.world.environment import KERNELS, usable_cores

#: variables for the number of threads of a matrix library
THREADS = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")
#: names that NumPy reports without a BLAS library
NONE = ("", "none", "unknown", "lapack_lite")


def numpy() -> Iterator[Finding]:
    """Check the version of NumPy, and the speed of its BLAS library with one thread and with all threads."""
    answer = ask(probe("blas"))
    if answer.failure:
        yield Finding("NumPy", PROBLEM, f"it does not work: {answer.failure}", "install it again", 'pip install --force-reinstall "numpy>=2.1"')
        return
    version, name, threads, one, all_ = (answer.data[key] for key in ("version", "name", "threads", "one", "all"))
    old = _numbers(version) < (2, 1)
    yield judged("NumPy", version, (old, PROBLEM, "; jobflow needs 2.1 or newer", "", 'pip install -U "numpy>=2.1"'))
    yield _blas(name, threads, one, all_)


def _blas(name: str, threads: int | None, one: float, most: float) -> Finding:
    if name.split(" ")[0] in NONE:
        text = f"NumPy has no BLAS library, only its own loops: {most / 1e9:.1f} GFLOP/s"
        return Finding("BLAS", PROBLEM, text, "install NumPy's wheel, which has OpenBLAS", "pip install --force-reinstall numpy")
    if threads is None:
        text = f"{name}: {most / 1e9:.0f} GFLOP/s; its number of threads cannot be set, so ranks may compete for cores"
        return Finding("BLAS", NOTE, text, "", "pip install threadpoolctl")
    speed = f"{one / 1e9:.0f} GFLOP/s (float32) on 1 thread" + (f", {most / 1e9:.0f} on {threads}" if threads > 1 else "")
    usable = len(usable_cores())
    threads_set = " ".join(f"{key}={os.environ[key]}" for key in THREADS if key in os.environ)
    idle = f"; a single process leaves {usable - threads} of {usable} cores idle" + (f" ({threads_set})" if threads_set else "")
    return judged(
        "BLAS",
        f"{name}: {speed}",
        (threads < usable, NOTE, idle, "for programs of one rank, allow all cores", f"unset {' '.join(THREADS)}"),
        (threads > usable, NOTE, f"; {threads} threads share {usable} cores", "", f"export OMP_NUM_THREADS={usable}"),
        (True, OK, "; ranks divide the cores among them", "", ""),
    )


def kernels() -> Iterator[Finding]:
    """Report the available and the default kernels, the cost of LLVM, and the cache of compiled loops."""
    setting = os.environ.get(KERNELS, "").strip()
    where = f"{KERNELS}={setting}" if setting else f"without flow.config.kernels: {cpu_tier('auto')}"
    try:
        where += f"; class of CPU: {own_class()}"
    except ConfigError as error:
        yield Finding("kernels", PROBLEM, str(error), "", f"unset {SETTING}")
        return
    try:
        version = importlib.metadata.version("llvmlite")
    except importlib.metadata.PackageNotFoundError:
        yield Finding("kernels", NOTE, f'reference, numpy; {where}; flow.config.kernels("llvm") needs llvmlite', "", 'pip install "jobflow-sbp[jit]"')
        return
    yield _llvm(f"reference, numpy, llvm (llvmlite {version}); {where}")
    state = ObjectCache().state()
    cached = f"{state.entries} compiled loops, {state.nbytes / 2**20:.1f} of at most {LIMIT >> 20} MiB in {state.folder}"
    bad = (bool(state.problem), NOTE, f"; it is not used, and loops are compiled by each process: {state.problem}", "", f"ls -ld {state.folder}")
    yield judged("cache", cached, bad, (True, OK, "; jobflow doctor --clear-cache removes them", "", ""))


def _llvm(there: str) -> Finding:
    answer = ask(probe("llvm"))
    if answer.failure:
        text = f"{there}; llvmlite does not work: {answer.failure}"
        return Finding("kernels", PROBLEM, text, "install it again, or use kernels without it", f"export {KERNELS}=numpy")
    cost = f"{answer.data['nbytes'] / 2**20:.0f} MiB of each rank's memory and {answer.data['seconds']:.2f} s before its first loop"
    return Finding("kernels", OK, f"{there}; LLVM takes {cost}")


def packages() -> Iterator[Finding]:
    """Report the installed packages in one line, and the missing ones in one line per installation command."""
    there: list[str] = []
    missing: dict[str, list[str]] = {}
    for requirement in PACKAGES:
        try:
            version = importlib.metadata.version(requirement.name)
        except importlib.metadata.PackageNotFoundError:
            missing.setdefault(requirement.command, []).append(f"{requirement.name} ({requirement.purpose})")
            continue
        if _numbers(version) < _numbers(requirement.least):
            text = f"{requirement.name} {version} is too old for {requirement.purpose}: that needs {requirement.least}"
            yield Finding("packages", PROBLEM, text, "", f'pip install -U "{requirement.name}>={requirement.least}"')
        else:
            there.append(f"{requirement.name} {version}")
    if there:
        yield Finding("packages", OK, ", ".join(there))
    for command, names in missing.items():
        yield Finding("packages", NOTE, f"not installed: {', '.join(names)}", "", command)


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(int(number) for number in re.findall(r"\d+", version)[:3])
