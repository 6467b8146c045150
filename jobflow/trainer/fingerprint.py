"""The fingerprint of a model's program, saved in checkpoints so that a run does not resume with a changed model.

The program is the traced forward pass of the train job, before differentiation. The fingerprint covers the operations behind the loss and the
variable updates: their attributes, their result types, and the parameters' names and types. The trace uses a fixed number of
samples in the consistent view. So the fingerprint does not depend on layouts, batch size, precision, ranks or line numbers.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import fields
from typing import Any

from jobflow.core.dataclass import dataclass
from jobflow.core.errors import CheckpointError
from jobflow.graph.ir import Node, Value
from jobflow.graph.traced import Traced
from jobflow.ops.layout_ops import Identity
from jobflow.ops.op import Op
from jobflow.ops.source import ReadVariable
from jobflow.storage.remote import AnyPath

#: version of the algorithm; increase it if unchanged programs get other fingerprints
VERSION = 2
#: number of samples in a trace
ROWS = 4
#: attributes outside of the fingerprint: they name random streams, which depend on the configuration's seed
UNNAMED = ("seed", "name")
ACCEPT = "checkpoint.accept_changed_model"


@dataclass(frozen=True)
class Fingerprint:
    """The hash of a program, and the version of the hash algorithm."""

    program: str
    version: int = VERSION

    def tree(self) -> dict[str, Any]:
        """Return the fingerprint as a JSON object for a checkpoint."""
        return {"version": self.version, "program": self.program}

    @classmethod
    def of_program(cls, program: Traced) -> Fingerprint:
        """Return the fingerprint of a traced program."""
        digest = hashlib.sha256()
        for line in lines(program):
            digest.update(f"{line}\n".encode())
        return cls(digest.hexdigest())

    def check(self, path: AnyPath, saved: Any, accepted: bool) -> str:
        """Compare this fingerprint with `saved`, the entry of the checkpoint `path`.

        Return a notice for the user, or "" if the programs are equal.
        Raises: CheckpointError if the programs differ and `accepted` is False.
        """
        if not isinstance(saved, Mapping) or saved.get("version") != self.version:
            return f"the fingerprint in {path} has {_version(saved)}, so a change of the model is not detected; training resumes"
        if saved.get("program") == self.program:
            return ""
        if accepted:
            return f"the model's program changed since {path} was saved; training resumes, because {ACCEPT} is true"
        raise CheckpointError(
            f"{path} was saved by a different model: its operations, their attributes or its parameters changed; "
            f"start again with --resume never (the checkpoints are renamed), or resume with --set {ACCEPT}=true"
        )


def _version(saved: Any) -> str:
    return f"version {saved.get('version')!r}, not {VERSION}" if isinstance(saved, Mapping) else "no version"


def lines(program: Traced) -> Iterator[str]:
    """Yield one text line per operation that the loss or a variable update depends on; operands are line numbers."""
    training = program.training
    ends = [*(training.losses if training is not None else ()), *program.losses, *program.updates.values()]
    needed, numbers = _needed(ends), dict[Value, str]()
    for node in program.nodes:
        if node not in needed:
            continue
        if isinstance(node.op, Identity):  # changes only the layout
            numbers[node.outputs[0]] = numbers[node.inputs[0]]
            continue
        at = f"%{len(numbers)}"
        numbers |= {value: f"{at}.{value.index}" for value in node.outputs}
        types = ", ".join(str(value.tensor_type) for value in node.outputs)
        yield f"{at}: {types} = {_text(node.op)}({', '.join(numbers[x] for x in node.inputs)})"
        if isinstance(node.op, ReadVariable):
            variable = program.variables.get(node.op.key) or program.known[node.op.key]
            yield f"{variable.name}: {variable.type}, trainable={variable.trainable}, l1={variable.l1}, l2={variable.l2}"
    yield f"loss: {', '.join(numbers[value] for value in ends)}; {', '.join(program.updates)}"


def _needed(ends: Iterable[Value]) -> set[Node]:
    needed: set[Node] = set()
    waiting = [value.node for value in ends]
    while waiting:
        node = waiting.pop()
        if node not in needed:
            needed.add(node)
            waiting.extend(x.node for x in node.inputs)
    return needed


def _text(op: Op) -> str:
    """Format an operation with its attributes, without memory addresses."""
    shown = (field.name for field in fields(op) if field.name not in op.unshown and field.name not in UNNAMED)
    text = ", ".join(f"{name}={getattr(op, name)}" for name in shown)
    return re.sub(r" at 0x[0-9a-f]+", "", f"{type(op).__name__}({text})")
