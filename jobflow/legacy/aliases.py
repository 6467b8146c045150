"""Small names of the legacy face that belong nowhere else: element types, where a job's body is, eager jobs, old spellings of scopes."""

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
    """The element types of arguments and variables of jobs."""
    return [dtype for dtype in DTYPES if dtype is not bool_]


def convert_oneflow_dtype_to_numpy_dtype(oneflow_dtype: DType) -> type[Any]:
    """The NumPy scalar type of an element type."""
    if not isinstance(oneflow_dtype, DType):
        raise JobError(f"convert_oneflow_dtype_to_numpy_dtype at {user_line()}: {oneflow_dtype!r} is not an element type such as jobflow.float32")
    return oneflow_dtype.numpy.type


# Where the body of a job is ----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class JobDescription:
    """The job whose body is running."""

    job_name: str
    trains: bool
    function_attribute: Any

    def IsTrainable(self) -> bool:
        """True in a train job."""
        return self.trains


def current_global_function_desc() -> JobDescription:
    """The job whose body is running; JobError outside of one."""
    job = current_job("current_global_function_desc")
    return JobDescription(job.name, job.trainable, job.config)


def cast_to_current_logical_view(x: Tensor) -> Tensor:
    """x as the view in force has it: a tensor per device in the mirrored view, one logical tensor in the consistent view."""
    return identity(x)


# Eager jobs --------------------------------------------------------------------------------------------------------


def enable_eager_execution(val: bool = True) -> None:
    """Have the bodies of the session's jobs run at every call, where `x.numpy()` gives what a tensor is, or not.

    Raises: JobError if a job has been declared.
    """
    session = current_session()
    if session.jobs or scope.current().interpreter is not None:
        raise JobError(f"enable_eager_execution at {user_line()} comes too late: call it before jobs are declared, or after clear_default_session()")
    session.settings.eager = bool(val)


def eager_execution_enabled() -> bool:
    """Whether the bodies of jobs run at every call."""
    return current_session().settings.eager


# Modules by name ---------------------------------------------------------------------------------------------------

#: by session, its modules by name of their job and their own
_MODULES: WeakKeyDictionary[Session, dict[tuple[str, str], Any]] = WeakKeyDictionary()
#: by body of a job that runs, or has run, the names that it has asked for
_ASKED: WeakKeyDictionary[Any, set[str]] = WeakKeyDictionary()


def find_or_create_module(module_name: str, create: Callable[[], Module], reuse: bool = False) -> Module:
    """The module that this job has under a name: what `create` gives where there is none yet.

    DuplicateNameError if the body has asked for the name before, unless with `reuse`.
    """
    job = current_job("find_or_create_module")
    asked = _ASKED.setdefault(job, set())
    if module_name in asked and not reuse:
        raise DuplicateNameError(
            f"find_or_create_module at {user_line()}: job {job.name} has asked for the module {module_name!r} before; pass reuse=True to share it"
        )
    modules = _MODULES.setdefault(current_session(), {})
    if (job.name, module_name) not in modules:
        modules[job.name, module_name] = create()
    asked.add(module_name)
    return modules[job.name, module_name]


# Processes, resources, tensors -------------------------------------------------------------------------------------


def current_machine_id() -> int:
    """The number of the machine on which this process runs, counted by the devices that each has."""
    return get_rank() // current_session().devices_per_machine()


def current_resource() -> Any:
    """The settings of `flow.config`."""
    return env.current_resource()


def inter_job_reuse_mem_strategy(strategy_str: str, job_set: Any = None, **kwargs: Any) -> None:
    """Accepted, without effect: jobs share no memory but that of variables."""
    notice("inter_job_reuse_mem_strategy has no effect and is ignored")


def InitEagerGlobalSession() -> None:
    """Accepted: tensors need no session."""


def is_deprecated(func_or_class: Any) -> bool:
    """Whether it is a name that the last release called deprecated."""
    old = any(func_or_class is one for one in (name_scope, fixed_placement))
    return old or getattr(func_or_class, "__module__", "") == "jobflow.legacy.deprecated"


def to(input: Any, *args: Any, **kwargs: Any) -> Any:
    """`input.to(...)`: a tensor on another device, of another type, or placed differently."""
    return _tensor("to", input).to(*args, **kwargs)


def eager_nccl_all_reduce(x: Any, parallel_conf: str, name: str | None = None) -> Any:
    """The sum of all ranks' local tensors; `parallel_conf` and `name` mean nothing."""
    total = _tensor("eager_nccl_all_reduce", x).clone()
    comm.all_reduce(total)
    return total


def _tensor(what: str, x: Any) -> Any:
    """x, which has the methods of a tensor outside of jobs.  ArgumentError if it has not."""
    if not hasattr(type(x), "clone"):
        raise ArgumentError(f"{what} at {user_line()}: {type(x).__name__} {x!r:.60} is none of the tensors that flow.tensor makes")
    return x


# Old spellings -----------------------------------------------------------------------------------------------------


def name_scope(name: str) -> scope.namespace:
    """The old spelling of `scope.namespace`."""
    notice("name_scope is the old name of scope.namespace")
    return scope.namespace(name)


def fixed_placement(device_tag: str, machine_device_ids: str | Sequence[str], hierarchy: Sequence[int] | None = None) -> scope.placement:
    """The old spelling of `scope.placement`."""
    notice("fixed_placement and device_prior_placement are old names of scope.placement")
    return scope.placement(device_tag, machine_device_ids, hierarchy)


device_prior_placement = fixed_placement
