"""The tensors in the body of a job, with their names and layout requests.

h = flow.matmul(x, w).with_distribute(flow.distribute.split(1))
assert h.distribute is flow.distribute.split(1) and h.split_axis == 1
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import jobflow.core.scope as scope
from jobflow.core.errors import JobError, no_attribute, user_line
from jobflow.core.layout import ParallelConf, S
from jobflow.core.types import Tensor
from jobflow.engine.distribute import Distribute, auto, broadcast, distribute_of, parallel_cast, split, with_distribute
from jobflow.engine.operators import TensorOperators
from jobflow.engine.returned import LocalBlob
from jobflow.graph.ir import Node, Value, batch_axis, is_dynamic
from jobflow.ops.parts import take_parts
from jobflow.ops.slices import concat
from jobflow.typing.results import HostResult

#: `split_axis` of a tensor that was not asked to be split.
INVALID_SPLIT_AXIS = -1
#: what results of jobs have, and tensors in jobs have not
_OF_RESULTS = frozenset({"get", "async_get", "item", "mean", "ndarray", "numpy", "numpy_list", "sum", "tolist"})


class Size(int):
    """A size as the program declares it.  That of the call, `now`, is what functions take which find it in a shape: reshape(x, (x.shape[0], -1))."""

    now: int

    @classmethod
    def of(cls, declared: int, now: int) -> Size:
        """The size that is declared, and that of the call."""
        made = cls(declared)
        made.now = now
        return made


def sizes(shape: Iterable[Any]) -> tuple[int, ...]:
    """The sizes of a shape at this call."""
    return tuple(n.now if isinstance(n, Size) else int(n) for n in shape)


class JobTensor(TensorOperators):
    """A tensor in the body of a job: what the program holds of a value of the graph that is being recorded.

    Layouts are decided after the body has run, so `distribute` and `split_axis` tell what was asked for, not what will be.
    """

    __slots__ = ("__weakref__", "_declared", "tensor_type", "value")

    def __init__(self, value: Value, declared: tuple[int, ...] | None = None) -> None:
        self.value = value
        self.tensor_type = value.tensor_type
        #: its shape where the arguments are as large as they may be, if that is another one
        self._declared = declared

    def __str__(self) -> str:
        return str(self.value)

    def __repr__(self) -> str:
        return repr(self.value)

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape as the program declares it; functions that take a shape read the sizes of the call in it (`sizes`)."""
        return self.tensor_type.shape if self._declared is None else tuple(map(Size.of, self._declared, self.tensor_type.shape))

    @property
    def declared_shape(self) -> tuple[int, ...]:
        """The shape for arguments of their declared sizes, as plain numbers; `tensor_type.shape` is that of the call."""
        return self._declared or self.tensor_type.shape

    @property
    def name(self) -> str:
        """The name of the value; no other of the job has it."""
        return self.value.name

    @property
    def node(self) -> Node:
        """What makes it."""
        return self.value.node

    @property
    def index(self) -> int:
        """Which of the outputs of `node` it is."""
        return self.value.index

    @property
    def local(self) -> bool:
        """True in the mirrored view, where every device has a tensor of its own."""
        return self.value.local

    def with_distribute(self, distribute: Distribute) -> Tensor:
        """This tensor, which those who read it from the returned handle get as `distribute` says."""
        return with_distribute(self, distribute)

    def with_gradient_distribute(self, distribute: Distribute) -> Tensor:
        """This tensor, whose gradient through the returned handle comes back as `distribute` says."""
        return parallel_cast(self, gradient_distribute=distribute)

    def with_split_distribute(self, axis: int) -> Tensor:
        """with_distribute(split(axis))."""
        return with_distribute(self, split(axis))

    def with_broadcast_distribute(self) -> Tensor:
        """with_distribute(broadcast())."""
        return with_distribute(self, broadcast())

    @property
    def distribute(self) -> Distribute:
        """What was asked of this handle with `with_distribute` or `parallel_cast`; `auto()` if nothing was."""
        return distribute_of(self)

    @property
    def split_axis(self) -> int:
        """The axis of `distribute`, or INVALID_SPLIT_AXIS."""
        axis = self.distribute.axis
        return INVALID_SPLIT_AXIS if axis is None else axis

    @property
    def batch_axis(self) -> int | None:
        """The axis of the samples: axis 0 of arguments, and what becomes of that; None where there is none."""
        return batch_axis(self.value)

    @property
    def is_dynamic(self) -> bool:
        """True if the devices' tensors may differ in shape: what comes of a list of one array per device, until `cast_to_static_shape`."""
        return is_dynamic(self.value)

    @property
    def parallel_size(self) -> int:
        """How many devices hold it, or parts of it."""
        return self.node.placement.size

    @property
    def parallel_conf(self) -> ParallelConf:
        """Where it is, as text; `device_tag()` is the kind of device."""
        return ParallelConf.of(self.node.placement)

    @property
    def op_name(self) -> str:
        """The full name of the op that makes it."""
        return self.node.name

    @property
    def blob_name(self) -> str:
        """Its name among the outputs of that op: "out", or "out_<i>" where there are several."""
        return "out" if len(self.node.outputs) == 1 else f"out_{self.index}"

    @property
    def logical_blob_name(self) -> str:
        """ "<op_name>/<blob_name>", which no other tensor of the job has."""
        return f"{self.op_name}/{self.blob_name}"

    @property
    def unique_name(self) -> str:
        """logical_blob_name, and what was asked of this handle with `with_distribute`."""
        asked = self.distribute
        return self.logical_blob_name if asked is auto() else f"{self.logical_blob_name}:{asked}"

    @property
    def sub_consistent_blob_list(self) -> list[Tensor]:
        """In the mirrored view the tensor of each device as a logical one, which that device alone holds.

        Raises: AttributeError for a logical tensor.
        """
        if not self.local:
            raise AttributeError("sub_consistent_blob_list")  # which __getattr__ explains
        whole = self.node.placement
        with scope.using(view="consistent", placement=whole):
            return list(take_parts(self, S(0), whole, None))

    def __getitem__(self, index: object) -> Tensor:
        raise JobError(
            f"{user_line()}: a tensor of a job cannot be indexed with [...]; use slice(x, begin, size), "
            "slice_v2(x, [(start, stop, step), ...]) or gather"
        )

    def __iter__(self) -> Any:
        raise JobError(f"{user_line()}: a tensor of a job cannot be iterated; x.shape is known, but its values are not, before the job runs")

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") or name in ("_declared", "tensor_type", "value"):  # asked of half-made objects too, by copy and pickle
            raise AttributeError(name)
        what = f'{user_line()}: the tensor {self.name} {self.tensor_type} of a job has no "{name}"'
        if name == "sub_consistent_blob_list":
            raise no_attribute(name, f"{what}: it is one tensor of all devices, outside the mirrored view; advanced.distribute_split(x) cuts it")
        if name in _OF_RESULTS:
            look = getattr(scope.current().interpreter, "look", None)
            if look is not None:  # the job is eager
                return getattr(LocalBlob(look(self.value)), name)
            raise no_attribute(name, f"{what}: its values are known when the job has run; return it, or watch(x)")
        raise no_attribute(name, what, [known for known in dir(type(self)) if not known.startswith("_")])


class TimeSteps(JobTensor):
    """A tensor that the body of a job has once per time step: what `unpack` cuts and `repeat` repeats.  Ops on it are ops on each."""

    __slots__ = ("each",)

    def __init__(self, each: Sequence[JobTensor]) -> None:
        super().__init__(each[0].value)
        self.each = tuple(each)


class DynamicRows(JobTensor):
    """Rows along `axis` of a tensor `padded` with -1, which the run returns if nothing reads the rows; their number differs between runs.

    Readers get the tensor that `phase` returns, with as many rows as the run has: an argument from an earlier phase of it.
    """

    __slots__ = ("_argument", "_phase", "axis", "padded")

    def __init__(self, padded: JobTensor, axis: int, phase: Callable[[], JobTensor], shape: tuple[int, ...]) -> None:
        self.padded, self.axis, self._phase = padded, axis, phase
        self.tensor_type = padded.tensor_type.with_shape(shape)
        self._declared = None if shape == padded.tensor_type.shape else padded.tensor_type.shape
        self._argument: JobTensor | None = None

    @property
    def value(self) -> Value:  # type: ignore[override]
        """Return the tensor for readers."""
        self._argument = self._argument or self._phase()
        return self._argument.value

    @property
    def node(self) -> Node:
        return self.padded.node

    @property
    def name(self) -> str:
        return self.padded.name

    @property
    def read(self) -> bool:
        """Return True if anything has read it so far."""
        return self._argument is not None

    @property
    def is_dynamic(self) -> bool:
        return True


def value_of(tensor: Any) -> Any:
    """The value that a handle stands for; anything else as it is, for those to refuse who asked for a tensor of the job."""
    if isinstance(tensor, HostResult):
        raise JobError(
            f"{user_line()}: the result {tensor.name}, at most {tensor.tensor_type}, has another shape at every run; return it, it is no tensor"
        )
    if isinstance(tensor, TimeSteps):
        raise JobError(
            f"{user_line()}: {tensor.tensor_type} is one of {len(tensor.each)} time steps, and only all of them together have a value here; "
            f"pack(x, {len(tensor.each)}) joins them, acc(x, {len(tensor.each)}) adds them"
        )
    return tensor.value if isinstance(tensor, JobTensor) else tensor


def every_step(tensor: Any) -> tuple[Any, ...]:
    """The tensors of a tensor with time steps; of another, it alone."""
    return tensor.each if isinstance(tensor, TimeSteps) else (tensor,)


def packed(tensor: Any) -> Any:
    """Return the tensor that a run returns for a result: time steps along axis 0, and rows that nothing reads with their padding."""
    if dynamic_axis(tensor) is not None:
        return tensor.padded
    return concat(list(tensor.each)) if isinstance(tensor, TimeSteps) else tensor


def dynamic_axis(tensor: Any) -> int | None:
    """Return the axis along which a result has padding, or None."""
    return tensor.axis if isinstance(tensor, DynamicRows) and not tensor.read else None
