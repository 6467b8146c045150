"""Tensor parallelism: every rank computes a shard of every layer for the whole batch.

Layers form pairs, as in Megatron-LM.  The first layer of a pair is split by columns: a rank computes some of its outputs, and operations up to
the second layer use only these.  The second layer is split by rows: a rank multiplies a shard of the inputs, and the sum over the ranks is the
layer's output.  A pair costs one all_reduce forward (after the rows) and one backward (before the columns).

Pairs follow from the layout rules of the operations, so any model can be split, without special cases for operations.  A *product* is a node that
reads a variable and whose rule has the two signatures

    columns   (B, S(a)) -> S(b)          rows   (S(c), S(d)) -> P

Products are visited in program order.  A product with a split input is split by rows if a signature allows it.  Another product is split by
columns if every rule on the way keeps its output split, until products split by rows or sums consume it.  Variables on the way (biases) are
split alike.  Otherwise the layer is not split.

Example: x -> dense up -> gelu -> dense down -> y.  up-weight (4d, d) is S(0), up-bias S(0), down-weight (d, 4d) S(1), down-bias B.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import field

from jobflow.core.dataclass import dataclass
from jobflow.core.errors import ConfigError
from jobflow.core.filters import Filter, alternatives, matches, selected
from jobflow.core.layout import B, Broadcast, Partial, Sbp, Signature, Split
from jobflow.graph.ir import Node, Value
from jobflow.graph.traced import Traced
from jobflow.ops.op import Op
from jobflow.ops.source import ReadVariable
from jobflow.strategies.strategy_class import Hints, Strategy

Patterns = Sequence[Filter]


@dataclass(frozen=True)
class tensor_parallel(Strategy):
    """Layers split by columns and by rows: variables by name pattern ("block*-up-weight"), or pairs that are detected if no name is passed.

    `vocabulary` names tables that are split along their lookup axis; without any names, tables of at least `large` elements are split.
    Each rank and step communicates 4 a (n-1)/n bytes per pair of layers, half of them forward.  Here a is the size of the pair's output in
    bytes, and n is the number of ranks.
    Raises: ConfigError if a pattern matches no variable, or a variable that no operation can read with this split.
    """

    size: int | None = None
    columns: Patterns = ()
    rows: Patterns = ()
    vocabulary: Patterns = ()
    large: int = 1 << 20

    def __post_init__(self) -> None:
        for name in ("columns", "rows", "vocabulary"):
            object.__setattr__(self, name, alternatives(getattr(self, name)))

    @property
    def is_named(self) -> bool:
        return bool(self.columns or self.rows or self.vocabulary)

    def hints(self, program: Traced, n: int, split: Mapping[str, AbstractSet[int]]) -> Hints:
        if n == 1:
            return Hints(read={})
        state = _Pairs(self, program, n).run()
        split_variables = {name: sbp for name, sbp in state.variables.items() if isinstance(sbp, Split)}
        self._check(program, split_variables)
        return Hints(split_variables, read=split_variables, values=dict.fromkeys(state.sums, B), gradients=dict.fromkeys(state.sources, B))

    def _check(self, program: Traced, split_variables: Mapping[str, Sbp]) -> None:
        for pattern in (*self.columns, *self.rows, *self.vocabulary):
            matching = list(selected(pattern, {name: variable.type for name, variable in program.variables.items()}))
            if not matching:
                names = ", ".join(program.variables)
                raise ConfigError(f'strategies.tensor_parallel: no variable of job {program.name} matches "{pattern}"; its variables are {names}')
            whole = [name for name in matching if name not in split_variables]
            if whole:
                raise ConfigError(
                    f'strategies.tensor_parallel: "{pattern}" matches variable "{whole[0]}" {program.variables[whole[0]].type}, but no operation '
                    f"supports this split; omit the pattern, or make the axis at least as long as the number of ranks"
                )


@dataclass
class _State:
    """The layouts chosen so far for values and variables along the dimension; values and variables without an entry are not split."""

    values: dict[Value, Sbp] = field(default_factory=dict)
    variables: dict[str, Sbp] = field(default_factory=dict)
    #: values to sum over the ranks
    sums: dict[Value, None] = field(default_factory=dict)
    #: replicated inputs of products split by columns; their gradients are summed over the ranks
    sources: dict[Value, None] = field(default_factory=dict)

    def copy(self) -> _State:
        return _State(dict(self.values), dict(self.variables), dict(self.sums), dict(self.sources))

    def begin(self, node: Node, signature: Signature) -> None:
        """Apply the signature of the first node of a pair."""
        self.take(node, signature)
        self.sources.update(dict.fromkeys(value for value in node.inputs if not isinstance(value.node.op, ReadVariable)))

    def take(self, node: Node, signature: Signature) -> None:
        for value, sbp in zip(node.inputs, signature.inputs, strict=True):
            if isinstance(value.node.op, ReadVariable):
                self.variables[value.node.op.key] = sbp
        for value, sbp in zip(node.outputs, signature.outputs, strict=True):
            self.values[value] = B if isinstance(sbp, Partial) else sbp
            if isinstance(sbp, Partial):
                self.sums[value] = None


class _Pairs:
    def __init__(self, strategy: tensor_parallel, program: Traced, n: int) -> None:
        self.strategy = strategy
        self.n = n
        self.nodes = [node for node in program.nodes if node.phase == "forward" and node.inputs and not node.outputs[0].local]
        self.readers: dict[Value, list[int]] = {}
        for i, node in enumerate(self.nodes):
            for value in dict.fromkeys(node.inputs):
                self.readers.setdefault(value, []).append(i)
        new = {name: variable.sbp for name, variable in program.variables.items() if name not in program.known}
        self.state = _State(variables={name: sbp[-1] for name, sbp in new.items() if any(isinstance(one, Split) for one in sbp)})

    def run(self) -> _State:
        for node in self.nodes:
            if node.outputs[0] not in self.state.values:
                self.decide(node)
        return self.state

    def decide(self, node: Node) -> None:
        """Choose the signature of a node if its inputs are split or a pair starts here."""
        legal = self.legal(node)
        if any(isinstance(self.state.values.get(value), Split) for value in node.inputs):
            chosen = next((s for s in legal if self.fits(s, node, self.state)), None)
            if chosen is not None:
                self.state.take(node, chosen)
            return
        weights = [i for i, value in enumerate(node.inputs) if self.free(value)]
        for i in weights:
            for signature in legal:
                kind = self.kind(signature, i)
                if kind and self.starts(node, i, kind, legal) and self.fits(signature, node, self.state, beginning=kind != "rows"):
                    after = self.followed(node, signature)
                    if after is not None:
                        self.state = after
                        return

    def starts(self, node: Node, i: int, kind: str, legal: Sequence[Signature]) -> bool:
        """Return True if a pair may start at this node with input i, a variable, in the role `kind`; no other input is split."""
        if self.strategy.is_named:
            return matches(getattr(self.strategy, kind), _variable(node.inputs[i]), node.inputs[i].tensor_type)
        if kind == "vocabulary":
            return node.inputs[i].tensor_type.size >= self.strategy.large
        return kind == "columns" and any(self.kind(s, i) == "rows" for s in legal)

    @staticmethod
    def kind(signature: Signature, i: int) -> str | None:
        """Return the role of input i, a variable, in a signature: columns, rows or vocabulary; None if the variable is not split."""
        if not isinstance(signature.inputs[i], Split):
            return None
        others = [sbp for j, sbp in enumerate(signature.inputs) if j != i]
        sums = all(isinstance(sbp, Partial) for sbp in signature.outputs)
        if all(isinstance(sbp, Broadcast) for sbp in others):
            return "vocabulary" if sums else "columns"
        return "rows" if sums else None

    # ---------------------------------------------------------------- propagation of splits

    def followed(self, start: Node, signature: Signature) -> _State | None:
        """Return the state after a pair that starts at `start`; None if a split value requires a gather and no name requests the split."""
        state = self.state.copy()
        state.begin(start, signature)
        waiting = self.waiting(start, state)
        while waiting:
            i = min(waiting)
            waiting.discard(i)
            node = self.nodes[i]
            chosen = next((s for s in self.legal(node) if self.fits(s, node, state)), None)
            if chosen is not None:
                state.take(node, chosen)
                waiting |= self.waiting(node, state)
            elif self.ends(node, state):
                state.sums.update(dict.fromkeys(value for value in node.outputs if value not in state.values))
            elif not self.strategy.is_named:
                return None
        return state

    def waiting(self, node: Node, state: _State) -> set[int]:
        return {i for value in node.outputs if isinstance(state.values.get(value), Split) for i in self.readers.get(value, ())}

    def free(self, value: Value) -> bool:
        """Return True for a floating-point variable whose layout is not yet chosen."""
        op = value.node.op
        return isinstance(op, ReadVariable) and op.key not in self.state.variables and value.tensor_type.dtype.is_float

    def legal(self, node: Node) -> list[Signature]:
        """Return the signatures without partial inputs that assign every rank at least one element of each split axis."""
        rule = node.op.rule(*(value.tensor_type for value in node.inputs))
        return [s for s in rule.signatures() if s.legal(self.n) and self.has_room(s, node)]

    def has_room(self, signature: Signature, node: Node) -> bool:
        pairs = [*zip(node.inputs, signature.inputs, strict=True), *zip(node.outputs, signature.outputs, strict=True)]
        if any(isinstance(sbp, Partial) for sbp in signature.inputs):
            return False
        return all(value.shape[sbp.axis] >= self.n for value, sbp in pairs if isinstance(sbp, Split))

    def fits(self, signature: Signature, node: Node, state: _State, beginning: bool = False) -> bool:
        """Return True if all inputs have, or can be stored in, the layouts of the signature without a gather.

        A replicated input may be split locally, which costs nothing, except at the start of a pair.
        """
        for value, sbp in zip(node.inputs, signature.inputs, strict=True):
            op = value.node.op
            if isinstance(op, ReadVariable):
                if op.key in state.variables and state.variables[op.key] != sbp:
                    return False
            elif isinstance(state.values.get(value, B), Split):
                if state.values[value] != sbp:
                    return False
            elif beginning and isinstance(sbp, Split):
                return False
        return any(isinstance(sbp, Split) for sbp in signature.inputs)

    def ends(self, node: Node, state: _State) -> bool:
        """Return True if the op of the node, such as a loss, can be decomposed, and its outputs have fewer axes than its sharded inputs."""
        most = max(value.tensor_type.ndim for value in node.inputs if isinstance(state.values.get(value, B), Split))
        small = all(value.tensor_type.ndim < most for value in node.outputs if value in self.readers)
        return small and type(node.op).decompose is not Op.decompose


def _variable(value: Value) -> str:
    op = value.node.op
    assert isinstance(op, ReadVariable), "only variables have names"
    return op.key
