"""Ordered program -> the same program, in which the mean and the variance of each channel are one operation.

    t = axis_sum(x); m = t / count; s, q = centered_sums(x, m); mean, variance = moments(m, s, q); unbiased = variance * correction

becomes `mean, variance, unbiased = batch_moments(x)`, which reads x once, before a cast to float32.  The condition is a property of the target
(`registry.has_own`).  If ranks split the samples, communication is between the sums and their use, and the chain stays.
"""

from __future__ import annotations

from dataclasses import replace

from jobflow.compiler.rank.local import LocalInstruction, LocalValue
from jobflow.compiler.rank.order import Ordered
from jobflow.compiler.rank.split_casts import widens
from jobflow.core.dataclass import dataclass
from jobflow.kernels import registry
from jobflow.ops.batch_norm import BatchMoments, CenteredSums, Moments
from jobflow.ops.matmul import AxisSum
from jobflow.ops.scalar import Scale


def merge_moments(ordered: Ordered) -> Ordered:
    """Merge the chains of the body."""
    present = any(isinstance(step.action, Moments) for step in ordered.body)
    return _Merger(ordered).run() if present and registry.has_own(BatchMoments, ordered.program.target) else ordered


@dataclass(frozen=True)
class _Chain:
    """The instructions of a chain from the channel sum to `Moments`, and x."""

    steps: tuple[LocalInstruction, ...]
    x: LocalValue
    axis: int


class _Merger:
    def __init__(self, ordered: Ordered) -> None:
        self.ordered = ordered
        program = ordered.program
        self.maker = {value: step for step in ordered.body for value in step.outputs}
        self.readers: dict[LocalValue, list[LocalInstruction]] = {}
        for step in (*ordered.body, *ordered.epilogue):
            for value in dict.fromkeys(step.inputs):
                self.readers.setdefault(value, []).append(step)
        self.outside = {value for _, value in program.fetches} | set(program.results) | set(program.updates.values())

    def run(self) -> Ordered:
        removed: set[LocalInstruction] = set()
        merged: dict[LocalInstruction, LocalInstruction] = {}
        for step in self.ordered.body:
            chain = self._chain(step)
            if chain is None:
                continue
            removed.update(chain.steps[:-1])
            mean, variance = step.outputs
            scaled = self._scaled(variance, step)
            corrected = scaled.outputs[0] if scaled is not None else LocalValue(variance.type, f"{variance.name}:unbiased")
            removed.update(() if scaled is None else (scaled,))
            correction = scaled.action.number if scaled is not None and isinstance(scaled.action, Scale) else 1.0
            source = self.maker.get(chain.x)
            before = source.inputs[0] if source is not None and widens(source) else chain.x
            merged[step] = replace(step, action=BatchMoments(chain.axis, correction), inputs=(before,), outputs=(mean, variance, corrected))
            if source is not None and before is not chain.x and chain.x not in self.outside and removed.issuperset(self.readers[chain.x]):
                removed.add(source)
        return replace(self.ordered, body=tuple(merged.get(step, step) for step in self.ordered.body if step not in removed))

    def _chain(self, step: LocalInstruction) -> _Chain | None:
        """Return the chain that ends with this instruction, or None."""
        if not isinstance(step.action, Moments):
            return None
        mean, *sums = step.inputs
        centred, scale = self.maker.get(sums[0]), self.maker.get(mean)
        if centred is None or scale is None or not isinstance(centred.action, CenteredSums) or not isinstance(scale.action, Scale):
            return None
        x, count = centred.inputs[0], step.action.count
        total = self.maker.get(scale.inputs[0])
        if total is None or not isinstance(total.action, AxisSum) or total.inputs != (x,) or total.action.axis != centred.action.axis:
            return None
        steps, axis = (total, scale, centred, step), total.action.axis
        whole = count == x.type.size // max(1, x.type.shape[axis]) and scale.action.number == 1.0 / count
        same = centred.inputs[1] is mean and tuple(sums) == centred.outputs and len({each.microbatch for each in steps}) == 1
        inside = [value for each in steps[:-1] for value in each.outputs]
        alone = self.outside.isdisjoint(inside) and all(reader in steps for value in inside for reader in self.readers[value])
        return _Chain(steps, x, axis) if whole and same and alone else None

    def _scaled(self, variance: LocalValue, step: LocalInstruction) -> LocalInstruction | None:
        """Return the instruction that scales the variance in the body, or None."""
        scales = [each for each in self.readers.get(variance, ()) if isinstance(each.action, Scale) and self.maker.get(each.outputs[0]) is each]
        return scales[0] if scales and scales[0].microbatch == step.microbatch else None
