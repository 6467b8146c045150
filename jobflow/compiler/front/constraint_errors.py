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
class Constraint:
    """The layout that `node` requests for the readers of a value, per mesh dimension (None: any)."""

    marks: Marks
    node: Node
    #: True if readers in the forward pass must use it
    required: bool = False
    #: True for a layout hint, which a cast must not contradict
    hint: bool = False

    @property
    def source(self) -> str:
        """The operation and line of the request."""
        op = self.node.op
        name = op.requested_by if isinstance(op, ToLayout) and op.requested_by else self.node.op.word()
        return f"by {name} at {self.node.where}"


def known_as(value: Value) -> str:
    """Return the name that the value had before layout hints were attached to it."""
    while isinstance(value.node.op, ToLayout) and value.node.op.requested_by:
        (value,) = value.node.inputs
    return value.name


def listed(marks: Marks) -> str:
    return ",".join("any" if sbp is None else str(sbp) for sbp in marks)


def contradiction(node: Node, earlier: Constraint, requested: tuple[Sbp, ...]) -> SbpError:
    """Return the error for a tensor with two different layout requests and no reader between them."""
    value = node.inputs[0]
    constraint = Constraint(requested, node)
    return SbpError(
        f'{node.op.word()} at {node.where} (layer "{node.name}"): {known_as(value)} {value.tensor_type} is requested as '
        f"{listed(earlier.marks)} {earlier.source} "
        f"and as {listed(requested)} {constraint.source}; one tensor has one layout: drop one of the two, or write "
        f"parallel_cast(x, distribute={in_program_syntax(earlier.marks)}) where the layout should change from one to the other"
    )


def unmet(node: Node, case: Case, dimension: int, constraints: Sequence[Constraint | None]) -> SbpError:
    """Return the error for an operation without a signature for the requested input layouts along this mesh dimension."""
    n = case.mesh[dimension]
    inputs = "; ".join(_input(node, case, i, constraint) for i, constraint in enumerate(constraints))
    legal = [s for s in case.op.rule(*(value.tensor_type for value in node.inputs)).signatures() if s.legal(n)]
    along = "" if len(case.mesh) == 1 else f" of mesh dimension {dimension}"
    required = [constraint for operand, constraint in zip(case.operands, constraints, strict=True) if operand.required]
    what = (
        "the hints contradict each other"
        if _each_alone_possible(case, legal, dimension) and len(required) > 1
        else "no signature reads its inputs as requested"
    )
    return SbpError(
        f'{node.op.word()} at {node.where} (layer "{node.name}"): {what}: {inputs}. On the {n} ranks{along} it may run as '
        f"{' | '.join(f'({s})' for s in legal)}. The cheapest change that works: {_change(node, case, legal, dimension, constraints)}"
    )


def _input(node: Node, case: Case, index: int, constraint: Constraint | None) -> str:
    value, operand = node.inputs[index], case.operands[index]
    text = f"{known_as(value)} {value.tensor_type} has layout {listed(operand.now)}"
    return text if constraint is None or not operand.required else f"{text}, requested as {listed(constraint.marks)} {constraint.source}"


def _each_alone_possible(case: Case, legal: Sequence[Signature], dimension: int) -> bool:
    """Return True if each required layout along this mesh dimension has a legal signature, when the other inputs are ignored."""
    requested = [(i, o.requested_along(dimension)) for i, o in enumerate(case.operands) if o.required and o.requested_along(dimension) is not None]
    return all(any(s.inputs[i] == layout for s in legal) for i, layout in requested)


def _change(node: Node, case: Case, legal: Sequence[Signature], dimension: int, constraints: Sequence[Constraint | None]) -> str:
    """Return the advice of an error message: the requests to change, each with the layout that the compiler chooses without requests."""
    free = choose(replace(case, operands=tuple(replace(o, required=False) for o in case.operands)))
    free_layouts = [free.input(i) for i in range(len(case.operands))]
    parts = []
    for i, (operand, constraint) in enumerate(zip(case.operands, constraints, strict=True)):
        if operand.required and constraint is not None and constraint.marks[dimension] != free_layouts[i][dimension]:
            parts.append(
                f"request {known_as(node.inputs[i])} in {listed(free_layouts[i])} at {constraint.node.where} ({in_program_syntax(free_layouts[i])})"
            )
    return " and ".join(parts)


def in_program_syntax(marks: Marks) -> str:
    """Return the user's expression for a layout, for example `distribute.split(0)`."""
    if len(set(marks)) > 1:
        return f"hierarchical_parallel_cast(x, {[str(sbp) for sbp in marks]})"
    if isinstance(marks[0], Split):
        return f"distribute.split({marks[0].axis})"
    return "distribute.broadcast()" if isinstance(marks[0], Broadcast) else str(marks[0])
