"""The cost of data parallelism: step efficiency, all_reduce bandwidth, memory, and the time to compile for many ranks.

    python benchmarks/parallel.py --peer-python ~/torch/bin/python
    python benchmarks/parallel.py --only efficiency --models gpt --rounds 31

efficiency  time of one rank on half the batch over time of two ranks on the whole batch, in interleaved rounds of one run
reduce      GB/s of an all_reduce between two ranks: jobflow, MPI_Allreduce on the same ranks, gloo (needs --peer-python)
memory      arena of each model's plan over the liveness bound: what the values that lie in it need at the fullest moment
compile     seconds to lay a GPT of 24 blocks out over 8 ranks, and to plan one of them

Prints tables, appends one JSON line to benchmarks/results.jsonl, and asserts nothing about time.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

import models
from side import Side, own_cores
from step_time import FOREIGN, HERE, RESULTS, STEPS, environment, machine, one_round, quantile, running

RANKS = 2
BLOCKS, PLANNED_RANKS = 24, 8
#: bytes of the all_reduces that are timed
SIZES = (64 << 10, 512 << 10, 4 << 20, 16 << 20)


def launched(script: str, *words: str, root: Path = HERE.parent) -> list[str]:
    """The command that runs a script of this folder, or of this folder in another checkout, on two MPI ranks."""
    from jobflow.distributed import mpiexec

    return [mpiexec.find() or "mpiexec", "-n", str(RANKS), sys.executable, str(root / "benchmarks" / script), *words]


def efficiency(options: argparse.Namespace) -> list[dict[str, Any]]:
    """Of two ranks, per model: 1 is perfect."""
    print(f"\n{'':8}{'half, 1 rank':>14}{'whole, 2 ranks':>16}{'efficiency':>12}{'p10 - p90':>16}   rounds")
    return [_efficiency(model, options) for model in options.models]


def _efficiency(model: str, options: argparse.Namespace) -> dict[str, Any]:
    half = Side("half", [[sys.executable, str(HERE / "ours.py"), model, "--part", str(RANKS)]], options.cores[-1:], environment())
    whole = Side("whole", [launched("ours.py", model, "--devices", str(RANKS))], options.cores, environment())
    with running([half, whole]) as sides:
        for side in sides:
            side.ask(do="facts")
        one_round(sides, STEPS[model], 0, options.cores)  # warm
        rounds = [one_round(sides, STEPS[model], turn, options.cores) for turn in range(options.rounds)]
    calm = [times for times, foreign in rounds if foreign <= FOREIGN]
    calm_rounds = calm if len(calm) >= max(3, len(rounds) // 3) else [times for times, _ in rounds]
    ratios = [times["half"] / times["whole"] for times in calm_rounds]
    result = {
        "model": model,
        "half_ms": 1e3 * median(times["half"] for times in calm_rounds),
        "whole_ms": 1e3 * median(times["whole"] for times in calm_rounds),
        "efficiency": median(ratios),
        "spread": [quantile(ratios, 0.1), quantile(ratios, 0.9)],
        "rounds": len(calm_rounds),
        "disturbed": len(rounds) - len(calm),
    }
    spread = "{:.3f} - {:.3f}".format(*result["spread"])
    print(f"{model:8}{result['half_ms']:11.3f} ms{result['whole_ms']:13.3f} ms{result['efficiency']:12.3f}{spread:>16}", end="")
    print(f"   {len(calm_rounds)} used, {result['disturbed']} disturbed")
    return result


def reduce(options: argparse.Namespace) -> list[dict[str, Any]]:
    """Bandwidth: bytes of the tensor over the time until both ranks have its sum."""
    with tempfile.TemporaryDirectory() as folder:
        commands = {"jobflow": [launched("reduce.py", "jobflow")], "MPI_Allreduce": [launched("reduce.py", "mpi")]}
        if options.peer_python:
            script = str(HERE / "peers" / "gloo_reduce.py")
            commands["gloo"] = [[options.peer_python, script, str(rank), str(RANKS), f"{folder}/meeting"] for rank in range(RANKS)]
        sides = [Side(name, command, options.cores, environment()) for name, command in commands.items()]
        with running(sides):
            return _bandwidths(sides, options.rounds)


def _bandwidths(sides: list[Side], rounds: int) -> list[dict[str, Any]]:
    print(f"\n{'all_reduce':>12}" + "".join(f"{side.name:>20}" for side in sides) + "   GB/s (ratio of jobflow's time to it, p10 - p90)")
    results = []
    for nbytes in SIZES:
        bandwidths: dict[str, list[float]] = {side.name: [] for side in sides}
        for turn in range(rounds):
            for index in range(len(sides)):
                side = sides[(index + turn) % len(sides)]
                bandwidths[side.name].append(median(side.ask(do="round", steps=nbytes)["seconds"]))
        row: dict[str, Any] = {"bytes": nbytes}
        line = f"{nbytes >> 10:8d} KiB"
        for name, seconds in bandwidths.items():
            ratios = [ours / other for ours, other in zip(bandwidths["jobflow"], seconds, strict=True)]
            row[name] = {"gb_s": nbytes / median(seconds) / 1e9, "ratio": median(ratios), "spread": [quantile(ratios, 0.1), quantile(ratios, 0.9)]}
            line += f"{row[name]['gb_s']:6.2f} ({median(ratios):.2f}, {quantile(ratios, 0.1):.2f}-{quantile(ratios, 0.9):.2f})"
        print(line)
        results.append(row)
    return results


def memory(options: argparse.Namespace) -> list[dict[str, Any]]:
    """Buffers and liveness bounds of the plan of the first rank, alone and of two."""
    import ours  # imports jobflow

    from jobflow.engine.job import job_of
    from jobflow.tools.explain import laid_out

    print(f"\n{'':8}{'ranks':>6}{'arena MiB':>12}{'bound':>9}{'ratio':>8}{'shared MiB':>13}{'bound':>9}{'ratio':>8}")
    results = []
    for model in options.models:
        for ranks in (1, RANKS):
            plan = laid_out(job_of(ours.job(model, False)), ranks).plan(0)
            results.append({"model": model, "ranks": ranks, "allocated": plan.buffers, "needed": plan.needed})
            cells = [(plan.buffers[name], plan.needed[name]) for name in ("arena", "shared")]
            print(f"{model:8}{ranks:6}", end="")
            print("  ".join(f"{size / 2**20:12.2f}{bound / 2**20:9.2f}{size / bound if bound else 1:8.3f}" for size, bound in cells))
    return results


def compile(options: argparse.Namespace) -> dict[str, Any]:
    """Seconds for a deep GPT on many ranks: laying it out, which is done once, and planning, which each rank does for itself."""
    import ours  # imports jobflow, and finds the examples

    from jobflow.engine.job import job_of
    from jobflow.tools.explain import laid_out

    size = ours.gpt.Size(batch=PLANNED_RANKS, blocks=BLOCKS)
    job = job_of(ours.gpt.make_train_job(size))
    start = time.perf_counter()
    program = laid_out(job, PLANNED_RANKS)
    between = time.perf_counter()
    plan = program.plan(0)
    end = time.perf_counter()
    result = {"blocks": BLOCKS, "ranks": PLANNED_RANKS, "layout_s": between - start, "plan_s": end - between, "instructions": len(plan.instructions)}
    print(f"\nGPT of {BLOCKS} blocks on {PLANNED_RANKS} ranks: laid out in {result['layout_s']:.2f} s, ", end="")
    print(f"a rank planned in {result['plan_s']:.2f} s, {len(plan.instructions)} instructions")
    return result


PARTS: dict[str, Callable[[argparse.Namespace], Any]] = {"efficiency": efficiency, "reduce": reduce, "memory": memory, "compile": compile}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", choices=tuple(PARTS), default=list(PARTS))
    parser.add_argument("--models", nargs="+", choices=models.MODELS, default=list(models.MODELS))
    parser.add_argument("--peer-python", help="a Python that has PyTorch, for gloo")
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--cores", type=int, nargs="+", help="one per rank; default: the last ones")
    options = parser.parse_args()
    options.cores = own_cores(options.cores, RANKS)
    sys.path.insert(0, str(HERE.parent))
    line = {"when": time.strftime("%Y-%m-%dT%H:%M:%S"), "machine": machine(), "parallel": {part: PARTS[part](options) for part in options.only}}
    with RESULTS.open("a", encoding="utf-8") as file:
        file.write(json.dumps(line) + "\n")


if __name__ == "__main__":
    main()
