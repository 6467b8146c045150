"""Eager tensors: jobflow next to PyTorch eager, DTensor and DistributedDataParallel over gloo, in interleaved rounds of one run.

    python benchmarks/eager.py --peer-python ~/torch/bin/python
    python benchmarks/eager.py --only ops step --rounds 31
    python benchmarks/eager.py --peer-python ~/torch/bin/python --only models --models residual encoder

ops     microseconds of small ops on float32[4,6], alone and with backward, local (one rank) and global (two ranks, nothing is
        communicated); "beyond" is the time beyond the same call of NumPy in the same process
routes  milliseconds of changes of layout between two ranks: to_global against redistribute, by size
step    a training step of the MLP 784-512-10, batch 100, SGD: local, data parallel with global tensors against DTensor, and with
        averaged gradients against DistributedDataParallel
graph   the same step as nn.Graph against the job function of the same model
models  whole training steps (zero_grad, forward, loss, backward, update) of the models of benchmarks/models on one core. The modes
        are eager, nn.Graph and (with --compile) flow.compile, against PyTorch eager in the same rounds

PyTorch lives in an environment of its own.  Every rank of a side is a process on a core of its own.  In a round the sides take
turns, and each round has a ratio of their times.  The tables show the median of the ratios and their 10th and 90th percentile.
Rounds in which other processes used the cores for more than a tenth of the time are left out, unless most did.

Prints tables, appends one JSON line to benchmarks/results.jsonl (not with --dry), and asserts nothing about time.
"""

from __future__ import annotations

import argparse
import json
import os
import socket
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import median
from typing import Any

import model_sides
from models.table import ROWS
from side import Side, busy_seconds, own_cores
from step_time import FOREIGN, HERE, RESULTS, environment, machine, quantile, running

RANKS = 2
OPS = ("relu", "add", "add number", "matmul", "reshape", "sum")
ROUTES = ("S(0)->B", "B->S(0)", "S(0)->S(1)", "P->B", "P->S(0)", "[0]->[1]", "local->S(0)", "local->S(0) unchecked")
ROUTES += ("local->B", "numpy() of B", "numpy() of S(0)")
#: by size, how many changes of layout are made in a round
SIZES = {"1 KiB": 100, "1 MiB": 20, "16 MiB": 5}
SMALL_CALLS, STEPS = 1000, 100
CHECKED = 5

Times = dict[str, float]


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def ours(part: str, ranks: int, options: argparse.Namespace, root: Path = HERE.parent, name: str = "jobflow") -> Side:
    """jobflow's side; of another checkout, if `root` is one."""
    command = [sys.executable, str(root / "benchmarks" / "eager_ours.py"), part, "--ranks", str(ranks)]
    together = environment(root)
    if ranks == 1:
        return Side(name, [command], options.cores[:1], together)
    together |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port()), "WORLD_SIZE": str(ranks)}
    return Side(name, [["env", f"RANK={r}", f"LOCAL_RANK={r}", *command] for r in range(ranks)], options.cores, together)


def peer(part: str, ranks: int, options: argparse.Namespace) -> Side:
    command = [options.peer_python, str(HERE / "peers" / "torch_eager.py"), part, "--ranks", str(ranks)]
    meeting = f"{options.folder}/{part}-{time.monotonic_ns()}"
    commands = [[*command, "--rank", str(r), "--rendezvous", meeting] for r in range(ranks)]
    return Side("torch", commands, options.cores[:ranks])


def sides_of(part: str, ranks: int, options: argparse.Namespace) -> list[Side]:
    return [ours(part, ranks, options), *([peer(part, ranks, options)] if options.peer_python else [])]


def one_turn(sides: Sequence[Side], orders: Sequence[str], calls: int, turn: int, cores: Sequence[int]) -> tuple[Times, float]:
    """(median seconds of a call by side, share of the cores' time that went to others); `turn` rotates who begins."""
    medians: Times = {}
    foreign, start = 0.0, time.perf_counter()
    for index in range(len(sides)):
        at = (index + turn) % len(sides)
        side = sides[at]
        used, busy = sum(s.cpu_seconds() for s in sides), busy_seconds(cores)
        medians[side.name] = median(side.ask(do=orders[at], steps=calls)["seconds"])
        foreign += max(0.0, (busy_seconds(cores) - busy) - (sum(s.cpu_seconds() for s in sides) - used))
    return medians, foreign / ((time.perf_counter() - start) * len(cores))


def compared(sides: Sequence[Side], orders: Sequence[str], calls: int, options: argparse.Namespace) -> dict[str, Any]:
    """Medians by side, and the ratio of the first to the second with its spread."""
    cores = options.cores[: len(sides[0].commands)]
    one_turn(sides, orders, max(5, calls // 10), 0, cores)  # warm
    rounds = [one_turn(sides, orders, calls, turn, cores) for turn in range(options.rounds)]
    calm = [times for times, foreign in rounds if foreign <= FOREIGN]
    calm_rounds = calm if len(calm) >= max(3, len(rounds) // 3) else [times for times, _ in rounds]
    medians: dict[str, Any] = {side.name: median(times[side.name] for times in calm_rounds) for side in sides}
    if len(sides) > 1:
        first, second = (side.name for side in sides)
        ratios = [times[first] / times[second] for times in calm_rounds]
        medians |= {"ratio": median(ratios), "spread": [quantile(ratios, 0.1), quantile(ratios, 0.9)]}
    return medians | {"rounds": len(calm_rounds), "disturbed": len(rounds) - len(calm)}


def shown(name: str, row: dict[str, Any], scale: float, digits: int, more: str = "") -> None:
    cells = "".join(f"{row[side] * scale:12.{digits}f}" if side in row else f"{'':12}" for side in ("jobflow", "torch"))
    ratio = "{:9.2f}   {:.2f} - {:.2f}".format(row["ratio"], *row["spread"]) if "ratio" in row else ""
    print(f"  {name:30}{cells}{ratio:26}{more}", flush=True)


# -------------------------------------------------------------------- parts


def ops(options: argparse.Namespace) -> dict[str, Any]:
    results: dict[str, Any] = {}
    for kind, ranks in (("local", 1), ("global", RANKS)):
        print(f"\n{kind + ', ' + str(ranks) + ' rank(s), us':32}{'jobflow':>12}{'torch':>12}{'jobflow/it':>12}  p10 - p90   beyond NumPy")
        with running(sides_of("ops", ranks, options)) as sides:
            for side in sides:
                side.ask(do="facts")
            for name in [*OPS, *(f"{op} backward" for op in OPS)]:
                row = compared(sides, [f"{kind} {name}"] * len(sides), SMALL_CALLS, options)
                kernel = f"kernel {name.removesuffix(' backward')}"
                row["kernel"] = median(median(sides[0].ask(do=kernel, steps=SMALL_CALLS)["seconds"]) for _ in range(5))
                shown(name, row, 1e6, 2, f"{(row['jobflow'] - row['kernel']) * 1e6:10.1f}")
                results[f"{kind} {name}"] = row
    return results


def routes(options: argparse.Namespace) -> dict[str, Any]:
    results: dict[str, Any] = {}
    print(f"\n{'changes of layout, 2 ranks, ms':32}{'jobflow':>12}{'torch':>12}{'jobflow/it':>12}  p10 - p90")
    with running(sides_of("routes", RANKS, options)) as sides:
        for side in sides:
            side.ask(do="facts")
        for size, calls in SIZES.items():
            for route in ROUTES:
                name = f"{route} {size}"
                results[name] = compared(sides, [name] * len(sides), calls, options)
                shown(name, results[name], 1e3, 3)
    return results


def step(options: argparse.Namespace) -> dict[str, Any]:
    results: dict[str, Any] = {}
    print(f"\n{'a step of the MLP, ms':32}{'jobflow':>12}{'torch':>12}{'jobflow/it':>12}  p10 - p90   losses differ by")
    for ranks, cases in ((1, ("local",)), (RANKS, ("global", "averaged"))):
        with running(sides_of("step", ranks, options)) as sides:
            curves = [side.ask(do="losses", steps=CHECKED)["losses"] for side in sides]
            for case in cases:
                row = compared(sides, [case] * len(sides), STEPS, options)
                pairs = zip(curves[0][case], curves[-1][case], strict=True)
                row["losses_differ"] = max(abs(a - b) / abs(b) for a, b in pairs)
                shown(f"{case}, {ranks} rank(s)", row, 1e3, 3, f"{row['losses_differ']:10.1e}")
                results[case] = row
    return results


def graph(options: argparse.Namespace) -> dict[str, Any]:
    """The job is the first of the two sides in the results, "torch" stands for it in no table."""
    job = Side("job", [[sys.executable, str(HERE / "ours.py"), "mlp"]], options.cores[:1], ours("graph", 1, options).environment)
    results: dict[str, Any] = {}
    print(f"\n{'nn.Graph and job function, ms':32}{'graph':>12}{'job':>12}{'graph/job':>12}  p10 - p90")
    with running([ours("graph", 1, options), job]) as sides:
        for side in sides:
            side.ask(do="facts")
        for case in ("graph", "local graph"):
            row = results[case] = compared(sides, [case, "round"], STEPS, options)
            ratio = "{:9.3f}   {:.3f} - {:.3f}".format(row["ratio"], *row["spread"])
            print(f"  {case:30}{row['jobflow'] * 1e3:12.3f}{row['job'] * 1e3:12.3f}{ratio}")
    return results


def models_of_all_kinds(options: argparse.Namespace) -> dict[str, Any]:
    """Compare the modes with PyTorch eager, or with nn.Graph if there is no PyTorch."""
    core = options.cores[-1]
    modes = ["eager", "graph", *(["compile"] if options.compile else [])]
    reference = model_sides.PEER if options.peer_python else "graph"
    print(f"\n{'whole steps, 1 core, ms':26}{reference:>10}" + "".join(f"{mode:>10}{'/' + reference:>9}  p10 - p90 " for mode in modes) + "   MiB")
    results: dict[str, Any] = {}
    for model in options.models:
        sides = [model_sides.ours(mode, model, mode, core) for mode in modes]
        sides += [model_sides.peer(model, options.peer_python, core)] if options.peer_python else []
        results[model] = model_sides.measure(sides, reference, options.rounds, core)
        show_model(model, results[model]["sides"], reference, modes)
    means = {mode: model_sides.geometric_mean(row["sides"][mode]["ratio"] for row in results.values()) for mode in modes}
    print("  geometric mean: " + ", ".join(f"{mode} {mean:.3f}" for mode, mean in means.items()))
    return {"models": results, "means": means}


def show_model(model: str, sides: dict[str, Any], reference: str, modes: Sequence[str]) -> None:
    cells = ""
    for mode in modes:
        ratio = "ERROR" if sides[mode]["difference"] > model_sides.AGREE else f"{sides[mode]['ratio']:.2f}"
        cells += f"{sides[mode]['ms']:10.2f}{ratio:>9}" + "{:6.2f} -{:5.2f}".format(*sides[mode]["spread"])
    memory = " ".join(f"{side['mib']:.0f}" for side in sides.values())
    print(f"  {model:24}{sides[reference]['ms']:10.2f}{cells}   {memory}", flush=True)


PARTS: dict[str, Callable[[argparse.Namespace], Any]] = {"ops": ops, "routes": routes, "step": step, "graph": graph, "models": models_of_all_kinds}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", choices=tuple(PARTS), default=list(PARTS))
    parser.add_argument("--peer-python", help="a Python that has PyTorch; without it jobflow is timed alone")
    parser.add_argument(
        "--models", nargs="+", choices=tuple(ROWS), default=list(ROWS), metavar="MODEL", help=f"of the part models: {', '.join(ROWS)}"
    )
    parser.add_argument("--compile", action="store_true", help="add flow.compile to the part models")
    parser.add_argument("--rounds", type=int, default=11)
    parser.add_argument("--cores", type=int, nargs="+", help="one per rank; default: the last ones")
    parser.add_argument("--cpu", action="store_true", help="compare processor time instead of elapsed time, on a machine that others use")
    parser.add_argument("--dry", action="store_true", help="append nothing to the results")
    options = parser.parse_args()
    options.cores = own_cores(options.cores, RANKS)
    if options.cpu:
        os.environ["BENCHMARK_CLOCK"] = "cpu"  # inherited by every side
    with tempfile.TemporaryDirectory() as options.folder:
        results = {part: PARTS[part](options) for part in options.only}
    if not options.dry:
        line = {"when": time.strftime("%Y-%m-%dT%H:%M:%S"), "machine": machine(), "eager": results}
        with Path(RESULTS).open("a", encoding="utf-8") as file:
            file.write(json.dumps(line) + "\n")


if __name__ == "__main__":
    main()
