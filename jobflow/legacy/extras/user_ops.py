"""Operations by type name: user-defined classes and all published types (`op_types`).

    @dataclass(frozen=True)
    class Squareplus(Unary):                    # of jobflow.ops.pointwise, or a subclass of another Op
        bias: float = 4.0

        def formula(self, f, x):
            return (x + f.sqrt(x * x + self.bias)) * 0.5

    flow.user_op_builder("curve").Op("squareplus").Input("x", [x]).Output("y").Attr("bias", 1.0).Build().InferAndTryRun().SoleOutputBlob()

The type name is the name of the class in any capitalisation. Its inputs are the parameters of its formula or kernel, its attributes are the
fields of the dataclass, and the program names the outputs.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import MISSING, field, fields
from typing import Any

import numpy as np

import jobflow.core.scope as scope
from jobflow.core.dataclass import dataclass
from jobflow.core.errors import ArgumentError, JobError, JobflowError, did_you_mean, user_line
from jobflow.core.types import Tensor
from jobflow.engine.staged_job import StagedBody
from jobflow.functional.nn_base import composing
from jobflow.host_pipeline.outputs import OnHost
from jobflow.legacy.extras.op_type_attributes import unfitting
from jobflow.legacy.extras.op_types import OP_TYPES
from jobflow.legacy.extras.op_types_of_gradients import OP_TYPES_OF_GRADIENTS
from jobflow.legacy.extras.op_types_of_updates import OP_TYPES_OF_UPDATES
from jobflow.legacy.extras.op_types_on_host import OP_TYPES_ON_HOST
from jobflow.legacy.job_dispatch import is_tensor
from jobflow.legacy.variables import current_job
from jobflow.ops.op import Op, apply
from jobflow.tensors.job_recorder import recorded
from jobflow.typing.results import HostArgument

#: the default of a required attribute, and the number of tensors of an input that accepts a list
NEEDED, MANY = object(), -1

#: further operations: functions of positional tensors
OWN_FUNCTIONS: dict[str, Callable[..., Tensor]] = {}


@dataclass(frozen=True)
class OpType:
    """The schema of an operation type: inputs, outputs and attributes."""

    word: str
    #: number of tensors by input: 1, 0 for an optional one, or MANY; None accepts the names and order of the program
    inputs: Mapping[str, int] | None
    #: None accepts the names of the program
    outputs: tuple[str, ...] | None
    #: default by attribute, or NEEDED
    attributes: Mapping[str, Any]
    #: called with positional tensors and attributes by name; returns a tensor or a sequence of tensors
    function: Callable[..., Any]
    #: True if the function accepts the op's name
    named: bool = False
    #: parameters whose attributes have another name
    parameters_of: Mapping[str, str] = field(default_factory=dict)


def op_type(word: str) -> OpType:
    """Return the operation type `word`; raise ArgumentError if `word` is unknown or not a string."""
    if not isinstance(word, str):
        raise ArgumentError(f"user_op_builder at {user_line()}: the type of an operation must be a string, not {word!r}")
    own = _own_classes()
    if word.lower() in own:
        return _of_class(word, own[word.lower()])
    if word in OWN_FUNCTIONS:
        return OpType(word, None, None, {}, OWN_FUNCTIONS[word])
    published = _published()
    if word in published:
        return published[word]
    raise ArgumentError(f"user_op_builder at {user_line()}: unknown operation type {word!r}{did_you_mean(word, [*published, *own, *OWN_FUNCTIONS])}")


def _own_classes() -> dict[str, type[Op]]:
    """Return the concrete operation classes that are defined outside of jobflow, by type name."""
    result, waiting = {}, [Op]
    while waiting:
        for each in waiting.pop().__subclasses__():
            waiting.append(each)
            if not each.__module__.startswith("jobflow.") and not each.__dict__.get("abstract"):
                result[each.word()] = each
    return result


@functools.cache
def _published() -> Mapping[str, OpType]:
    result = {}
    for key, function in {**OP_TYPES, **OP_TYPES_OF_GRADIENTS, **OP_TYPES_ON_HOST, **OP_TYPES_OF_UPDATES}.items():
        word, outputs = key.split(" -> ")
        parameters = inspect.signature(function).parameters.values()
        inputs = {
            p.name.rstrip("_"): MANY if p.kind is p.VAR_POSITIONAL else int(p.default is p.empty) for p in parameters if p.kind is not p.KEYWORD_ONLY
        }
        arguments = {p.name: NEEDED if p.default is p.empty else p.default for p in parameters if p.kind is p.KEYWORD_ONLY}
        named = arguments.pop("name", NEEDED) is None
        attributes = {name.rstrip("_"): default for name, default in arguments.items()}
        parameters_of = {name.rstrip("_"): name for name in arguments}
        result[word] = OpType(word, inputs, tuple(outputs.split()), attributes, function, named, parameters_of)
    return result


def _of_class(word: str, kind: type[Op]) -> OpType:
    """Return the schema of the user-defined operation class `kind`, with the type name `word`."""
    formula: Any = getattr(kind, "formula", None)
    arguments = list(inspect.signature(formula if formula is not None else kind.infer).parameters.values())
    several = any(each.kind is each.VAR_POSITIONAL for each in arguments)
    inputs = {each.name: MANY if several else 1 for each in arguments[2 if formula is not None else 1 :]}
    attributes = {f.name: NEEDED if f.default is MISSING else f.default for f in fields(kind) if f.init}
    return OpType(word, inputs, None, attributes, lambda *x, **attributes: apply(kind(**attributes), *x))


@dataclass
class UserOp:
    """An operation with its inputs, which `InferAndTryRun` traces into the body of the job."""

    name: str | None
    type: OpType
    inputs: Mapping[str, Sequence[Tensor]]
    outputs: Mapping[str, int]
    attributes: Mapping[str, Any]
    #: trace in the consistent view
    consistent: bool = False
    _made: dict[str, list[Tensor]] | None = None

    def InferAndTryRun(self) -> UserOp:
        """Trace the operation into the body of the job, and return this object; an error of the operation names the user's line."""
        try:
            return self._run(current_job(f"user_op_builder({self.name!r})"))
        except JobflowError as error:
            if "\n" in str(error) or str(user_line()) in str(error):
                raise
            raise type(error)(f"{self.type.word} at {user_line()}: {error}") from error

    def _run(self, job: StagedBody) -> UserOp:
        known = self.type.inputs
        ordered: list[Any] = [x for word in known or self.inputs for x in self.inputs.get(word, [None] * (known is not None and known[word] == 0))]
        attributes = {self.type.parameters_of.get(word, word): value for word, value in self.attributes.items()}
        with scope.using(**({"view": "consistent"} if self.consistent else {})):
            if self.type.named:
                result = self.type.function(*ordered, **attributes, name=self.name)
            elif any(is_tensor(x) for x in ordered) and not hasattr(job, "takes_tensors"):
                result = recorded(job, self.type.function, ordered, attributes, self.name)
            else:
                result = self.type.function(*ordered, **attributes)
        self._made = self._by_name(result)
        return self

    def _by_name(self, result: Any) -> dict[str, list[Tensor]]:
        known = self.type.outputs
        if known is not None and len(known) == 1 and known[0].endswith("*"):
            results = {known[0][:-1]: list(result)}
        else:
            several = list(result) if isinstance(result, list | tuple) else [result]
            results = {word: [y] for word, y in zip(known or self.outputs, several, strict=known is not None)}
            if known is None and (len(several) != len(self.outputs)):
                raise ArgumentError(
                    f"{self.type.word} at {user_line()}: the operation has {len(several)} outputs, not {len(self.outputs)}: {list(self.outputs)}"
                )
        for word, count in self.outputs.items():
            if len(results[word]) != count:
                raise ArgumentError(f"{self.type.word} at {user_line()}: output {word!r} consists of {len(results[word])} tensors, not {count}")
        return results

    def RemoteBlobDict(self) -> dict[str, list[Tensor]]:
        """Return the list of tensors of each output by name; raise JobError before `InferAndTryRun`."""
        if self._made is None:
            raise JobError(f"user_op_builder({self.name!r}) at {user_line()}: call InferAndTryRun() first")
        return {word: self._made[word] for word in self.outputs}

    def RemoteBlobList(self) -> list[Tensor]:
        """Return the tensors of all outputs, in the order of the `Output` calls; raise JobError before `InferAndTryRun`."""
        return [y for several in self.RemoteBlobDict().values() for y in several]

    def SoleOutputBlob(self) -> Tensor:
        """Return the only output tensor; raise ArgumentError unless there is exactly one."""
        result = self.RemoteBlobList()
        if len(result) != 1:
            raise ArgumentError(f"{self.type.word} at {user_line()}: SoleOutputBlob() requires one output, not {len(result)}; call RemoteBlobList()")
        return result[0]


def _is_input(x: Any) -> bool:
    """Return True for a tensor, the output of a reader, or a tensor list."""
    return is_tensor(x) or isinstance(x, OnHost | HostArgument)


@dataclass
class UserOpBuilder:
    """A builder of an operation by type, inputs, outputs and attributes."""

    op_name: str | None
    consistent: bool = False
    _type: OpType | None = None
    _inputs: dict[str, Sequence[Tensor]] = field(default_factory=dict)
    _outputs: dict[str, int] = field(default_factory=dict)
    _attributes: dict[str, Any] = field(default_factory=dict)

    def Op(self, op_type_name: str) -> UserOpBuilder:
        """Set the operation type `op_type_name` and return this builder; raise ArgumentError for an unknown type."""
        self._type = op_type(op_type_name)
        return self

    def _known(self) -> OpType:
        if self._type is None:
            raise ArgumentError(f"user_op_builder({self.op_name!r}) at {user_line()}: call Op(type) first")
        return self._type

    def _legal(self, what: str, word: str, legal: Sequence[str], accepted: Mapping[str, Any]) -> None:
        kind = self._known().word
        if word in accepted:
            raise ArgumentError(f"{kind} at {user_line()}: {what} {word!r} is set twice; set it once")
        if word not in legal:
            has = ", ".join(legal) or "none"
            raise ArgumentError(f"{kind} at {user_line()}: the operation has no {what} {word!r}{did_you_mean(word, legal)} (it has {has})")

    def Input(self, input_name: str, input_blob_list: Sequence[Tensor]) -> UserOpBuilder:
        """Set the input `input_name` to a list of tensors, usually of one tensor, and return this builder."""
        known = self._known()
        self._legal("input", input_name, [input_name] if known.inputs is None else list(known.inputs), self._inputs)
        if not isinstance(input_blob_list, list | tuple) or not all(map(_is_input, input_blob_list)):
            raise ArgumentError(f"{known.word} at {user_line()}: input {input_name!r} must be a list of tensors, not {input_blob_list!r}")
        if (known.inputs or {}).get(input_name, 1) != MANY and len(input_blob_list) != 1:
            raise ArgumentError(f"{known.word} at {user_line()}: input {input_name!r} must be a list of one tensor, not of {len(input_blob_list)}")
        self._inputs[input_name] = list(input_blob_list)
        return self

    def Output(self, output_name: str, num: int = 1) -> UserOpBuilder:
        """Request the output `output_name` of `num` tensors, and return this builder."""
        known = self._known()
        legal = [output_name] if known.outputs is None else [word.rstrip("*") for word in known.outputs]
        self._legal("output", output_name, legal, self._outputs)
        self._outputs[output_name] = num
        return self

    def Attr(self, attr_name: str, attr_value: Any, attr_type_name: str | None = None) -> UserOpBuilder:
        """Set the attribute `attr_name` to `attr_value`, and return this builder; `attr_type_name` has no effect."""
        known = self._known()
        self._legal("attribute", attr_name, list(known.attributes), self._attributes)
        kind = unfitting(attr_name, attr_value, known.attributes.get(attr_name)) if known.outputs is not None else ""
        if kind:
            raise ArgumentError(f"{known.word} at {user_line()}: attribute {attr_name!r} must be {kind}, not {attr_value!r}")
        self._attributes[attr_name] = attr_value.tolist() if isinstance(attr_value, np.ndarray) else attr_value
        return self

    SetAttr = Attr

    def Build(self) -> UserOp:
        """Return the operation; raise ArgumentError if an input, an output or an attribute is missing."""
        known = self._known()
        absent = [f"input {word!r}" for word, count in (known.inputs or {}).items() if count and not self._inputs.get(word)]
        absent += [f"attribute {word!r}" for word, default in known.attributes.items() if default is NEEDED and word not in self._attributes]
        absent += [] if self._outputs or known.outputs == () else ["an output"]
        if absent:
            raise ArgumentError(f"{known.word} at {user_line()}: Build() requires {', '.join(absent)}; set each of them first")
        return UserOp(self.op_name, known, self._inputs, self._outputs, self._attributes, self.consistent)


def user_op_builder(op_name: str) -> UserOpBuilder:
    """Return a builder of the operation `op_name` in the current view.

    user_op_builder(op_name).Op(type).Input(...).Output(...).Attr(...).Build().InferAndTryRun()
    """
    return UserOpBuilder(op_name)


def consistent_user_op_builder(op_name: str) -> UserOpBuilder:
    """Return `user_op_builder(op_name)` for the consistent view, independent of the current view."""
    return UserOpBuilder(op_name, True)


class UserOpModule:
    """The module of an operation, as in OneFlow; `InitOpKernel` does nothing."""

    def InitOpKernel(self) -> None:
        """Do nothing: kernels need no preparation."""


@dataclass
class UserOpModuleBuilder:
    """A builder of operations that share type, input sizes, outputs and attributes; `OpName` starts an operation."""

    word: str
    consistent: bool = False
    _common: list[tuple[Any, ...]] = field(default_factory=list)
    user_op_module: UserOpModule = field(default_factory=UserOpModule)

    def InputSize(self, input_name: str, num: int = 1) -> UserOpModuleBuilder:
        """Check that the input `input_name` accepts `num` tensors, and return this builder.

        Raises: ArgumentError for an unknown input or a wrong number.
        """
        legal = op_type(self.word).inputs
        if legal is not None and input_name not in legal:
            raise ArgumentError(f"{self.word} at {user_line()}: the operation has no input {input_name!r}{did_you_mean(input_name, legal)}")
        if legal is not None and legal[input_name] != MANY and num != 1:
            raise ArgumentError(f"{self.word} at {user_line()}: input {input_name!r} must be a list of one tensor, not of {num}")
        return self

    Input = InputSize

    def Output(self, output_name: str, num: int = 1) -> UserOpModuleBuilder:
        """Request the output `output_name` of `num` tensors from all operations, and return this builder."""
        return self._with(UserOpBuilder.Output, output_name, num)

    def Attr(self, attr_name: str, attr_value: Any, attr_type_name: str | None = None) -> UserOpModuleBuilder:
        """Set an attribute of all operations, and return this builder; `attr_type_name` has no effect."""
        return self._with(UserOpBuilder.Attr, attr_name, attr_value)

    def _with(self, *call: Any) -> UserOpModuleBuilder:
        self._common.append(call)
        self.OpName(self.word)  # raises if the call is wrong
        return self

    def CheckAndComplete(self) -> UserOpModuleBuilder:
        """Return this builder; its settings are already checked."""
        return self

    def OpName(self, op_name: str) -> UserOpBuilder:
        """Return a builder of the operation `op_name` with the outputs and attributes of this builder; its inputs must still be set."""
        builder = UserOpBuilder(op_name, self.consistent).Op(self.word)
        for method, *arguments in self._common:
            method(builder, *arguments)
        return builder


def user_op_module_builder(op_type_name: str) -> UserOpModuleBuilder:
    """Return a builder of several operations of the type `op_type_name`.

    module = user_op_module_builder(op_type_name).InputSize(name, n).Output(name).Attr(...)
    operation = module.OpName(op_name).Input(...).Build()
    """
    op_type(op_type_name)
    return UserOpModuleBuilder(op_type_name)


def consistent_user_op_module_builder(op_type_name: str) -> UserOpModuleBuilder:
    """Return `user_op_module_builder(op_type_name)` for the consistent view, independent of the current view."""
    op_type(op_type_name)
    return UserOpModuleBuilder(op_type_name, True)


class builtin_op(UserOpModuleBuilder):
    """A builder of a function of tensors outside of jobs: .Input(name, n).Output(name).Attr(...).Build().

    The function accepts tensors, and attributes by keyword, and returns the list of outputs.
    """

    def __init__(self, op_type_name: str, op_name: str | None = None) -> None:
        op_type(op_type_name)
        super().__init__(op_type_name)
        self.op_name = op_name

    def Build(self) -> Callable[..., list[Tensor]]:
        """Return a function of the input tensors, and of attributes by keyword, which returns the list of outputs."""

        def run(*tensors: Tensor, **attributes: Any) -> list[Tensor]:
            first: Any = tensors[0] if tensors else None
            builder = self.OpName(self.op_name or self.word)
            for word, value in attributes.items():
                builder.Attr(word, value)
            known, rest = builder._known(), list(tensors)
            for word, count in (known.inputs or {}).items():
                accepted, rest = (rest, []) if count == MANY else (rest[:1], rest[1:])
                if accepted:
                    builder.Input(word, accepted)
            if not builder._outputs:
                builder.Output((known.outputs or ("out",))[0].rstrip("*"))
            if not rest and tensors and scope.current().interpreter is None:
                with composing(first):
                    return builder.Build().InferAndTryRun().RemoteBlobList()
            if rest:
                raise ArgumentError(f"{self.word} at {user_line()}: the inputs accept {len(tensors) - len(rest)} tensors, not {len(tensors)}")
            return builder.Build().InferAndTryRun().RemoteBlobList()

        return run
