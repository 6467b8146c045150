"""The base class of modules, with named parameters, buffers and submodules."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping
from importlib import import_module
from typing import Any, ClassVar, Self

import jobflow.core.scope as scope
from jobflow.core.errors import DtypeError, JobError, did_you_mean, user_line
from jobflow.core.types import DType, bfloat16, float16, float32, float64
from jobflow.functional.dispatch import in_job
from jobflow.functional.gradients import RemovableHandle
from jobflow.functional.promotion import cast
from jobflow.functional.tensor_class import Tensor
from jobflow.nn.modules import moving
from jobflow.nn.modules import state_dicts as saving
from jobflow.nn.modules.backward_hooks import HookedCall
from jobflow.nn.modules.forward_hooks import WithKeywords, add_hook, changed_inputs
from jobflow.nn.parameter import Parameter
from jobflow.tensors.in_place_writes import zero_gradient
from jobflow.tensors.state import building_now, gradients, running

Named = Iterator[tuple[str, Any]]
_KINDS = ("_parameters", "_buffers", "_modules")


class ModuleError(JobError, AttributeError):
    """The error for a missing attribute of a module, or for a use of a module before `Module.__init__`."""


class Module:
    """Base class of models.

    Subclasses create parameters and submodules in `__init__`, after `super().__init__()`, and define the computation in `forward`. Parameters and
    modules in attributes are included by name in `parameters()`, `state_dict()`, `to_global()` and similar methods.

    Examples:
        >>> class Double(nn.Module):
        ...     def forward(self, x):
        ...         return x * 2
        ...
        >>> Double()(flow.ones(2))
        tensor([2., 2.], dtype=jobflow.float32)
    """

    training: bool
    _parameters: dict[str, Parameter | None]
    _buffers: dict[str, Tensor | None]
    _modules: dict[str, Module | None]

    #: the module with the job function that replaces the class in the body of a job; not inherited
    job_functions: ClassVar[str] = ""

    def __new__(cls, *inputs: Any, **named: Any) -> Any:
        functions = cls.__dict__.get("job_functions")
        if not functions or not in_job():
            return super().__new__(cls)
        return getattr(import_module(functions), cls.__name__)(*inputs, **named)

    def __init__(self) -> None:
        vars(self).update(training=True, _parameters={}, _buffers={}, _modules={}, _passing=set())
        vars(self).update(_before=OrderedDict(), _after=OrderedDict(), _back_before=OrderedDict(), _back_after=OrderedDict())

    def forward(self, *inputs: Any, **named: Any) -> Any:
        """Return the output of the module. Subclasses must define this method."""
        raise JobError(f"{type(self).__name__} at {user_line()}: the module has no forward method; define forward(self, ...) in its class")

    def __call__(self, *inputs: Any, **named: Any) -> Any:
        own = vars(self)
        if "_before" not in own:
            raise self._unready("the module is called")
        plan = own.get("_compiled")
        return self._call(*inputs, **named) if plan is None else plan(*inputs, **named)

    def _call(self, *inputs: Any, **named: Any) -> Any:
        """Run `forward` and the hooks of the module, and return the output."""
        own, building, now = vars(self), building_now(), scope.current()
        if building is None and now.interpreter is not None:
            from jobflow.nn.modules.calling import called_in_body, is_body  # eager modules need no jobs

            if is_body(now.interpreter):
                return called_in_body(now.interpreter, self, inputs, named)
        for hook in tuple(own["_before"].values()):
            inputs, named = changed_inputs(self, hook, inputs, named)
        backward = self._hooked_call(building)
        if backward is not None:
            inputs = backward.enter(inputs)
        output = self.forward(*inputs, **named) if building is None else building.called(self, self.forward, inputs, named)
        for hook in tuple(own["_after"].values()):
            changed = hook(self, inputs, named, output) if isinstance(hook, WithKeywords) else hook(self, inputs, output)
            output = output if changed is None else changed
        return output if backward is None else backward.leave(output)

    def compile(
        self,
        *,
        fullgraph: bool = False,
        dynamic: bool | None = None,
        backend: Any = "jobflow",
        mode: str | None = None,
        options: dict[str, Any] | None = None,
        disable: bool = False,
    ) -> None:
        """Compile the calls of this module, as `flow.compile` does for a function; `disable` restores eager calls.

        With `fullgraph`, a call that cannot be compiled as a whole raises an error. The other options have no effect.
        """
        from jobflow.nn.compiled.compiling import in_place

        in_place(self, fullgraph, disable)

    def _hooked_call(self, building: Any) -> HookedCall | None:
        """Return the state of this call for the backward hooks, None without such hooks; raise JobError for hooks while a program is traced."""
        before, after = self.__dict__["_back_before"], self.__dict__["_back_after"]
        if not before and not after:
            return None
        if building is not None:
            raise JobError(
                f"{type(self).__name__} at {user_line()}: a module with backward hooks cannot be traced in {running()}; remove() the hooks first"
            )
        return HookedCall(self, tuple(before.values()), tuple(after.values()))

    def _unready(self, what: str) -> ModuleError:
        name = type(self).__name__
        return ModuleError(f"{name} at {user_line()}: {what} before Module.__init__ ran; begin {name}.__init__ with super().__init__()")

    # ---------------------------------------------------------------- attributes

    def __setattr__(self, name: str, value: Any) -> None:
        own = vars(self)
        if isinstance(value, Parameter):
            self.register_parameter(name, value)
        elif isinstance(value, Module):
            self.add_module(name, value)
        elif value is None or isinstance(value, Tensor):
            self._set_part(own, name, value)
        elif any(name in own.get(kind, ()) for kind in _KINDS):
            raise DtypeError(
                f"{type(self).__name__}.{name} at {user_line()}: a parameter, buffer or module cannot become {type(value).__name__}; "
                "del the attribute first"
            )
        else:
            object.__setattr__(self, name, value)

    def _set_part(self, own: dict[str, Any], name: str, value: Tensor | None) -> None:
        """Assign a tensor or None to the parameter, buffer or module `name`; a name that the module lacks becomes an ordinary attribute."""
        kinds = [kind for kind in _KINDS if name in own.get(kind, ())]
        if not kinds:
            object.__setattr__(self, name, value)
        elif value is not None and kinds[0] != "_buffers":
            what = "parameter" if kinds[0] == "_parameters" else "module"
            raise DtypeError(f"{type(self).__name__}.{name} at {user_line()}: a {what} cannot become a plain tensor; wrap the tensor in nn.Parameter")
        elif not self._recorded(own["_buffers"].get(name), value, name):
            own[kinds[0]][name] = value

    def _recorded(self, buffer: Tensor | None, value: Tensor | None, name: str) -> bool:
        """Record the assignment of a traced value to a buffer and return True; return False for any other assignment."""
        building = building_now()
        if building is None or value is None or value.traced is None or buffer is None or buffer.traced is not None:
            return False
        if value.tensor_type != buffer.tensor_type:
            raise DtypeError(
                f"{type(self).__name__}.{name} at {user_line()}: the buffer is {buffer.tensor_type} and cannot become "
                f"{value.tensor_type} while {running()} runs"
            )
        building.write(buffer, value)
        return True

    def __getattr__(self, name: str) -> Any:
        own = vars(self)
        for kind in _KINDS:
            if name in own.get(kind, ()):
                return own[kind][name]
        if name in (*_KINDS, "training"):
            raise self._unready(f"{name!r} is read")
        known = [each for kind in _KINDS for each in own.get(kind, ())]
        raise ModuleError(f"{type(self).__name__!r} has no attribute {name!r}{did_you_mean(name, known)}")

    def __delattr__(self, name: str) -> None:
        for kind in _KINDS:
            if name in vars(self).get(kind, ()):
                del vars(self)[kind][name]
                return
        object.__delattr__(self, name)

    def __dir__(self) -> list[str]:
        return sorted({*super().__dir__(), *(name for kind in _KINDS for name in vars(self).get(kind, ()))})

    def _place(self, kind: str, name: str) -> dict[str, Any]:
        """Return the dict of parameters, buffers or modules, as `kind` selects, for the registration of `name`.

        The name is removed from the other dicts.  Raises: ModuleError for an invalid name, or an attribute of the class.
        """
        own = vars(self)
        if kind not in own:
            raise self._unready(f"{name!r} is assigned")
        if not isinstance(name, str) or not name or "." in name:
            raise ModuleError(
                f"{type(self).__name__} at {user_line()}: {name!r} is not a valid name for a parameter, buffer or module; use a string without dots"
            )
        own.pop(name, None)
        for other in _KINDS:
            if other != kind:
                own[other].pop(name, None)
        if name not in own[kind] and hasattr(type(self), name):
            raise ModuleError(f"{type(self).__name__} at {user_line()}: the class already has an attribute {name!r}; use another name")
        return own[kind]

    def _check_outside(self, name: str, tensor: Any) -> None:
        """Raise JobError in the body of a job, because every trace runs the body and would create the parameter or buffer again."""
        if tensor is not None and in_job():
            raise JobError(
                f"{type(self).__name__} at {user_line()}: {name!r} would be created again at each trace of the job; create modules outside of the "
                f"body of a job, and call them in the body. A builder that returns a module has the annotation -> nn.Module"
            )

    def register_parameter(self, name: str, param: Parameter | None) -> None:
        """Register a parameter, or None, as the attribute `name`.

        Raises: DtypeError unless `param` is a leaf nn.Parameter; ModuleError for an invalid name; JobError in the body of a job.
        """
        place = self._place("_parameters", name)
        self._check_outside(name, param)
        if param is not None and not isinstance(param, Parameter):
            raise DtypeError(f"{type(self).__name__}.{name} at {user_line()}: a parameter must be an nn.Parameter; got {type(param).__name__}")
        if param is not None and param.node is not None:
            raise DtypeError(f"{type(self).__name__}.{name} at {user_line()}: a parameter must be a leaf; got the result of {param.node!r}")
        place[name] = param

    def register_buffer(self, name: str, tensor: Tensor | None, persistent: bool = True) -> None:
        """Register a tensor that is state but not a parameter as the attribute `name`; `state_dict` omits it unless it is `persistent`.

        Raises: DtypeError unless `tensor` is a tensor or None; ModuleError for an invalid name; JobError in the body of a job.
        """
        place = self._place("_buffers", name)
        self._check_outside(name, tensor)
        if tensor is not None and not isinstance(tensor, Tensor):
            raise DtypeError(f"{type(self).__name__}.{name} at {user_line()}: a buffer must be a tensor; got {type(tensor).__name__}")
        place[name] = tensor
        passing: set[str] = vars(self)["_passing"]
        passing.discard(name) if persistent else passing.add(name)

    def add_module(self, name: str, module: Module | None) -> None:
        """Register a module, or None, as the attribute `name`.

        Raises: DtypeError unless `module` is an nn.Module or None; ModuleError for an invalid name.
        """
        place = self._place("_modules", name)
        if module is not None and not isinstance(module, Module):
            raise DtypeError(f"{type(self).__name__}.{name} at {user_line()}: a submodule must be an nn.Module; got {type(module).__name__}")
        place[name] = module

    register_module = add_module

    # ---------------------------------------------------------------- parts

    def named_children(self) -> Iterator[tuple[str, Module]]:
        """Yield (name, module) for each direct submodule; a module with several names is yielded once."""
        visited = set()
        for name, module in self._modules.items():
            if module is not None and module not in visited:
                visited.add(module)
                yield name, module

    def children(self) -> Iterator[Module]:
        """Yield each direct submodule once."""
        return (module for _, module in self.named_children())

    def named_modules(self, memo: set[Module] | None = None, prefix: str = "", remove_duplicate: bool = True) -> Iterator[tuple[str, Module]]:
        """Yield (full name, module) for this module and all submodules; full names begin with `prefix`.

        Modules in `memo` are omitted. A module with several names is yielded once, unless remove_duplicate=False.
        """
        memo = set() if memo is None else memo
        if self in memo:
            return
        if remove_duplicate:
            memo.add(self)
        yield prefix, self
        for name, module in self._modules.items():
            if module is not None:
                yield from module.named_modules(memo, f"{prefix}.{name}" if prefix else name, remove_duplicate)

    def modules(self) -> Iterator[Module]:
        """Yield this module and all submodules, each once."""
        return (module for _, module in self.named_modules())

    def _named(self, kind: str, prefix: str, recurse: bool, once: bool) -> Named:
        visited: set[int] = set()
        for path, module in self.named_modules(prefix=prefix, remove_duplicate=once) if recurse else [(prefix, self)]:
            for name, part in getattr(module, kind).items():
                if part is not None and not (once and id(part) in visited):
                    visited.add(id(part))
                    yield f"{path}.{name}" if path else name, part

    def named_parameters(self, prefix: str = "", recurse: bool = True, remove_duplicate: bool = True) -> Iterator[tuple[str, Parameter]]:
        """Yield (full name, parameter), each parameter once unless remove_duplicate=False; without `recurse`, only for this module itself."""
        return self._named("_parameters", prefix, recurse, remove_duplicate)

    def parameters(self, recurse: bool = True) -> Iterator[Parameter]:
        """Yield parameters, each once; without `recurse` only the parameters of this module itself."""
        return (part for _, part in self.named_parameters(recurse=recurse))

    def named_buffers(self, prefix: str = "", recurse: bool = True, remove_duplicate: bool = True) -> Iterator[tuple[str, Tensor]]:
        """Yield (full name, buffer), each buffer once unless remove_duplicate=False; without `recurse`, only for this module itself."""
        return self._named("_buffers", prefix, recurse, remove_duplicate)

    def buffers(self, recurse: bool = True) -> Iterator[Tensor]:
        """Yield buffers, each once; without `recurse` only the buffers of this module itself."""
        return (part for _, part in self.named_buffers(recurse=recurse))

    def get_submodule(self, target: str) -> Module:
        """Return the module with the full name `target`, and this module for "".  Raises: ModuleError if there is no such module."""
        part = self
        for name in filter(None, target.split(".")):
            part = getattr(part, name)
            if not isinstance(part, Module):
                raise ModuleError(f"get_submodule at {user_line()}: {name!r} of {target!r} is not a module; pass a name of named_modules()")
        return part

    def get_parameter(self, target: str) -> Parameter:
        """Return the parameter with the full name `target`.  Raises: ModuleError if there is no such parameter."""
        path, _, name = target.rpartition(".")
        parameter = getattr(self.get_submodule(path), name)
        if not isinstance(parameter, Parameter):
            raise ModuleError(f"get_parameter at {user_line()}: {target!r} is not a parameter; pass a name of named_parameters()")
        return parameter

    # ---------------------------------------------------------------- modes

    def train(self, mode: bool = True) -> Self:
        """Set this module and all submodules to training mode, or evaluation mode for `mode=False`, and return the module.

        The mode affects dropout and batch statistics.
        """
        for module in self.modules():
            module.training = bool(mode)
        return self

    def eval(self) -> Self:
        """Set evaluation mode, as train(False), and return the module."""
        return self.train(False)

    def requires_grad_(self, requires_grad: bool = True) -> Self:
        """Set `requires_grad` of all parameters, and return the module."""
        for parameter in self.parameters():
            parameter.requires_grad_(requires_grad)
        return self

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Set the gradients of all parameters to None, or fill them with zeros for set_to_none=False."""
        for parameter in self.parameters():
            zero_gradient(parameter, set_to_none)

    def apply(self, fn: Callable[[Module], None]) -> Self:
        """Call `fn` for every submodule, and for this module last, and return the module."""
        for module in self.children():
            module.apply(fn)
        fn(self)
        return self

    # ---------------------------------------------------------------- hooks

    def register_forward_pre_hook(self, hook: Callable[..., Any], *, prepend: bool = False, with_kwargs: bool = False) -> RemovableHandle:
        """Call hook(module, inputs) before forward; a result other than None replaces the inputs.  Return a handle that removes the hook.

        With `with_kwargs`, call hook(module, inputs, kwargs), whose result is None or (inputs, kwargs).  With `prepend`, call it first.
        """
        return add_hook(vars(self)["_before"], WithKeywords(hook) if with_kwargs else hook, prepend)

    def register_forward_hook(self, hook: Callable[..., Any], *, prepend: bool = False, with_kwargs: bool = False) -> RemovableHandle:
        """Call hook(module, inputs, output) after forward; a result other than None replaces the output.  Return a handle that removes the hook.

        With `with_kwargs`, call hook(module, inputs, kwargs, output).  With `prepend`, call it before the other hooks.
        """
        return add_hook(vars(self)["_after"], WithKeywords(hook) if with_kwargs else hook, prepend)

    def register_full_backward_pre_hook(self, hook: Callable[[Module, tuple[Any, ...]], Any]) -> RemovableHandle:
        """Call hook(module, grad_output) when backward reaches the outputs, and return a handle that removes the hook.

        A result other than None replaces the gradients of the outputs.
        """
        return add_hook(vars(self)["_back_before"], hook)

    def register_full_backward_hook(self, hook: Callable[[Module, tuple[Any, ...], tuple[Any, ...]], Any]) -> RemovableHandle:
        """Call hook(module, grad_input, grad_output) after backward through the module, and return a handle that removes the hook.

        A result other than None replaces the gradients of the positional arguments. `grad_input` has None for an argument without a gradient.
        """
        return add_hook(vars(self)["_back_after"], hook)

    # ---------------------------------------------------------------- element types, devices, layouts

    def _apply(self, change: Callable[[str, Tensor], Tensor]) -> Self:
        """Replace the data of every parameter, gradient and buffer by `change(name, tensor)`, in the same tensor objects."""
        with gradients(False):
            for name, part in (*self.named_parameters(), *self.named_buffers()):
                moving.replace(part, change(name, part))
                if part._gradient is not None:
                    moving.replace(part._gradient, change(f"{name}.grad", part._gradient))
        return self

    def to_global(self, placement: Any = None, sbp: Any = None) -> Self:
        """Redistribute parameters and buffers to `placement` with `sbp`, and return the module. All ranks must call this method.

        For global tensors, one of the two arguments may be omitted. Local tensors become copies of the tensors of the first rank (broadcast), or are
        concatenated (split).
        """
        return self._apply(lambda name, x: moving.redistributed(f"{type(self).__name__}.to_global", name, x, placement, sbp))

    def to_local(self) -> Self:
        """Replace parameters and buffers by local tensors, this rank's pieces, and return the module."""
        return self._apply(moving.piece)

    def to_consistent(self, *arguments: Any, **named: Any) -> None:
        """Raise JobError: the method was renamed to `to_global`."""
        raise JobError(f"to_consistent at {user_line()}: the method was renamed; use to_global(placement, sbp)")

    def to(self, *args: Any, **kwargs: Any) -> Self:
        """Move parameters and buffers to a device, convert floats to an element type, and return the module.

        The arguments are a device, a floating point type or a tensor, as in to("cpu"), to(flow.float64) and to(x).
        Raises: DtypeError for another element type; JobError for `placement` or `sbp`.
        """
        device, dtype = moving.target(f"{type(self).__name__}.to", args, kwargs)
        return self._apply(lambda _, x: moving.moved(x, device, dtype))

    def cpu(self) -> Self:
        """Move parameters and buffers to host memory, and return the module."""
        return self.to("cpu")

    def cuda(self, device: Any = None) -> Self:
        """Move parameters and buffers to a GPU, by default the GPU of this rank, and return the module.

        Without a GPU, parameters and buffers remain in host memory. Raises: PlacementError for a GPU that does not exist.
        """
        return self.to("cuda" if device is None else device)

    def _cast(self, dtype: DType) -> Self:
        return self._apply(lambda _, x: cast(x, dtype) if x.dtype.is_float else x)

    def half(self) -> Self:
        """Convert floating point parameters and buffers to float16, and return the module."""
        return self._cast(float16)

    def bfloat16(self) -> Self:
        """Convert floating point parameters and buffers to bfloat16, and return the module."""
        return self._cast(bfloat16)

    def float(self) -> Self:
        """Convert floating point parameters and buffers to float32, and return the module."""
        return self._cast(float32)

    def double(self) -> Self:
        """Convert floating point parameters and buffers to float64, and return the module."""
        return self._cast(float64)

    # ---------------------------------------------------------------- saving

    def state_dict(self, destination: dict[str, Tensor] | None = None, prefix: str = "", keep_vars: bool = False) -> dict[str, Tensor]:
        """Return parameters and persistent buffers by full name, as tensors in the same memory and layout.

        With `keep_vars` the values are the parameters and buffers themselves. Names begin with `prefix`; the result is `destination` if it is passed.
        """
        state = OrderedDict() if destination is None else destination
        for name, part in saving.named(self, prefix):
            state[name] = part if keep_vars else saving.plain(part)
        return state

    def load_state_dict(self, state_dict: Mapping[str, Any], strict: bool = True, assign: bool = False) -> saving.Differences:
        """Copy the values of a `state_dict` into this module, and return the missing and the unexpected names. All ranks must call this method.

        Global tensors of the state may have other layouts. With `strict`, missing and unexpected names are errors. With `assign`, the tensors of
        the state replace those of the module, with their element types and layouts; create optimizers afterwards.

        Raises: CheckpointError with all mismatches, or if no name matches; the module is then unchanged.
        """
        return saving.load(self, state_dict, strict, assign)

    # ---------------------------------------------------------------- printing

    def extra_repr(self) -> str:
        """Return the text between the parentheses of the repr."""
        return ""

    def _get_name(self) -> str:
        return type(self).__name__

    def __repr__(self) -> str:
        own = self.extra_repr()
        lines = own.split("\n") if own else []
        inside = []
        for name, module in self._modules.items():
            inside.append(f"({name}): " + repr(module).replace("\n", "\n  "))
        if not inside:
            return f"{self._get_name()}({own if len(lines) <= 1 else ''.join(f'{chr(10)}  {line}' for line in lines) + chr(10)})"
        return f"{self._get_name()}(" + "".join(f"\n  {line}" for line in (*lines, *inside)) + "\n)"
