"""Compare the machine code of the hot printed kernels with the recorded table, without a GPU.

python kernel_code.py            # print the table for an H100; compare it with tests/gpu/data/kernel_code.txt
python kernel_code.py --write    # write the table

Registers depend on the version of NVRTC, which the first line names.  With another version, only the budgets are checked: no spills, 16-byte loads
and stores in the main loop, and at most 64 registers.  Exceptions are in EXCEPTIONS, with the reason.
"""

from __future__ import annotations

import argparse
import ctypes
import hashlib
import importlib.util
import json
import os
import re
import struct
import subprocess
import sys
import tempfile
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import cuda_tools

TESTS = Path(__file__).resolve().parents[2] / "tests"
sys.path[:0] = [str(TESTS / "gpu"), str(TESTS / "kernels")]

import nvidia_compiler  # noqa: E402
from hot_kernels import HotKernel, hot_kernels  # noqa: E402

from jobflow.kernels.cuda.compiled_text import options  # noqa: E402
from jobflow.kernels.object_cache import ObjectCache  # noqa: E402

TABLE = TESTS / "gpu" / "data" / "kernel_code.txt"
ARCHITECTURE, MOST_REGISTERS, REGISTERS, MOST_THREADS = "sm_90", 64, 65536, 2048
#: attribute of NVIDIA's ELF files with the number of registers, and the form of attributes that a size precedes
REGISTER_COUNT, WITH_SIZE = 0x2F, 4
#: kernels -> the reason they have accesses of other widths
EXCEPTIONS = (
    (r"rows: layer norm.*", "mean and 1/std, one store each per row"),
    (r"long rows: .*", "values per row or part of a row, one access each per row"),
    (r"columns: .*: walks", "a row and the sums of its columns stay in registers; values per row"),
    (r"rows: cross entropy.*", "labels and statistics per row, and the words after the last whole vector of a row"),
    (r"columns: .*: tiles", "several rows in registers keep loads in flight; if threads are few, each has fewer columns"),
    (r"pooling: gradient of maximum", "a thread loads the nine taps of a window at once"),
    (r"moments: .*", "sums of a block of rows, one access each per channel"),
    (r"columns: .*: totals", "one sum per 64 rows of a column or more: 1/64 of the memory that tiles read"),
)
INSTRUCTION = re.compile(r"^\s*/\*[0-9a-f]{4,}\*/\s+(?:@!?U?P\w+\s+)?(?P<name>[A-Z][\w.]*)(?P<rest>[^;]*);")
LABEL, TARGET = re.compile(r"^\s*(?P<label>\.L_\w+):"), re.compile(r"`\((?P<label>\.L_\w+)\)")


@dataclass(frozen=True)
class Code:
    """Figures of a kernel's machine code."""

    registers: int
    spills: int
    #: bits of a load or store in the main loop -> count
    loads: tuple[tuple[int, int], ...]
    stores: tuple[tuple[int, int], ...]


def disassembler() -> str | None:
    spec = importlib.util.find_spec("nvidia")
    folders = [] if spec is None else list(spec.submodule_search_locations or ())
    paths = (str(file) for folder in folders for file in sorted(Path(folder).glob("*/bin/nvdisasm")))
    return next(paths, None) or cuda_tools.find("nvdisasm")


def missing() -> str:
    """Return the reason the table cannot be made, or ""."""
    return nvidia_compiler.missing() or ("" if disassembler() else "nvdisasm is not installed: pip install '.[gpu-checks]'")


def compiler_version() -> str:
    library = nvidia_compiler.nvrtc()
    if library is None:
        return "nvcc"
    major, minor = ctypes.c_int(), ctypes.c_int()
    ctypes.CDLL(str(library)).nvrtcVersion(ctypes.byref(major), ctypes.byref(minor))
    return f"NVRTC {major.value}.{minor.value}"


def disassembled(binary: bytes) -> str:
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder, "kernel.cubin")
        file.write_bytes(binary)
        listing = subprocess.run([str(disassembler()), "-c", str(file)], capture_output=True, text=True, check=True).stdout
    return f"registers {registers_of(binary)}\n{listing}"


def registers_of(binary: bytes) -> int:
    """Return the registers of a thread, from the section of attributes in an ELF file of 64 bits."""
    (table,), (size, count, strings) = struct.unpack_from("<Q", binary, 0x28), struct.unpack_from("<HHH", binary, 0x3A)
    sections = [struct.unpack_from("<IIQQQQII", binary, table + size * k) for k in range(count)]
    names = sections[strings][4]
    start, length = next(section[4:6] for section in sections if binary.startswith(b".nv.info\0", names + section[0]))
    offset = start
    while offset < start + length:
        form, attribute, value = struct.unpack_from("<BBH", binary, offset)
        if attribute == REGISTER_COUNT:
            return int(struct.unpack_from("<I", binary, offset + 8)[0])
        offset += 4 + (value if form == WITH_SIZE else 0)
    raise ValueError("the machine code has no attribute with its number of registers")


def code_of(text: str) -> Code:
    """Return the figures of a disassembled kernel; the first line has the number of registers."""
    registers = int(text.split(maxsplit=2)[1])
    lines: list[tuple[str, str]] = []
    labels: dict[str, int] = {}
    for line in text.splitlines():
        if label := LABEL.match(line):
            labels[label["label"]] = len(lines)
        elif match := INSTRUCTION.match(line):
            lines.append((match["name"], match["rest"]))
    main = _main_loop(lines, labels)
    spills = sum(name.startswith(("LDL", "STL")) for name, _ in lines)
    return Code(registers, spills, _widths(main, "LDG"), _widths(main, "STG"))


def _main_loop(lines: list[tuple[str, str]], labels: dict[str, int]) -> list[str]:
    """Return the instructions of the loop that moves the most bytes; of nested ones, the innermost."""
    loops = [[name for name, _ in lines]]
    for end, (name, rest) in enumerate(lines):
        target = TARGET.search(rest) if name.startswith("BRA") else None
        if target and labels.get(target["label"], end + 1) <= end:
            loops.append([each for each, _ in lines[labels[target["label"]] : end + 1]])
    inner = [loop for loop in loops[1:] if _moved(loop)] or loops
    return max(inner, key=lambda loop: (_moved(loop), -len(loop)))


def _moved(names: list[str]) -> int:
    return sum(width * count for kind in ("LDG", "STG") for width, count in _widths(names, kind))


def _widths(names: list[str], kind: str) -> tuple[tuple[int, int], ...]:
    counts = Counter(_bits(name) for name in names if name.split(".")[0] == kind)
    return tuple(sorted(counts.items(), reverse=True))


def _bits(name: str) -> int:
    parts = name.split(".")
    return next((int(part.strip("US")) for part in parts if part in ("128", "64", "U16", "S16", "U8", "S8", "16", "8")), 32)


def row(kernel: HotKernel, code: Code) -> str:
    def shown(widths: tuple[tuple[int, int], ...]) -> str:
        return " ".join(f"{count}x{bits}" for bits, count in widths) or "-"

    return " | ".join(
        [
            kernel.name,
            str(kernel.blocks),
            str(kernel.threads),
            str(code.registers),
            str(code.spills),
            shown(code.loads),
            shown(code.stores),
            kernel.fingerprint,
        ]
    )


def beyond_budget(kernel: HotKernel, code: Code) -> list[str]:
    """Return the budgets that a kernel exceeds; `totals` read one sum per column and are small."""
    problems = []
    if code.registers > MOST_REGISTERS:
        blocks = REGISTERS // (-(-code.registers // 8) * 8 * kernel.threads)
        problems.append(f"{code.registers} registers, {100 * blocks * kernel.threads // MOST_THREADS} % of the threads of a multiprocessor")
    if code.spills:
        problems.append(f"{code.spills} accesses to local memory")
    narrow = {bits for bits, _ in (*code.loads, *code.stores)} - {128}
    if narrow:
        problems.append(f"accesses of {', '.join(str(bits) for bits in sorted(narrow))} bits in the main loop")
    return problems


def reason_of(name: str) -> str:
    """Return the reason this kernel may exceed a budget, or ""."""
    return next((reason for pattern, reason in EXCEPTIONS if re.fullmatch(pattern, name)), "")


def table(cache: ObjectCache | None) -> tuple[list[str], list[str]]:
    """Return the lines of the table, and the budgets that kernels exceed without a reason; `cache` keeps disassembled kernels."""
    kernels = list(hot_kernels())

    def figures(kernel: HotKernel) -> Code:
        key = hashlib.sha256("\0".join([kernel.text, compiler_version(), *options(False), ARCHITECTURE]).encode()).hexdigest()
        listing = None if cache is None else cache.read(key)
        if listing is None:
            listing = disassembled(nvidia_compiler.compiled(kernel.text, ARCHITECTURE)).encode()
            if cache is not None:
                cache.write(key, listing)
        return code_of(listing.decode())

    with ThreadPoolExecutor(len(os.sched_getaffinity(0))) as pool:
        codes = list(pool.map(figures, kernels))
    lines = [f"{compiler_version()}, {ARCHITECTURE}", "kernel | blocks | threads | registers | spills | loads | stores | text"]
    problems = []
    for kernel, code in zip(kernels, codes, strict=True):
        over = beyond_budget(kernel, code)
        reason = reason_of(kernel.name)
        lines.append(row(kernel, code) + (f" | {'; '.join(over)}: {reason}" if over and reason else ""))
        if over and not reason:
            problems.append(f"{kernel.name}: {'; '.join(over)}")
    return lines, problems


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--write", action="store_true", help=f"write {TABLE.name}")
    parser.add_argument("--cache", help="folder of disassembled kernels, which are not compiled again")
    arguments = parser.parse_args()
    if missing():
        print(f"NOT THERE {missing()}")
        return 0
    lines, problems = table(ObjectCache(arguments.cache) if arguments.cache else None)
    if arguments.write:
        TABLE.write_text("\n".join(lines) + "\n", encoding="utf-8")
    recorded = TABLE.read_text(encoding="utf-8").splitlines()
    print("\n".join(lines))
    differing = [line for line in lines[2:] if line not in recorded] if recorded[0] == lines[0] else []
    for line in differing:
        print(f"differs from {TABLE.name}: {line}; if that is meant, run {Path(__file__).name} --write")
    print("\n".join(problems))
    print("RESULT " + json.dumps({"kernels": len(lines) - 2, "differing": len(differing), "beyond_budget": len(problems)}))
    return int(bool(problems or differing))


if __name__ == "__main__":
    sys.exit(main())
