"""Compile the kernels that the other steps asked for, by NVRTC for an H100, without a GPU.

python compiled_texts.py FOLDER --cache CACHE [--seconds S]

A kernel that compiled once is recorded in CACHE and is not compiled again.  When the time is over, the rest is left for the
next run, and the figures say how many.
"""

from __future__ import annotations

import argparse
import hashlib
import importlib
import importlib.util
import json
import os
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from jobflow.kernels.object_cache import ObjectCache

ARCHITECTURE = "90"
#: errors that are printed in full
SHOWN = 3


def headers() -> list[str]:
    spec = importlib.util.find_spec("nvidia")
    if spec is None or spec.submodule_search_locations is None:
        raise SystemExit("CUDA's headers are not installed: pip install '.[gpu-checks]'")
    return [f"-I{path}/cu13/include" for path in spec.submodule_search_locations]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--cache", required=True)
    parser.add_argument("--seconds", type=float, default=60.0)
    options = parser.parse_args()
    nvrtc = importlib.import_module("cupy_backends.cuda.libs.nvrtc")
    cache, deadline = ObjectCache(options.cache), time.monotonic() + options.seconds
    known, compiled, late, errors = 0, 0, 0, []

    def compile_text(path: Path) -> tuple[str, str]:
        kernel = json.loads(path.read_text())
        flags = [o for o in kernel["options"] if not o.startswith("-I/usr")]
        key = hashlib.sha256("\0".join([kernel["text"], *flags, str(nvrtc.getVersion()), ARCHITECTURE]).encode()).hexdigest()
        if cache.read(key) is not None:
            return "known", ""
        if time.monotonic() > deadline:
            return "late", ""
        program = nvrtc.createProgram(kernel["text"], f"{path.stem}.cu", [], [])
        try:
            nvrtc.compileProgram(program, [*flags, *headers(), f"-arch=sm_{ARCHITECTURE}"])
        except nvrtc.NVRTCError:
            return "error", f"{path.stem}: {nvrtc.getProgramLog(program)}"[:2000]
        finally:
            nvrtc.destroyProgram(program)
        cache.write(key, b"compiled")
        return "compiled", ""

    with ThreadPoolExecutor(len(os.sched_getaffinity(0))) as pool:
        for state, error in pool.map(compile_text, sorted(options.folder.glob("*.json"))):
            known += state == "known"
            compiled += state == "compiled"
            late += state == "late"
            errors += [error] if error else []
    print("\n".join(errors[:SHOWN]))
    print(
        "RESULT "
        + json.dumps({"kernels": known + compiled + late + len(errors), "known": known, "compiled": compiled, "left": late, "errors": len(errors)})
    )
    return int(bool(errors))


if __name__ == "__main__":
    sys.exit(main())
