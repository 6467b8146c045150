"""Small functions of the job API: element types, facts about the current job, eager jobs, older names of scopes."""

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
    """Return the element types of arguments and variables of jobs."""
    return [dtype for dtype in DTYPES if dtype is not bool_]


def convert_oneflow_dtype_to_numpy_dtype(oneflow_dtype: DType) -> type[Any]:
    """Return the NumPy scalar type of an element type."""
    if not isinstance(oneflow_dtype, DType):
        raise JobError(f"convert_oneflow_dtype_to_numpy_dtype at {user_line()}: {oneflow_dtype!r} is not an element type such as jobflow.float32")
    return oneflow_dtype.numpy.type


# Where the body of a job is ----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class JobDescription:
    """The job whose body is being traced."""

    job_name: str
    trains: bool
    function_attribute: Any

    def IsTrainable(self) -> bool:
        """Return True in a train job."""
        return self.trains


def current_global_function_desc() -> JobDescription:
    """Return the job whose body is being traced; raise JobError outside of a job."""
    job = current_job("current_global_function_desc")
    return JobDescription(job.name, job.trainable, job.config)


def cast_to_current_logical_view(x: Tensor) -> Tensor:
    """Return x in the current view: one tensor per device in the mirrored view, one logical tensor in the consistent view."""
    return identity(x)


# Eager jobs --------------------------------------------------------------------------------------------------------


def enable_eager_execution(val: bool = True) -> None:
    """Run the bodies of the session's jobs at every call, so that `x.numpy()` returns the data of a tensor; False disables it.

    Raises: JobError after the declaration of a job.
    """
    session = current_session()
    if session.jobs or scope.current().interpreter is not None:
        raise JobError(f"enable_eager_execution at {user_line()} comes too late: call it before jobs are declared, or after clear_default_session()")
    session.settings.eager = bool(val)


def eager_execution_enabled() -> bool:
    """Return True if the bodies of jobs run at every call."""
    return current_session().settings.eager


# Modules by name ---------------------------------------------------------------------------------------------------

#: by session, its modules by name of their job and their own
_MODULES: WeakKeyDictionary[Session, dict[tuple[str, str], Any]] = WeakKeyDictionary()
#: by body of a job that runs, or has run, the names that it has asked for
_ASKED: WeakKeyDictionary[Any, set[str]] = WeakKeyDictionary()


def find_or_create_module(module_name: str, create: Callable[[], Module], reuse: bool = False) -> Module:
    """Return the module of this job with a name; `create` makes it at first use.

    Raises: DuplicateNameError for a second use in the body without `reuse`.
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
    """Return the number of this process's machine, counted by the devices of each machine."""
    return get_rank() // current_session().devices_per_machine()


def current_resource() -> Any:
    """Return the settings of `flow.config`."""
    return env.current_resource()


def inter_job_reuse_mem_strategy(strategy_str: str, job_set: Any = None, **kwargs: Any) -> None:
    """Accept the option without an effect: jobs share only the memory of variables."""
    notice("inter_job_reuse_mem_strategy has no effect and is ignored")


def InitEagerGlobalSession() -> None:
    """Accept the call without an effect: tensors need no session."""


def is_deprecated(func_or_class: Any) -> bool:
    """Return True for a name that the last release deprecated."""
    old = any(func_or_class is one for one in (name_scope, fixed_placement))
    return old or getattr(func_or_class, "__module__", "") == "jobflow.legacy.deprecated"


def to(input: Any, *args: Any, **kwargs: Any) -> Any:
    """Move a tensor to another device, type or placement: `input.to(...)`."""
    return _tensor("to", input).to(*args, **kwargs)


def eager_nccl_all_reduce(x: Any, parallel_conf: str, name: str | None = None) -> Any:
    """Return the sum of all ranks' local tensors; `parallel_conf` and `name` have no effect."""
    total = _tensor("eager_nccl_all_reduce", x).clone()
    comm.all_reduce(total)
    return total


def _tensor(what: str, x: Any) -> Any:
    """Return x, a tensor outside of jobs; raise ArgumentError for anything else."""
    if not hasattr(type(x), "clone"):
        raise ArgumentError(f"{what} at {user_line()}: {type(x).__name__} {x!r:.60} is none of the tensors that flow.tensor makes")
    return x


# Old spellings -----------------------------------------------------------------------------------------------------


def name_scope(name: str) -> scope.namespace:
    """Call `scope.namespace`; the name of older releases."""
    notice("name_scope is the old name of scope.namespace")
    return scope.namespace(name)


def fixed_placement(device_tag: str, machine_device_ids: str | Sequence[str], hierarchy: Sequence[int] | None = None) -> scope.placement:
    """Call `scope.placement`; the name of older releases."""
    notice("fixed_placement and device_prior_placement are old names of scope.placement")
    return scope.placement(device_tag, machine_device_ids, hierarchy)


device_prior_placement = fixed_placement
