"""Calls of modules in the bodies of jobs, such as `model(x)` with a tensor of the job.

In `forward`, tensors have the methods, the indexing, the scalar shape `()` and the bool type of eager tensors. The results of `forward` become
tensors of the job. Parameters and buffers are variables of the session, named as in `state_dict()` with the namespaces of the call as a prefix.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import jobflow.core.scope as scope
from jobflow.core.errors import JobError, user_line
from jobflow.engine.body import JobBody
from jobflow.functional.tensor_class import Tensor
from jobflow.tensors.job_recorder import Called, recorded, recorder_of
from jobflow.tensors.job_recorder import is_body as is_body

if TYPE_CHECKING:
    from jobflow.nn.modules.module import Module


def called_in_body(body: JobBody, module: Module, inputs: tuple[Any, ...], named: dict[str, Any]) -> Any:
    """Call a module in the body of a job, and return its outputs as tensors of the job."""
    _check_hooks(module)
    now, word, recorder = scope.current(), type(module).__name__, recorder_of(body)
    body.modes[id(module)] = partial(mode_of, list(module.modules()))
    names = {id(x): now.full_name(name) for name, x in (*module.named_parameters(), *module.named_buffers())}
    before = recorder.module
    recorder.module = Called(word, now.namespace, names, {id(each): path for path, each in module.named_modules()})

    def call(*arguments: Any, **options: Any) -> Any:
        traced = [(x, x.traced) for x in arguments if isinstance(x, Tensor)]
        outputs = module(*arguments, **options)
        if any(x.traced is not before for x, before in traced):
            raise JobError(f"{word} at {user_line()}: forward overwrites its argument, a tensor of the job; pass x.clone()")
        return outputs

    try:
        return recorded(body, call, inputs, named)
    finally:
        recorder.module = before


def _check_hooks(module: Module) -> None:
    for name, x in module.named_parameters():
        if x.hooks:
            raise JobError(
                f"{type(module).__name__} at {user_line()}: {name} {x.tensor_type} has hooks for its gradient, which a job does not call; "
                f"remove() them, or train without a job"
            )


def mode_of(modules: Sequence[Module]) -> tuple[Any, ...]:
    """Return the state of modules on which a trace depends, as a tuple that can be compared.

    The tuple has the training modes, the identities of parameters, buffers and submodules, and `requires_grad` of the parameters.
    """
    state: list[Any] = []
    for each in modules:
        own = vars(each)
        parameters = own["_parameters"].values()
        state += [own["training"], *map(id, parameters), *[x is not None and x._needs_gradient for x in parameters]]
        state += [*map(id, own["_buffers"].values()), *map(id, own["_modules"].values())]
    return tuple(state)
