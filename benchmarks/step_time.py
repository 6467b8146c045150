"""Time of a training step: jobflow next to PyTorch on the same cores, in interleaved rounds of one run.

    python benchmarks/step_time.py --peer-python ~/torch/bin/python                 # one thread: mlp, lenet, gpt
    python benchmarks/step_time.py --peer-python ~/torch/bin/python --ranks 2       # 2 MPI ranks against DDP over gloo

PyTorch lives in an environment of its own.  Every side is a process (or one per rank) that waits until it is told to run a
round; in a round the sides alternate on the same core with one thread each.  Each round has a ratio of two sides, and the
table shows the median of the ratios and their 10th and 90th percentile.  A round in which other processes used the cores for
more than a tenth of the time is marked disturbed and left out, unless most rounds were.

Before the timing the losses of the first steps are compared, without dropout and weight decay: both sides do the same work.
Prints tables, appends one JSON line to benchmarks/results.jsonl, and asserts nothing about time.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import shutil
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from statistics import median
from typing import Any

import models
from side import Side, busy_seconds, own_cores

HERE = Path(__file__).parent
RESULTS = HERE / "results.jsonl"
#: steps of a round, so that a round takes about half a second a side
STEPS = {"mlp": 250, "lenet": 6, "gpt": 3}
VARIANTS = {"mlp": ("eager", "compiled"), "lenet": ("eager", "channels_last", "compiled"), "gpt": ("eager", "fused", "compiled")}
#: settings of our convolutions that are timed beside the default
SETTINGS = {"mlp": (), "lenet": ("winograd",), "gpt": ()}
FOREIGN = 0.1
CHECKED = 5
LISTED = 14


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--peer-python", help="a Python that has PyTorch; without it jobflow is timed alone")
    parser.add_argument("--models", nargs="+", choices=models.MODELS, default=list(models.MODELS))
    parser.add_argument("--variants", nargs="+", help="of the peer; default: all that make sense for a model")
    parser.add_argument("--ranks", type=int, default=1)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--cores", type=int, nargs="+", help="one per rank; default: the last ones")
    return parser.parse_args()


def ours(model: str, options: argparse.Namespace, check: bool, root: Path = HERE.parent, name: str = "jobflow", setting: str = "") -> Side:
    """jobflow's side; of another checkout, if `root` is one, and with this setting of convolutions."""
    command = [sys.executable, str(root / "benchmarks" / "ours.py"), model, "--devices", str(options.ranks), *(["--check"] if check else [])]
    command += ["--convolutions", setting] if setting else []
    if options.ranks > 1:
        neighbour = Path(sys.executable).with_name("mpiexec")
        mpiexec = str(neighbour) if neighbour.exists() else shutil.which("mpiexec") or "mpiexec"
        command = [mpiexec, "-n", str(options.ranks), *command]
    return Side(name, [command], options.cores, environment(root))


def environment(root: Path = HERE.parent) -> dict[str, str]:
    """In which a process imports the jobflow of a checkout."""
    return {"PYTHONPATH": os.pathsep.join(filter(None, [str(root), os.environ.get("PYTHONPATH")]))}


def peer(model: str, variant: str, options: argparse.Namespace, check: bool, folder: str) -> Side:
    command = [options.peer_python, str(HERE / "peers" / "torch_step.py"), model, "--variant", variant, *(["--check"] if check else [])]
    if options.ranks == 1:
        return Side(f"torch {variant}", [command], options.cores)
    meeting = f"{folder}/{model}-{variant}-{time.monotonic_ns()}"
    ranks = [[*command, "--rank", str(r), "--ranks", str(options.ranks), "--rendezvous", meeting] for r in range(options.ranks)]
    return Side(f"torch DDP {variant}", ranks, options.cores)


def bound(model: str, options: argparse.Namespace) -> Side:
    return Side("GEMMs alone", [[sys.executable, str(HERE / "gemm_bound.py"), model]], options.cores[:1])


@contextmanager
def running(sides: list[Side]) -> Iterator[list[Side]]:
    try:
        for side in sides:
            side.start()
        yield sides
    finally:
        for side in sides:
            side.stop()


def compare_losses(model: str, options: argparse.Namespace, folder: str) -> float:
    """Largest relative difference between our losses and the peer's over the first steps."""
    with running([ours(model, options, check=True), peer(model, "eager", options, True, folder)]) as sides:
        curves = [[side.ask(do="facts")["first_loss"], *side.ask(do="losses", steps=CHECKED)["losses"]] for side in sides]
    return max(abs(a - b) / abs(b) for a, b in zip(*curves, strict=True))


def one_round(sides: list[Side], steps: int, turn: int, cores: list[int]) -> tuple[dict[str, float], float]:
    """(median seconds of a step by side, share of the cores' time that went to others); `turn` rotates who begins."""
    medians, foreign, start = {}, 0.0, time.perf_counter()
    for index in range(len(sides)):
        side = sides[(index + turn) % len(sides)]
        used, busy = sum(s.cpu_seconds() for s in sides), busy_seconds(cores)
        medians[side.name] = median(side.ask(do="round", steps=steps)["seconds"])
        foreign += max(0.0, (busy_seconds(cores) - busy) - (sum(s.cpu_seconds() for s in sides) - used))
    return medians, foreign / ((time.perf_counter() - start) * len(cores))


def quantile(values: list[float], share: float) -> float:
    return sorted(values)[round(share * (len(values) - 1))]


def measure(model: str, options: argparse.Namespace, folder: str) -> dict[str, Any]:
    variants = options.variants or (VARIANTS[model] if options.ranks == 1 else ("eager",))
    sides = [ours(model, options, check=False)]
    sides += [ours(model, options, False, name=f"jobflow {setting}", setting=setting) for setting in SETTINGS[model]]
    if options.ranks == 1:
        sides.append(bound(model, options))
    if options.peer_python:
        sides += [peer(model, variant, options, False, folder) for variant in variants]
    with running(sides):
        facts = {side.name: side.ask(do="facts") for side in sides}
        one_round(sides, STEPS[model], 0, options.cores)  # warm
        rounds = [one_round(sides, STEPS[model], turn, options.cores) for turn in range(options.rounds)]
        memory = {side.name: side.peak_mib() for side in sides}
        inside = sides[0].ask(do="inside")
    calm = [times for times, foreign in rounds if foreign <= FOREIGN]
    calm_rounds = calm if len(calm) >= max(3, len(rounds) // 3) else [times for times, _ in rounds]
    table = {}
    for side in sides:
        ratios = [times["jobflow"] / times[side.name] for times in calm_rounds]
        spread = [quantile(ratios, 0.1), quantile(ratios, 0.9)]
        table[side.name] = {
            "ms": 1e3 * median(t[side.name] for t in calm_rounds),
            "ratio": median(ratios),
            "spread": spread,
            "mib": memory[side.name],
        }
        for setting in SETTINGS[model]:
            table[side.name][setting] = median(times[f"jobflow {setting}"] / times[side.name] for times in calm_rounds)
    return {
        "model": model,
        "ranks": options.ranks,
        "rounds": len(calm_rounds),
        "disturbed": len(rounds) - len(calm),
        "sides": table,
        "facts": facts,
        "inside": inside,
    }


def show(result: dict[str, Any], difference: float | None) -> None:
    print(f"\n{result['model']}, {result['ranks']} rank(s), {result['rounds']} rounds used, {result['disturbed']} disturbed")
    settings = SETTINGS[result["model"]]
    print(f"  {'':24}{'ms/step':>10}{'jobflow/it':>12}{'p10 - p90':>16}{'peak MiB':>10}" + "".join(f"{setting + '/it':>14}" for setting in settings))
    for name, row in result["sides"].items():
        spread = "{:.3f} - {:.3f}".format(*row["spread"])
        print(
            f"  {name:24}{row['ms']:10.3f}{row['ratio']:12.3f}{spread:>16}{row['mib']:10.0f}"
            + "".join(f"{row[setting]:14.3f}" for setting in settings)
        )
    own = result["facts"]["jobflow"]
    print(f"  import {own['import_s']:.3f} s, session and compile {own['compile_s']:.3f} s, first step after {own['first_step_s']:.3f} s")
    if difference is not None:
        print(f"  losses of {CHECKED + 1} steps differ from PyTorch's by {difference:.1e} relative")
    show_inside(result["inside"])


def show_inside(inside: dict[str, Any]) -> None:
    """The first rank's step by kernel; products are the kernels whose time is that of GEMMs for the most part."""
    kernels, products = inside["kernels"], ("matmul", "productsum", "conv")
    whole = sum(kernels.values())
    outside = sum(seconds for kernel, seconds in kernels.items() if not any(word in kernel for word in products))
    print(f"  {inside['instructions']} instructions in {inside['calls']} calls, {inside['loop_ns']:.0f} ns of loop each; ", end="")
    print(f"instructions {whole * 1e3:.3f} ms, of it outside products {outside * 1e3:.3f} ms; a whole call {inside['call_s'] * 1e3:.3f} ms")
    for kernel, seconds in list(kernels.items())[:LISTED]:
        print(f"    {kernel:40}{seconds * 1e6:12.1f} us{seconds / whole:8.1%}")


def machine() -> dict[str, Any]:
    names = [line.split(":")[1].strip() for line in Path("/proc/cpuinfo").read_text().splitlines() if line.startswith("model name")]
    return {"cpu": names[0] if names else platform.processor(), "cores": os.cpu_count(), "python": platform.python_version()}


def main() -> None:
    options = arguments()
    options.cores = own_cores(options.cores, options.ranks)
    line: dict[str, Any] = {"when": time.strftime("%Y-%m-%dT%H:%M:%S"), "machine": machine(), "results": []}
    with tempfile.TemporaryDirectory() as folder:
        for model in options.models:
            difference = compare_losses(model, options, folder) if options.peer_python else None
            result = measure(model, options, folder)
            show(result, difference)
            line["results"].append(result | {"loss_difference": difference})
    with RESULTS.open("a", encoding="utf-8") as file:
        file.write(json.dumps(line) + "\n")


if __name__ == "__main__":
    main()
