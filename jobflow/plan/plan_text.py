"""Plans as text, one line per instruction."""

from __future__ import annotations

from jobflow.plan.plan import Collective, Completion, Compute, Instruction, Plan, Transfer, Wait


def plan_text(plan: Plan) -> str:
    """Return the program of one rank and the sizes of its buffers as text."""
    sizes = ", ".join(f"{name} {nbytes} bytes" for name, nbytes in plan.buffers.items())
    lines = [f"job {plan.job}, rank {plan.rank}: {sizes}"]
    lines.extend(f"  feed {feed.name} -> {feed.slot}" for feed in plan.feeds)
    lines.append("  body")
    lines.extend(f"    {instruction_text(i)}" for i in plan.body)
    lines.append("  epilogue")
    lines.extend(f"    {instruction_text(i)}" for i in plan.epilogue)
    lines.extend(f"  fetch {position} <- {slot}" for position, slot in plan.fetches)
    return "\n".join(lines)


def instruction_text(instruction: Instruction) -> str:
    """Return one instruction as text: operation, sources, targets, node and user's line."""
    match instruction:
        case Compute(op, inputs, outputs, name, where):
            return f"{', '.join(map(str, outputs))} = {op}({', '.join(map(str, inputs))})  # {name}, {where}"
        case Collective(kind, ranks, source, target, _, _, reduce, order, name, where, _, concurrent):
            how = f" {reduce.value}" if kind in ("all_reduce", "reduce_scatter") else ""
            return f"{target} = {'start ' if concurrent else ''}{kind}{how} {list(ranks)} #{order}({source})  # {name}, {where}"
        case Completion(_, target, order, name, where):
            return f"wait until #{order} is complete: {target}  # {name}, {where}"
        case Transfer(peer, sends, slot, order, name, where):
            return f"{'send to' if sends else 'receive from'} {peer} #{order}: {slot}  # {name}, {where}"
        case Wait(peer, sends, slot, order, name, where):
            return f"wait until {'sent to' if sends else 'received from'} {peer} #{order}: {slot}  # {name}, {where}"
