"""Functions of the job API: element types, the current job, eager execution, modules, processes, tensors, deprecated names."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeVar
from weakref import WeakKeyDictionary

import jobflow.core.scope as scope
from jobflow.core.dataclass import dataclass
from jobflow.core.errors import ArgumentError, DuplicateNameError, JobError, user_line
from jobflow.core.notices import notice
from jobflow.core.scope import current_scope as current_scope
from jobflow.core.types import DTYPES, DType, Tensor, bool_
from jobflow.engine.session import Session, current_session, env
from jobflow.functional import comm
from jobflow.legacy.arrays import identity
from jobflow.legacy.variables import current_job
from jobflow.runtime.world.environment import rank as get_rank

Module = TypeVar("Module")

# Element types -----------------------------------------------------------------------------------------------------


def dtypes() -> list[DType]:
    """Return the element types that arguments and variables of jobs can have."""
    return [dtype for dtype in DTYPES if dtype is not bool_]


def convert_oneflow_dtype_to_numpy_dtype(oneflow_dtype: DType) -> type[Any]:
    """Return the NumPy scalar type of an element type; raise JobError for other values."""
    if not isinstance(oneflow_dtype, DType):
        raise JobError(
            f"convert_oneflow_dtype_to_numpy_dtype at {user_line()}: oneflow_dtype must be a type such as jobflow.float32, not {oneflow_dtype!r}"
        )
    return oneflow_dtype.numpy.type


# The current job ---------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class JobDescription:
    """A description of the job being traced: its name, type and configuration."""

    job_name: str
    trains: bool
    function_attribute: Any

    def IsTrainable(self) -> bool:
        """Return True for a train job."""
        return self.trains


def current_global_function_desc() -> JobDescription:
    """Return a description of the job being traced; raise JobError outside of a job."""
    job = current_job("current_global_function_desc")
    return JobDescription(job.name, job.trainable, job.config)


def cast_to_current_logical_view(x: Tensor) -> Tensor:
    """Return x in the current view: one tensor per device in the mirrored view, one logical tensor in the consistent view."""
    return identity(x)


# Eager jobs --------------------------------------------------------------------------------------------------------


def enable_eager_execution(val: bool = True) -> None:
    """Enable or disable eager jobs, whose bodies run at every call so that `x.numpy()` returns the data of a tensor.

    Raises: JobError if a job is already declared, or in the body of a job.
    """
    session = current_session()
    if session.jobs or scope.current().interpreter is not None:
        raise JobError(
            f"enable_eager_execution at {user_line()}: a job is already declared; call it before the first job or after clear_default_session()"
        )
    session.settings.eager = bool(val)


def eager_execution_enabled() -> bool:
    """Return True if the bodies of jobs run at every call."""
    return current_session().settings.eager


# Modules by name ---------------------------------------------------------------------------------------------------

#: modules of each session, by names of job and module
_MODULES: WeakKeyDictionary[Session, dict[tuple[str, str], Any]] = WeakKeyDictionary()
#: module names that each traced job body has requested
_REQUESTED: WeakKeyDictionary[Any, set[str]] = WeakKeyDictionary()


def find_or_create_module(module_name: str, create: Callable[[], Module], reuse: bool = False) -> Module:
    """Return the current job's module `module_name`, which `create()` builds at the first request.

    Raises: DuplicateNameError if the body requests the name again without `reuse`; JobError outside of a job.
    """
    job = current_job("find_or_create_module")
    requested = _REQUESTED.setdefault(job, set())
    if module_name in requested and not reuse:
        raise DuplicateNameError(
            f"find_or_create_module at {user_line()}: job {job.name} already requested module {module_name!r}; pass reuse=True to share it"
        )
    modules = _MODULES.setdefault(current_session(), {})
    if (job.name, module_name) not in modules:
        modules[job.name, module_name] = create()
    requested.add(module_name)
    return modules[job.name, module_name]


# Processes, resources, tensors -------------------------------------------------------------------------------------


def current_machine_id() -> int:
    """Return the index of this process's machine: the rank divided by the number of devices per machine."""
    return get_rank() // current_session().devices_per_machine()


def current_resource() -> Any:
    """Return the settings of `flow.config`."""
    return env.current_resource()


def inter_job_reuse_mem_strategy(strategy_str: str, job_set: Any = None, **kwargs: Any) -> None:
    """Do nothing but write a notice: jobs share only the memory of variables."""
    notice("inter_job_reuse_mem_strategy has no effect and is ignored")


def InitEagerGlobalSession() -> None:
    """Do nothing: tensors need no session."""


def is_deprecated(func_or_class: Any) -> bool:
    """Return True if OneFlow 0.4 deprecated the function or class."""
    old = any(func_or_class is one for one in (name_scope, fixed_placement))
    return old or getattr(func_or_class, "__module__", "") == "jobflow.legacy.deprecated"


def to(input: Any, *args: Any, **kwargs: Any) -> Any:
    """Return `input.to(...)`: the tensor on another device or placement, or with another element type."""
    return _tensor("to", input).to(*args, **kwargs)


def eager_nccl_all_reduce(x: Any, parallel_conf: str, name: str | None = None) -> Any:
    """Return the sum of the local tensors of all ranks; `parallel_conf` and `name` have no effect."""
    total = _tensor("eager_nccl_all_reduce", x).clone()
    comm.all_reduce(total)
    return total


def _tensor(what: str, x: Any) -> Any:
    """Return x; raise ArgumentError unless x is an eager tensor."""
    if not hasattr(type(x), "clone"):
        raise ArgumentError(f"{what} at {user_line()}: expected a tensor such as flow.tensor(...), not {type(x).__name__} {x!r:.60}")
    return x


# Deprecated names --------------------------------------------------------------------------------------------------


def name_scope(name: str) -> scope.namespace:
    """Return the context manager `scope.namespace(name)`. The name `name_scope` is deprecated."""
    notice("name_scope is deprecated; use scope.namespace")
    return scope.namespace(name)


def fixed_placement(device_tag: str, machine_device_ids: str | Sequence[str], hierarchy: Sequence[int] | None = None) -> scope.placement:
    """Return the context manager `scope.placement(device_tag, machine_device_ids, hierarchy)`. The name `fixed_placement` is deprecated."""
    notice("fixed_placement and device_prior_placement are deprecated; use scope.placement")
    return scope.placement(device_tag, machine_device_ids, hierarchy)


device_prior_placement = fixed_placement
