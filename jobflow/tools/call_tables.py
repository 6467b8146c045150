"""Tables of the calls of a plan: their implementations, and the least times of a GPU."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from importlib import import_module

from jobflow.compiler.rank.order import Ordered
from jobflow.core.errors import counted
from jobflow.core.tables import TextTable
from jobflow.kernels import registry
from jobflow.kernels.cuda.call_floors import H100, CallFloor, floor_of
from jobflow.kernels.target import Target
from jobflow.plan.plan import Compute, Plan

#: rows of the table of slowest calls
SLOWEST = 25
#: columns with the numbers of `_figures`
FIGURES = ("ms", "MB", "GFLOP")


def kernel_tables(plan: Plan, target: Target, ordered: Ordered, why: str | None = None) -> str:
    """Return tables of the instructions and implementations, the applied patterns, recomputed values, and fusion refusals.

    `why` is a remark for the title, such as the reason for slower kernels.
    """
    head = ["instruction", "operation", "kernel", "why not another"]
    chosen = [(call.name, str(call.op), kernel, why) for call, kernel, why in kernels_of(plan, target)]
    title = f"kernels of {target}" + (f" ({why})" if why else "")
    text = f"{title}\n{TextTable(head, chosen)}"
    refined = registry.REFINED.get(target.tier)
    text += f"\n\nmatrix products in these calls: {import_module(refined).about()}" if refined else ""
    if ordered.program.hits:
        text += f"\n\npatterns\n{TextTable(['pattern', 'times'], sorted(Counter(ordered.program.hits).items()))}"
    if ordered.rematerialized:
        rows = [(one.value, one.region, one.why) for one in ordered.rematerialized]
        text += f"\n\nrecomputed instead of read\n{TextTable(['value', 'in the region of', 'why'], rows)}"
    if not ordered.not_fused:
        return text
    rows = list(dict.fromkeys((one.step, one.region or "any", one.why) for one in ordered.not_fused))
    return f"{text}\n\nnot in a region\n{TextTable(['instruction', 'region', 'why'], rows)}"


def kernels_of(plan: Plan, target: Target) -> Iterator[tuple[Compute, str, str]]:
    """Yield each call with its implementation, and the reasons why better implementations were refused."""
    computing = [instruction for instruction in plan.instructions if isinstance(instruction, Compute)]
    slots = [slot for instruction in computing for slot in (*instruction.inputs, *instruction.outputs)]
    addresses = {buffer: (number + 1) << 40 for number, buffer in enumerate(dict.fromkeys(slot.buffer for slot in slots))}
    for call in computing:
        inputs, outputs = (
            [registry.at(slot.type, slot.strides, addresses[slot.buffer] + slot.offset) for slot in s] for s in (call.inputs, call.outputs)
        )
        chosen = registry.choose(call.op, target, inputs, outputs)
        yield call, chosen.implementation.name, "; ".join(f"{name}: {reason}" for name, reason in chosen.refused)


def floor_tables(plan: Plan, target: Target) -> str:
    """Return the sum of the least times of a plan's calls on an H100, by kernel and for the slowest calls with the user's lines.

    A last table lists the kernels of products, convolutions and attention, with the reasons why better ones were refused.
    """
    calls = [(call, kernel, why, floor_of(call, H100, target.products.tf32)) for call, kernel, why in kernels_of(plan, target)]
    total = sum(floor.seconds for *_, floor in calls)
    others = sum(not isinstance(instruction, Compute) for instruction in plan.instructions)
    text = f"{H100.name}: at least {total * 1e3:.3f} ms for the {counted(len(calls), 'call')} of rank {plan.rank}"
    text += f"; {counted(others, 'instruction')} of communication not included" if others else ""
    sums = {kernel: [floor for _, name, _, floor in calls if name == kernel] for kernel in dict.fromkeys(kernel for _, kernel, *_ in calls)}
    by_time = sorted(sums.items(), key=lambda item: -sum(floor.seconds for floor in item[1]))
    rows = [(name, len(floors), *_figures(floors)) for name, floors in by_time]
    text += f"\n\n{TextTable(['kernel', 'calls', *FIGURES], rows, right=range(1, 5))}"
    slowest = sorted(calls, key=lambda row: -row[3].seconds)[:SLOWEST]
    lines = [(*_figures([floor]), floor.bound, call.name, kernel, call.where) for call, kernel, _, floor in slowest]
    text += f"\n\nslowest calls\n{TextTable([*FIGURES, 'bound by', 'instruction', 'kernel', 'line'], lines, right=range(3))}"
    reasons = Counter((kernel, why) for _, kernel, why, floor in calls if floor.operations)
    if not reasons:
        return text
    table = TextTable(["kernel", "calls", "why not another"], [(kernel, count, why) for (kernel, why), count in reasons.items()], right=(1,))
    return f"{text}\n\nproducts, convolutions and attention\n{table}"


def _figures(floors: Sequence[CallFloor]) -> tuple[str, str, str]:
    """Return the least time in milliseconds, the bytes in MB, and the operations in GFLOP."""
    return (
        f"{sum(floor.seconds for floor in floors) * 1e3:.3f}",
        f"{sum(floor.nbytes for floor in floors) / 1e6:,.2f}",
        f"{sum(floor.operations for floor in floors) / 1e9:,.2f}",
    )
