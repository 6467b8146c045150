"""Train both models with PyTorch, eager and compiled: prepare both at the same time, time one after another.

python all_torch.py --out FOLDER [--peer-python PYTHON] [--inductor-cache FILE] [--small] [--host]

FOLDER receives `inductor_cache.tar.gz`, which `--inductor-cache` reuses on the same kind of machine.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Sequence
from pathlib import Path

import workloads

HERE = Path(__file__).resolve().parent
CACHE = "inductor_cache.tar.gz"
MODES = (("bfloat16", "compile"), ("bfloat16", "eager"), ("float32", "eager"))
#: bytes of a file that a machine may send back, and a fast level of compression: the step's time is limited
LARGEST, LEVEL = 16 << 20, 3
PROBE = """
import importlib.util
if importlib.util.find_spec("torch") is None:
    print("PyTorch is not installed in", __import__("sys").executable)
elif not __import__("torch").cuda.is_available():
    print("this PyTorch cannot use a GPU")
"""


class Peer:
    """A training process, prepared and timed separately."""

    def __init__(self, command: Sequence[str], environment: dict[str, str]) -> None:
        self.name = " ".join(command[2:])
        self._process = subprocess.Popen(command, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def prepared(self) -> bool:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            if line == "READY\n":
                return True
            print(line, end="", flush=True)
        return False

    def timed(self) -> bool:
        """Time the steps and print the figures; return True on success."""
        output, _ = self._process.communicate("go\n")
        print(output, end="", flush=True)
        return self._process.returncode == 0

    def end(self) -> None:
        self._process.kill()
        self._process.wait()


def rounds(small: bool) -> list[tuple[str, str, int]]:
    """Return precision, mode and batch index of each round, in the order of importance; a late step loses the last figures."""
    return sorted(((precision, mode, which) for which in range(2) for precision, mode in MODES), key=lambda one: one[0] != "bfloat16")


def run_round(precision: str, mode: str, which: int, options: argparse.Namespace, environment: dict[str, str]) -> list[str]:
    """Prepare both models at the same time, time them in turn, and return the names of those that failed."""
    flags = [f"--{name}" for name in ("small", "host") if getattr(options, name)]
    peers = []
    for model in workloads.MODELS:
        batch = str(workloads.sizes(options.small)[model].batches[which])
        command = [options.peer_python, str(HERE / "run_torch.py"), model, batch, precision, mode, "--wait", *flags]
        peers.append(Peer(command, environment))
    try:
        ready = [peer for peer in peers if peer.prepared()]
        done = [peer for peer in ready if peer.timed()]
    finally:
        for peer in peers:
            peer.end()
    return [peer.name for peer in peers if peer not in done]


def absent(peer_python: str) -> str:
    """Return the reason PyTorch is unusable, or ""; SystemExit if the interpreter or its PyTorch is broken."""
    try:
        done = subprocess.run([peer_python, "-c", PROBE], capture_output=True, text=True, timeout=60, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise SystemExit(f"{peer_python} does not import PyTorch: {error}") from error
    if done.returncode:
        raise SystemExit(f"{peer_python} does not import PyTorch: exit code {done.returncode}\n{done.stderr}")
    return done.stdout.strip()


def unpack(archive_path: Path, cache: str) -> None:
    """Unpack the archive of an earlier run; an unreadable one costs compile time and nothing else."""
    try:
        with tarfile.open(archive_path) as archive:
            archive.extractall(cache, filter="data")
    except (OSError, tarfile.TarError, EOFError) as error:
        print(f"{archive_path} cannot be read, so everything is compiled: {error}", flush=True)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True, metavar="FOLDER")
    parser.add_argument("--peer-python", default=sys.executable, metavar="PYTHON", help="default: this one")
    parser.add_argument("--inductor-cache", type=Path, metavar="FILE", help=f"{CACHE} of an earlier run")
    parser.add_argument("--small", action="store_true", help="small models")
    parser.add_argument("--host", action="store_true", help="on the CPU")
    options = parser.parse_args()
    reason = absent(options.peer_python)
    if reason and not (options.host and "GPU" in reason):
        print(f"NOT THERE {reason}", flush=True)
        return 0
    failed: list[str] = []
    with tempfile.TemporaryDirectory(prefix="inductor-") as cache:
        if options.inductor_cache:
            unpack(options.inductor_cache, cache)
        environment = os.environ | {"TORCHINDUCTOR_CACHE_DIR": cache, "TRITON_CACHE_DIR": str(Path(cache) / "triton")}
        for precision, mode, which in rounds(options.small):
            failed += run_round(precision, mode, which, options, environment)
            if mode == "compile":
                save(Path(cache), options.out / CACHE)
    if failed:
        print(f"failed: {', '.join(failed)}", file=sys.stderr)
    return int(bool(failed))


def save(cache: Path, target: Path) -> None:
    """Write the archive, complete or not at all; one that is too large to be sent back is left out."""
    with tempfile.TemporaryDirectory(prefix="inductor-archive-") as folder:
        packed = Path(folder) / CACHE
        with tarfile.open(packed, "w:gz", compresslevel=LEVEL) as archive:
            for path in sorted(cache.iterdir()):
                if path.name != "locks":
                    archive.add(path, path.name)
        size = packed.stat().st_size
        print("RESULT " + json.dumps({"file": CACHE, "mib": size / 2**20, "kept": size <= LARGEST}), flush=True)
        if size <= LARGEST:
            shutil.copyfile(packed, target)


if __name__ == "__main__":
    sys.exit(main())
