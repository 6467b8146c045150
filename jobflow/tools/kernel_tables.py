"""The implementation of each instruction of a plan, and the reasons against faster ones, as text."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from importlib import import_module

from jobflow.compiler.rank.order import Ordered
from jobflow.core.tables import TextTable
from jobflow.kernels import registry
from jobflow.kernels.target import Target
from jobflow.plan.plan import Compute, Plan


def kernel_tables(plan: Plan, target: Target, ordered: Ordered, why: str | None = None) -> str:
    """Return the target and its reason, the instructions, the applied patterns, recomputation in regions, and fusion refusals."""
    computing = [instruction for instruction in plan.instructions if isinstance(instruction, Compute)]
    slots = [slot for instruction in computing for slot in (*instruction.inputs, *instruction.outputs)]
    addresses = {buffer: (number + 1) << 40 for number, buffer in enumerate(dict.fromkeys(slot.buffer for slot in slots))}
    head = ["instruction", "operation", "kernel", "why not another"]
    title = f"kernels of {target}" + (f" ({why})" if why else "")
    text = f"{title}\n{TextTable(head, [_row(instruction, target, addresses) for instruction in computing])}"
    refined = registry.REFINED.get(target.tier)
    text += f"\n\nproducts of matrices in these calls: {import_module(refined).about()}" if refined else ""
    if ordered.program.hits:
        text += f"\n\npatterns\n{TextTable(['pattern', 'times'], sorted(Counter(ordered.program.hits).items()))}"
    if ordered.again:
        rows = [(one.value, one.region, one.why) for one in ordered.again]
        text += f"\n\ncomputed again rather than read\n{TextTable(['value', 'in the region of', 'why'], rows)}"
    if not ordered.apart:
        return text
    rows = list(dict.fromkeys((one.step, one.region or "any", one.why) for one in ordered.apart))
    return f"{text}\n\nnot in a region\n{TextTable(['instruction', 'region', 'why'], rows)}"


def _row(instruction: Compute, target: Target, addresses: Mapping[str, int]) -> tuple[str, str, str, str]:
    """Return the instruction, its operation, its implementation, and the reasons against faster ones."""
    inputs, outputs = (
        [registry.at(slot.type, slot.strides, addresses[slot.buffer] + slot.offset) for slot in slots]
        for slots in (instruction.inputs, instruction.outputs)
    )
    chosen = registry.choose(instruction.op, target, inputs, outputs)
    why = "; ".join(f"{name}: {reason}" for name, reason in chosen.refused)
    return instruction.name, str(instruction.op), chosen.implementation.name, why
