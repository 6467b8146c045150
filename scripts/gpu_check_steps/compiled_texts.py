"""Compile the kernels that other steps requested by NVRTC for an H100, without a GPU.

python compiled_texts.py FOLDER --cache CACHE

Compiled kernels are recorded in CACHE and not compiled again, so a run that is stopped can be continued.
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
from importlib import metadata
from pathlib import Path
from typing import Any

from jobflow.kernels.object_cache import ObjectCache

ARCHITECTURE = "90"
#: errors that are printed in full, and seconds between lines of progress
SHOWN, INTERVAL = 3, 5.0


def compiler_versions(nvrtc: Any) -> str:
    """Return the versions of everything that decides whether a text compiles."""
    packages = ("cupy-cuda13x", "nvidia-cuda-runtime", "nvidia-cuda-crt")
    return " ".join([str(nvrtc.getVersion()), *(metadata.version(package) for package in packages)])


def headers() -> list[str]:
    spec = importlib.util.find_spec("nvidia")
    if spec is None or spec.submodule_search_locations is None:
        raise SystemExit("CUDA's headers are not installed: pip install '.[gpu-checks]'")
    return [f"-I{path}/cu13/include" for path in spec.submodule_search_locations]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--cache", required=True)
    options = parser.parse_args()
    nvrtc = importlib.import_module("cupy_backends.cuda.libs.nvrtc")
    cache, versions = ObjectCache(options.cache), compiler_versions(nvrtc)
    cached, compiled, errors = 0, 0, []

    def compile_text(path: Path) -> tuple[str, str]:
        kernel = json.loads(path.read_text())
        flags = [o for o in kernel["options"] if not o.startswith("-I/usr")]
        key = hashlib.sha256("\0".join([kernel["text"], *flags, versions, ARCHITECTURE]).encode()).hexdigest()
        if cache.read(key) is not None:
            return "cached", ""
        program = nvrtc.createProgram(kernel["text"], f"{path.stem}.cu", [], [])
        try:
            nvrtc.compileProgram(program, [*flags, *headers(), f"-arch=sm_{ARCHITECTURE}"])
        except nvrtc.NVRTCError:
            return "error", f"{path.stem}: {nvrtc.getProgramLog(program)}"[:2000]
        finally:
            nvrtc.destroyProgram(program)
        cache.write(key, b"compiled")
        return "compiled", ""

    paths, shown = sorted(options.folder.glob("*.json")), time.monotonic()
    with ThreadPoolExecutor(len(os.sched_getaffinity(0))) as pool:
        for number, (state, error) in enumerate(pool.map(compile_text, paths), 1):
            cached += state == "cached"
            compiled += state == "compiled"
            errors += [error] if error else []
            if time.monotonic() - shown > INTERVAL:
                shown = time.monotonic()
                print(f"{number} of {len(paths)} kernels; run again to compile the rest, if this step is late", flush=True)
    print("\n".join(errors[:SHOWN]))
    print("RESULT " + json.dumps({"kernels": len(paths), "cached": cached, "compiled": compiled, "errors": len(errors)}))
    return int(bool(errors))


if __name__ == "__main__":
    sys.exit(main())
