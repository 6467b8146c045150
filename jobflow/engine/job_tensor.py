"""The tensors in the body of a job, with their names and layout requests.

h = flow.matmul(x, w).with_distribute(flow.distribute.split(1))
assert h.distribute is flow.distribute.split(1) and h.split_axis == 1
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jobflow.core.scope as scope
from jobflow.core.errors import JobError, no_attribute, user_line
from jobflow.core.layout import ParallelConf, S
from jobflow.core.types import Tensor
from jobflow.engine.distribute import Distribute, auto, broadcast, distribute_of, parallel_cast, split, with_distribute
from jobflow.engine.operators import TensorOperators
from jobflow.engine.returned import LocalBlob
from jobflow.engine.sizes import Size
from jobflow.graph.ir import Node, Value, batch_axis, is_dynamic
from jobflow.ops.parts import take_parts
from jobflow.ops.slices import concat
from jobflow.typing.results import HostResult

#: `split_axis` of a tensor without a requested split.
INVALID_SPLIT_AXIS = -1
#: attributes of results that tensors in a job lack
_OF_RESULTS = frozenset({"get", "async_get", "item", "mean", "ndarray", "numpy", "numpy_list", "sum", "tolist"})


class JobTensor(TensorOperators):
    """A tensor in the body of a job: the program's handle of a traced value.

    Layouts are chosen after the body has run, so `distribute` and `split_axis` are requests, not the final layout.
    """

    __slots__ = ("__weakref__", "_declared", "tensor_type", "value")

    def __init__(self, value: Value, declared: tuple[int, ...] | None = None) -> None:
        self.value = value
        self.tensor_type = value.tensor_type
        #: the shape for arguments of their declared sizes, if it differs
        self._declared = declared

    def __str__(self) -> str:
        return str(self.value)

    def __repr__(self) -> str:
        return repr(self.value)

    @property
    def shape(self) -> tuple[int, ...]:
        """The declared shape; functions that take a shape replace its sizes by the sizes of the current call (`sizes`)."""
        return self.tensor_type.shape if self._declared is None else tuple(map(Size.of, self._declared, self.tensor_type.shape))

    @property
    def declared_shape(self) -> tuple[int, ...]:
        """The shape for arguments of their declared sizes, as plain integers; `tensor_type.shape` has the sizes of the current call."""
        return self._declared or self.tensor_type.shape

    @property
    def name(self) -> str:
        """The unique name of the value in the job."""
        return self.value.name

    @property
    def node(self) -> Node:
        """The node that computes the tensor."""
        return self.value.node

    @property
    def index(self) -> int:
        """The index of the tensor among the outputs of `node`."""
        return self.value.index

    @property
    def local(self) -> bool:
        """True in the mirrored view, where every device has a separate tensor."""
        return self.value.local

    def with_distribute(self, distribute: Distribute) -> Tensor:
        """Return another handle of this tensor whose readers receive it in the layout `distribute`."""
        return with_distribute(self, distribute)

    def with_gradient_distribute(self, distribute: Distribute) -> Tensor:
        """Return another handle of this tensor whose gradient is redistributed to `distribute`."""
        return parallel_cast(self, gradient_distribute=distribute)

    def with_split_distribute(self, axis: int) -> Tensor:
        """Return another handle of this tensor whose readers receive it split along `axis`."""
        return with_distribute(self, split(axis))

    def with_broadcast_distribute(self) -> Tensor:
        """Return another handle of this tensor whose readers receive the whole tensor on each device."""
        return with_distribute(self, broadcast())

    @property
    def distribute(self) -> Distribute:
        """The layout requested of this handle by `with_distribute` or `parallel_cast`; `auto()` without a request."""
        return distribute_of(self)

    @property
    def split_axis(self) -> int:
        """The axis of `distribute`, or INVALID_SPLIT_AXIS if `distribute` is not a split."""
        axis = self.distribute.axis
        return INVALID_SPLIT_AXIS if axis is None else axis

    @property
    def batch_axis(self) -> int | None:
        """The axis of the samples, which is axis 0 of arguments; None for a tensor without an axis of samples."""
        return batch_axis(self.value)

    @property
    def is_dynamic(self) -> bool:
        """True if the shapes on the devices may differ, for example for an argument with one array per device.

        `cast_to_static_shape` returns a tensor for which this is False.
        """
        return is_dynamic(self.value)

    @property
    def parallel_size(self) -> int:
        """The number of devices that have the tensor or a piece of it."""
        return self.node.placement.size

    @property
    def parallel_conf(self) -> ParallelConf:
        """The placement as text; its `device_tag()` returns the kind of device."""
        return ParallelConf.of(self.node.placement)

    @property
    def op_name(self) -> str:
        """The full name of the op that computes the tensor."""
        return self.node.name

    @property
    def blob_name(self) -> str:
        """The name of the tensor among the outputs of its op: "out", or "out_<i>" for several outputs."""
        return "out" if len(self.node.outputs) == 1 else f"out_{self.index}"

    @property
    def logical_blob_name(self) -> str:
        """The unique name "<op_name>/<blob_name>" in the job."""
        return f"{self.op_name}/{self.blob_name}"

    @property
    def unique_name(self) -> str:
        """The logical_blob_name, followed by the layout that is requested of this handle."""
        requested = self.distribute
        return self.logical_blob_name if requested is auto() else f"{self.logical_blob_name}:{requested}"

    @property
    def sub_consistent_blob_list(self) -> list[Tensor]:
        """The tensor of each device as a logical tensor on that device alone, in the mirrored view.

        Raises: AttributeError for a logical tensor.
        """
        if not self.local:
            raise AttributeError("sub_consistent_blob_list")  # __getattr__ raises the error with an explanation
        whole = self.node.placement
        with scope.using(view="consistent", placement=whole):
            return list(take_parts(self, S(0), whole, None))

    def __getitem__(self, index: object) -> Tensor:
        raise JobError(
            f"indexing at {user_line()}: a {self.tensor_type} tensor of a job cannot be indexed with [...]; use slice(x, begin, size), "
            "slice_v2(x, [(start, stop, step), ...]) or gather"
        )

    def __iter__(self) -> Any:
        raise JobError(
            f"iteration at {user_line()}: a {self.tensor_type} tensor of a job has no values before the job runs; use x.shape for its sizes"
        )

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") or name in ("_declared", "tensor_type", "value"):  # copy and pickle read these of uninitialised objects
            raise AttributeError(name)
        what = f'{name} at {user_line()}: the tensor {self.name} {self.tensor_type} of a job has no "{name}"'
        if name == "sub_consistent_blob_list":
            raise no_attribute(name, f"{what}, because it is one tensor on all devices; divide it with advanced.distribute_split(x)")
        if name in _OF_RESULTS:
            look = getattr(scope.current().interpreter, "look", None)
            if look is not None:  # the job is eager
                return getattr(LocalBlob(look(self.value)), name)
            raise no_attribute(name, f"{what}, because its values are unknown before the job runs; return the tensor, or use watch(x)")
        raise no_attribute(name, what, [known for known in dir(type(self)) if not known.startswith("_")])


class TimeSteps(JobTensor):
    """A tensor with one value per time step, from `unpack` or `repeat`; operations are applied to each value."""

    __slots__ = ("each",)

    def __init__(self, each: Sequence[JobTensor]) -> None:
        super().__init__(each[0].value)
        self.each = tuple(each)


class DynamicRows(JobTensor):
    """Rows along `axis` of the tensor `padded`, which is padded with -1; the number of rows differs between runs.

    Operations read the argument that `phase` returns, which has the rows of the run.  If no operation reads the rows, the run returns `padded`.
    """

    __slots__ = ("_argument", "_phase", "axis", "padded")

    def __init__(self, padded: JobTensor, axis: int, phase: Callable[[], JobTensor], shape: tuple[int, ...]) -> None:
        self.padded, self.axis, self._phase = padded, axis, phase
        self.tensor_type = padded.tensor_type.with_shape(shape)
        self._declared = None if shape == padded.tensor_type.shape else padded.tensor_type.shape
        self._argument: JobTensor | None = None

    @property
    def value(self) -> Value:  # type: ignore[override]
        """The value that operations read: the argument that an earlier phase computes."""
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
        """True if an operation has read the tensor so far."""
        return self._argument is not None

    @property
    def is_dynamic(self) -> bool:
        return True


def value_of(tensor: Any) -> Any:
    """Return the value of a handle; return other objects unchanged, so that the caller can report them.

    Raises: JobError for a result of the host pipeline, or for a tensor with time steps.
    """
    if isinstance(tensor, HostResult):
        raise JobError(
            f"result {tensor.name} at {user_line()}: operations cannot read it, because its shape, at most {tensor.tensor_type}, differs in every "
            f"run; return it from the job"
        )
    if isinstance(tensor, TimeSteps):
        raise JobError(
            f"time steps at {user_line()}: {tensor.tensor_type} is one of {len(tensor.each)} time steps, which cannot be used separately here; "
            f"join them with pack(x, {len(tensor.each)}), or add them with acc(x, {len(tensor.each)})"
        )
    return tensor.value if isinstance(tensor, JobTensor) else tensor


def every_step(tensor: Any) -> tuple[Any, ...]:
    """Return the tensors of all time steps; for a tensor without time steps, a tuple with that tensor."""
    return tensor.each if isinstance(tensor, TimeSteps) else (tensor,)


def packed(tensor: Any) -> Any:
    """Return the tensor that the run returns for a result: time steps are concatenated along axis 0, and unread rows keep their padding."""
    if dynamic_axis(tensor) is not None:
        return tensor.padded
    return concat(list(tensor.each)) if isinstance(tensor, TimeSteps) else tensor


def dynamic_axis(tensor: Any) -> int | None:
    """Return the axis along which a result has padding, or None for a result without padding."""
    return tensor.axis if isinstance(tensor, DynamicRows) and not tensor.read else None
