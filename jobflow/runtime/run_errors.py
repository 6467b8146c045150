"""Errors of the calls of a plan, with the instruction and the user's line."""

from __future__ import annotations

from jobflow.core.errors import JobflowError
from jobflow.plan.plan import Instruction, Plan
from jobflow.runtime.device.cuda_errors import FIND, KernelFailure
from jobflow.runtime.device.device import ADVICE, OutOfMemory
from jobflow.runtime.memory_contents import largest_values_text


def located(error: Exception, instruction: Instruction, plan: Plan) -> JobflowError:
    """Return an error of a call with its instruction and line, and a note if the updates had begun.

    A JobflowError is changed in place.
    """
    where = f"{instruction.name} at {instruction.where}"
    result: JobflowError
    if isinstance(error, JobflowError):
        error.args = (f"{where}: {error}",)
        result = error
    elif isinstance(error, MemoryError):
        result = OutOfMemory(f"{where}: temporary memory: {error}; {ADVICE}\n{largest_values_text(plan)}")
    else:
        result = JobflowError(f"{where}: {error} ({type(error).__name__})")
    if any(instruction is each for each in plan.epilogue):
        result.add_note(f"the updates of job {plan.job} had begun: variables may be from before and after this run; load a checkpoint")
    return result


def kernel_failure(error: Exception, job: str, first: Instruction, last: Instruction) -> KernelFailure:
    """Return the error of a kernel from the instruction `first` to `last`, which are equal if the host waits after each call."""
    cause = error.__cause__ if isinstance(error, KernelFailure) and error.__cause__ is not None else error
    if first is last:
        failure = KernelFailure(f"{last.name} at {last.where}: {cause}; the process cannot use the GPU any more")
    else:
        failure = KernelFailure(
            f"job {job}: a kernel failed in an instruction from {first.name} at {first.where} to {last.name} at {last.where}, "
            f"or in earlier work of the GPU: {cause}; {FIND}"
        )
    failure.is_located = True
    return failure
