"""Train both models with PyTorch, eager and by torch.compile: prepare two at a time, time one after another.

python all_torch.py --out FOLDER [--peer-python PYTHON] [--inductor-cache FILE] [--small] [--host]

FOLDER gets `inductor_cache.tar.gz`, from which a later run on the same kind of machine takes what torch.compile made.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Sequence
from pathlib import Path

import workloads

HERE = Path(__file__).resolve().parent
CACHE = "inductor_cache.tar.gz"
PROBE = """
import importlib.util
if importlib.util.find_spec("torch") is None:
    print("PyTorch is not installed in", __import__("sys").executable)
elif not __import__("torch").cuda.is_available():
    print("this PyTorch cannot use a GPU")
"""


class Peer:
    """One model in a process: `prepared` after its warm-up, then `timed`."""

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
        """Let it time its steps, and print its figures; True if it ended well."""
        output, _ = self._process.communicate("go\n")
        print(output, end="", flush=True)
        return self._process.returncode == 0

    def end(self) -> None:
        self._process.kill()
        self._process.wait()


def rounds(small: bool) -> list[tuple[str, str, int]]:
    """Precision, mode and which batch: what one round prepares for both models."""
    return [
        ("bfloat16", "compile", 0),
        ("bfloat16", "eager", 0),
        ("bfloat16", "compile", 1),
        ("bfloat16", "eager", 1),
        ("float32", "eager", 0),
        ("float32", "eager", 1),
    ]


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
    """Return why PyTorch cannot be the peer, or ""."""
    try:
        done = subprocess.run([peer_python, "-c", PROBE], capture_output=True, text=True, timeout=60, check=False)
    except OSError as error:
        return str(error)
    return done.stdout.strip() or (done.stderr.strip().splitlines()[-1] if done.returncode else "")


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
            with tarfile.open(options.inductor_cache) as archive:
                archive.extractall(cache, filter="data")
        environment = os.environ | {"TORCHINDUCTOR_CACHE_DIR": cache, "TRITON_CACHE_DIR": str(Path(cache) / "triton")}
        for precision, mode, which in rounds(options.small):
            failed += run_round(precision, mode, which, options, environment)
            if mode == "compile":
                save(Path(cache), options.out / CACHE)
                print("RESULT " + json.dumps({"file": CACHE, "mib": (options.out / CACHE).stat().st_size / 2**20}), flush=True)
    if failed:
        print(f"failed: {', '.join(failed)}", file=sys.stderr)
    return int(bool(failed))


def save(cache: Path, target: Path) -> None:
    """Pack the folder; the file is complete or not there."""
    private = target.with_suffix(".part")
    with tarfile.open(private, "w:gz") as archive:
        for path in sorted(cache.iterdir()):
            archive.add(path, path.name)
    private.replace(target)


if __name__ == "__main__":
    sys.exit(main())
