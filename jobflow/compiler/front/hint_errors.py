"""Error messages for layout constraints that cannot be met: the source of each constraint, the legal layouts, and the cheapest change."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from jobflow.compiler.layouts.choose import Case, Marks, choose
from jobflow.core.dataclass import dataclass
from jobflow.core.errors import SbpError
from jobflow.core.layout import Broadcast, Sbp, Signature, Split
from jobflow.graph.ir import Node, Value
from jobflow.ops.layout_ops import ToLayout


@dataclass(frozen=True)
class Wish:
    """The layout that `node` requests for the readers of a value, per mesh dimension (None: any)."""

    marks: Marks
    node: Node
    #: they must
    firm: bool = False
    #: and a cast must, too
    hint: bool = False

    @property
    def asked(self) -> str:
        """The operation and line of the request."""
        op = self.node.op
        who = op.asked if isinstance(op, ToLayout) and op.asked else self.node.op.word()
        return f"by {who} at {self.node.where}"


def known_as(value: Value) -> str:
    """Return the name of the value before hints were attached."""
    while isinstance(value.node.op, ToLayout) and value.node.op.asked:
        (value,) = value.node.inputs
    return value.name


def listed(marks: Marks) -> str:
    return ",".join("any" if sbp is None else str(sbp) for sbp in marks)


def contradiction(node: Node, before: Wish, asked: tuple[Sbp, ...]) -> SbpError:
    """Return the error of a tensor with two different layout requests and no reader between them."""
    value = node.inputs[0]
    wish = Wish(asked, node)
    return SbpError(
        f'{node.op.word()} at {node.where} (layer "{node.name}"): {known_as(value)} {value.tensor_type} is asked for '
        f"{listed(before.marks)} {before.asked} "
        f"and for {listed(asked)} {wish.asked}; one tensor has one layout: drop one of the two, or write "
        f"parallel_cast(x, distribute={spelled(before.marks)}) where the tensor is to change from one to the other"
    )


def unmet(node: Node, case: Case, dimension: int, wishes: Sequence[Wish | None]) -> SbpError:
    """Return the error of an operation without a signature for the requested input layouts along this mesh dimension."""
    n = case.mesh[dimension]
    inputs = "; ".join(_input(node, case, i, wish) for i, wish in enumerate(wishes))
    legal = [s for s in case.op.rule(*(value.tensor_type for value in node.inputs)).signatures() if s.legal(n)]
    along = "" if len(case.mesh) == 1 else f" of mesh dimension {dimension}"
    firm = [wish for operand, wish in zip(case.operands, wishes, strict=True) if operand.firm]
    what = "the hints contradict each other" if _one_by_one(case, legal, dimension) and len(firm) > 1 else "no signature reads its inputs as asked"
    return SbpError(
        f'{node.op.word()} at {node.where} (layer "{node.name}"): {what}: {inputs}. On the {n} ranks{along} it may run as '
        f"{' | '.join(f'({s})' for s in legal)}. The cheapest change that works: {_change(node, case, legal, dimension, wishes)}"
    )


def _input(node: Node, case: Case, index: int, wish: Wish | None) -> str:
    value, operand = node.inputs[index], case.operands[index]
    text = f"{known_as(value)} {value.tensor_type} lies {listed(operand.now)}"
    return text if wish is None or not operand.firm else f"{text}, asked for {listed(wish.marks)} {wish.asked}"


def _one_by_one(case: Case, legal: Sequence[Signature], dimension: int) -> bool:
    """Return True if each hint alone could be met."""
    asked = [(i, o.wished(dimension)) for i, o in enumerate(case.operands) if o.firm and o.wished(dimension) is not None]
    return all(any(s.inputs[i] == wish for s in legal) for i, wish in asked)


def _change(node: Node, case: Case, legal: Sequence[Signature], dimension: int, wishes: Sequence[Wish | None]) -> str:
    """Describe the smallest change of hints; among equal ones, the layouts that the compiler itself would choose."""
    free = choose(replace(case, operands=tuple(replace(o, firm=False) for o in case.operands)))
    wanted = [free.input(i) for i in range(len(case.operands))]
    parts = []
    for i, (operand, wish) in enumerate(zip(case.operands, wishes, strict=True)):
        if operand.firm and wish is not None and wish.marks[dimension] != wanted[i][dimension]:
            parts.append(f"ask for {known_as(node.inputs[i])} in {listed(wanted[i])} at {wish.node.where} ({spelled(wanted[i])})")
    return " and ".join(parts)


def spelled(marks: Marks) -> str:
    """Return a layout in the syntax of programs."""
    if len(set(marks)) > 1:
        return f"hierarchical_parallel_cast(x, {[str(sbp) for sbp in marks]})"
    if isinstance(marks[0], Split):
        return f"distribute.split({marks[0].axis})"
    return "distribute.broadcast()" if isinstance(marks[0], Broadcast) else str(marks[0])
