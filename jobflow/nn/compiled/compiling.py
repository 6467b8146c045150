"""Implementation of `flow.compile`, which traces a function or module once, and replays the plan in later calls."""

from __future__ import annotations

import functools
import weakref
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any, cast

import jobflow.core.scope as scope
from jobflow.core.errors import ArgumentError, DivergedError, JobflowError, RankError, SourceLine, user_line
from jobflow.core.notices import notice
from jobflow.engine.session import current_session
from jobflow.engine.sizes import many_shapes
from jobflow.functional.dispatch import in_job
from jobflow.nn.compiled.call import Call
from jobflow.nn.compiled.changing import Appended, ChangedValue, changed_items
from jobflow.nn.compiled.entry import Entry, NumberError
from jobflow.nn.compiled.replay import CompiledMemory
from jobflow.nn.compiled.snapshot import Untraceable
from jobflow.nn.compiled.tracing import Tracing
from jobflow.nn.modules.module import Module
from jobflow.plan.plan_text import plan_text
from jobflow.runtime.collection import collection_paused
from jobflow.tensors.gpus import device_name, gpu_of
from jobflow.tensors.state import EagerState, state

#: the advice for functions of tensors on GPUs
FOR_GPUS = "plans of compiled functions run on CPUs; use an nn.Graph"
#: number of traces that one value may cause before the function runs eagerly
RETRACES = 8
#: values of `mode` in PyTorch
MODES = (None, "default", "reduce-overhead", "max-autotune", "max-autotune-no-cudagraphs")


class Cache:
    """The plans of one compiled function on one rank."""

    def __init__(self, here: EagerState) -> None:
        self.here = here
        #: memory of plans, by the ranks that hold the arguments
        self.memories: dict[tuple[int, ...], CompiledMemory] = {}
        #: plans by key of the call, with the newest key last
        self.entries: dict[Any, list[Entry]] = {}
        #: classes of arguments that every call replaces by another object, and that are compared by content
        self.by_content: set[type] = set()
        #: objects among the arguments of the call before
        self.objects: Sequence[tuple[Any, str]] = ()
        #: items of the program that the function changes, by identity, and identities of items whose values it reads
        self.changing: dict[Any, ChangedValue] = {}
        self.concrete: set[Any] = set()
        #: the reason of each trace
        self.reasons: list[str] = []
        self.causes: Counter[str] = Counter()
        #: the reason why the function runs eagerly from now on, or ""
        self.eager = ""

    def find(self, key: Any, call: Call) -> tuple[Entry | None, str]:
        """Return a valid plan for a call and "", or None and the reason for another trace; the reason is "" for the first call."""
        entries = self.entries.get(key)
        if entries is None:
            return None, "" if not self.entries else self._other(call)
        reason = ""
        for entry in reversed(entries):
            if problem := entry.stale():
                self.entries.clear()
                self.memories.clear()
                return None, problem
            problem = entry.changed(call)
            if not problem:
                return entry, ""
            reason = reason or problem
        return None, reason

    def add_changing(self, items: Sequence[ChangedValue]) -> bool:
        """Treat items as changed by the function; return False if all are known already."""
        new = {item.identity: item for item in items if item.identity not in self.concrete and item.identity not in self.changing}
        self.changing.update(new)
        return bool(new)

    def _other(self, call: Call) -> str:
        """Return the reason for another trace: a description of how `call` differs from the newest traced call."""
        newest = next(reversed(self.entries.values()))[-1]
        metas = newest.replay.built.inputs
        for meta, name, x in zip(metas, call.names, call.tensors, strict=False):
            if meta.type != x.tensor_type or meta.layout != x.layout:
                now = f"{x.tensor_type} {'local' if x.layout is None else x.layout}"
                return f"{name} was {meta} and is {now}"
        for (value, name), (before, other) in zip(call.objects, newest.objects, strict=False):
            if name == other and value is not before:
                return f"{name} is another {type(value).__name__} object"
        return "the plain arguments or the gradient mode differ"

    def add(self, key: Any, entry: Entry, name: str) -> None:
        """Store a plan for calls with `key`, and drop the oldest plans beyond the number `compiled_shapes` of the session."""
        entries = self.entries.pop(key, [])
        self.entries[key] = [*entries, entry]
        most = current_session().settings.compiled_shapes
        while sum(map(len, self.entries.values())) > most:
            oldest = next(iter(self.entries))
            self.entries[oldest].pop(0)
            if not self.entries[oldest]:
                del self.entries[oldest]
            notice(many_shapes(f"the compiled function {name}", most))


class CompiledFunction:
    """A compiled function, which replays plans; see `compile`."""

    def __init__(self, function: Callable[..., Any], name: str, where: SourceLine, fullgraph: bool) -> None:
        self.function, self.name, self.where, self.fullgraph = function, name, where, fullgraph
        self._caches: weakref.WeakKeyDictionary[EagerState, Cache] = weakref.WeakKeyDictionary()
        functools.update_wrapper(self, function, updated=())

    def __get__(self, instance: Any, owner: type | None = None) -> Any:
        return self if instance is None else functools.partial(self, instance)

    @property
    def cache(self) -> Cache:
        """The cache of plans on this rank."""
        here = state()
        cache = self._caches.get(here)
        if cache is None:
            cache = self._caches[here] = Cache(here)
        return cache

    @property
    def traces(self) -> list[str]:
        """The reason of each trace on this rank, such as "first call with such arguments" or a changed value."""
        return list(self.cache.reasons)

    def __call__(self, *args: Any, **options: Any) -> Any:
        now = scope.current()
        if now.interpreter is not None or in_job() or (now.root.eager is not None and now.root.eager.building is not None):
            return self.function(*args, **options)
        with scope.lock():
            cache = self.cache
            if cache.eager:
                return self.function(*args, **options)
            call, key = self._keyed(cache, args, options)
            if cache.here.gpus and (on_gpu := next((x for x in call.tensors if gpu_of(x.array) is not None), None)) is not None:
                return self._eagerly(cache, call, f"the argument {on_gpu.tensor_type} is on {device_name(on_gpu.array)}; {FOR_GPUS}", for_good=True)
            entry, reason = cache.find(key, call)
            if entry is None and cache.objects and (kinds := call.replaced(cache.objects)):
                cache.by_content |= kinds
                call, key = self._keyed(cache, args, options)
                entry, reason = cache.find(key, call)
            cache.objects = call.objects
            if entry is not None:
                try:
                    return entry.run(call, first=False)
                except NumberError:  # eager code raises the same error at its line
                    return self.function(*args, **options)
            if reason and cache.add_changing(
                [item for entry in cache.entries.get(key, ()) for item in changed_items(entry.trace.effects, entry.argument_of)]
            ):
                call, key = self._keyed(cache, args, options)
            return self._traced(cache, key, call, reason)

    def _keyed(self, cache: Cache, args: tuple[Any, ...], options: dict[str, Any]) -> tuple[Call, Any]:
        """Return a call with these arguments, and the key of its plans."""
        call, here = Call(args, options, cache.by_content, tuple(cache.changing.values())), cache.here
        return call, (current_session().settings.computing, here.grad_enabled, here.default_dtype, here.default_device, call.key)

    def _traced(self, cache: Cache, key: Any, call: Call, reason: str) -> Any:
        """Trace the function for `call`, run the plan, and return its result.

        The function runs eagerly instead if tracing fails, or after too many traces for the same reason.
        """
        if reason:
            cache.causes[reason.partition(" was ")[0]] += 1
            shaped = " was " in reason and reason.startswith(tuple(call.names))
            if cache.causes[reason.partition(" was ")[0]] > RETRACES and not shaped and not reason.startswith("the plain"):
                return self._eagerly(cache, call, f"{reason}; this is trace number {len(cache.reasons) + 1}", for_good=True)
            notice(f"flow.compile: {self.name} is traced again at {user_line()}: {reason}")
        while True:
            tracing = Tracing(cache.here, self.name, self.where, self.function, call, cache.memories)
            try:
                with collection_paused():
                    trace = tracing.run()
                break
            except Exception as error:
                if self._fails(cache, error):
                    if self.fullgraph or isinstance(error, DivergedError | RankError):
                        raise
                    return self._eagerly(cache, call, _short(error), for_good=isinstance(error, Untraceable), error=error)
            call, key = self._keyed(cache, call.args, call.options)
        try:
            with collection_paused():
                entry = Entry(tracing, trace)
        except BaseException as error:
            tracing.undo()
            if self.fullgraph or not isinstance(error, JobflowError) or isinstance(error, DivergedError | RankError):
                raise
            return self._eagerly(cache, call, _short(error), for_good=True)
        cache.reasons.append(reason or "first call with such arguments")
        try:
            result = entry.run(call, first=True)
        except BaseException:
            tracing.undo()
            raise
        tracing.forget()
        cache.add(key, entry, self.name)
        return result

    @staticmethod
    def _fails(cache: Cache, error: Exception) -> bool:
        """Return False if a failed trace is repeated, with placeholders for the lists to which it appends, or without placeholders."""
        if isinstance(error, DivergedError | RankError):
            return True
        if isinstance(error, Appended) and cache.add_changing(error.items):
            return False
        repeats = bool(cache.changing)
        cache.concrete.update(cache.changing)
        cache.changing.clear()
        return not repeats

    def _eagerly(self, cache: Cache, call: Call, reason: str, for_good: bool, error: Exception | None = None) -> Any:
        """Run the function eagerly for `call`, print a notice with the reason, and return the result; raise Untraceable with `fullgraph`.

        After `for_good` or an error of the trace, all later calls run eagerly, too.
        """
        if self.fullgraph:
            raise Untraceable(f"flow.compile at {self.where}, fullgraph=True: {self.name} cannot be compiled into one plan: {reason}")
        result = self.function(*call.args, **call.options)
        cache.eager = reason if for_good or error is not None else ""
        notice(f"flow.compile: {self.name} runs eagerly: {reason}")
        return result

    def __reduce__(self) -> Any:
        return CompiledFunction, (self.function, self.name, self.where, self.fullgraph)

    def explain(self, stages: Sequence[str] = ("physical",)) -> str:
        """Return the plans of this rank as text.

        The stage "physical" lists operations with layouts and source lines; the stage "plan" lists instructions with addresses.
        """
        parts = []
        for entries in self.cache.entries.values():
            for entry in entries:
                parts.append(f"{self.name}({', '.join(map(str, entry.replay.built.inputs))})")
                if "physical" in stages:
                    parts.append(entry.replay.text())
                if "plan" in stages and entry.replay.executor is not None:
                    parts.append(plan_text(entry.replay.executor.plan))
        return "\n\n".join(parts) or f"{self.name} has no plan{f': {self.cache.eager}' if self.cache.eager else ' yet; call it first'}"


def _short(error: BaseException) -> str:
    return str(error) if isinstance(error, JobflowError) else f"{type(error).__name__}: {error}"


def compile(
    model: Any = None,
    *,
    fullgraph: bool = False,
    dynamic: bool | None = None,
    backend: Any = "jobflow",
    mode: str | None = None,
    options: dict[str, Any] | None = None,
    disable: bool = False,
) -> Any:
    """Return a compiled function or module: the first call traces `model`, and later calls replay the plan.

    The function may contain a whole training step with `backward()`, clipping, `optimizer.step()` and a schedule.  With `fullgraph`, code that
    cannot be traced is an error; otherwise a function with such code runs eagerly.  With `disable`, `compile` returns `model` itself.  `dynamic`,
    `backend`, `mode` and `options` are accepted as in PyTorch, and have no effect.
    Without `model`, `compile` returns a decorator.
    Raises: ArgumentError for a `model` that is not callable, or for a value of an option that PyTorch rejects, too.

    Examples:
        >>> model = nn.Linear(4, 1)
        >>> optimizer = flow.optim.SGD(model.parameters(), lr=0.1)
        >>> @flow.compile
        ... def step(x, y):
        ...     loss = nn.functional.mse_loss(model(x), y)
        ...     optimizer.zero_grad()
        ...     loss.backward()
        ...     optimizer.step()
        ...     return loss
        ...
        >>> x, y = flow.ones(8, 4), flow.ones(8, 1)
        >>> losses = [step(x, y).item() for _ in range(5)]
        >>> losses[4] < losses[0]
        True
    """
    where = user_line()
    _check_options(where, dynamic=dynamic, backend=backend, mode=mode, options=options)
    if model is None:
        return functools.partial(compile, fullgraph=fullgraph, dynamic=dynamic, backend=backend, mode=mode, options=options, disable=disable)
    if not callable(model):
        raise ArgumentError(f"compile at {where}: model must be a function or a module; got {model!r}")
    if disable:
        return model
    if isinstance(model, Module):
        return sharing(model, where, bool(fullgraph))
    if isinstance(model, CompiledFunction):
        model = model.function
    return CompiledFunction(model, getattr(model, "__name__", type(model).__name__), where, bool(fullgraph))


#: by option of PyTorch, the test of a valid value and its description
_OPTIONS: dict[str, tuple[Callable[[Any], bool], str]] = {
    "dynamic": (lambda x: x is None or isinstance(x, bool), "None, True or False"),
    "backend": (lambda x: isinstance(x, str) or callable(x), "the name of a backend or a function"),
    "mode": (lambda x: x in MODES, "None, default, reduce-overhead, max-autotune or max-autotune-no-cudagraphs"),
    "options": (lambda x: x is None or isinstance(x, dict), "None or a dict"),
}


def _check_options(where: SourceLine, **values: Any) -> None:
    """Raise ArgumentError for a value that PyTorch's `compile` rejects, too; `values` are options by name."""
    for name, value in values.items():
        is_valid, description = _OPTIONS[name]
        if not is_valid(value):
            raise ArgumentError(f"compile at {where}: {name} must be {description}; got {value!r}")


# -------------------------------------------------------------------- modules


def in_place(module: Module, fullgraph: bool, disable: bool) -> None:
    """Compile the calls of a module in place, or restore eager calls with `disable`."""
    vars(module).pop("_compiled", None)
    if not disable:
        vars(module)["_compiled"] = CompiledFunction(_Uncompiled(module), type(module).__name__, user_line(), fullgraph)


def sharing(module: Module, where: SourceLine, fullgraph: bool) -> Module:
    """Return a module with compiled calls, which shares all attributes of `module`, including parameters and submodules."""
    module_copy: Module = object.__new__(_sharing_class(cast(Any, type(module))))
    object.__setattr__(module_copy, "__dict__", vars(module))
    object.__setattr__(module_copy, "_plan", CompiledFunction(_Uncompiled(module), type(module).__name__, where, fullgraph))
    return module_copy


class _Uncompiled:
    """A callable that calls a module eagerly, for the compiled function of the module."""

    def __init__(self, module: Module) -> None:
        self.module = module

    def __call__(self, *inputs: Any, **named: Any) -> Any:
        return self.module._call(*inputs, **named)


class _Sharing:
    """Base class of the modules that `compile` returns; their calls run the compiled function."""

    _plan: CompiledFunction

    def __call__(self, *inputs: Any, **named: Any) -> Any:
        return self._plan(*inputs, **named)

    @property
    def traces(self) -> list[str]:
        """The reason of each trace on this rank, as in `CompiledFunction.traces`."""
        return self._plan.traces

    def explain(self, stages: Sequence[str] = ("physical",)) -> str:
        """Return the plans of this rank as text, as `CompiledFunction.explain` does."""
        return self._plan.explain(stages)

    def __reduce_ex__(self, protocol: Any) -> Any:
        plan = self._plan
        return sharing, (plan.function.module, plan.where, plan.fullgraph)


@functools.cache
def _sharing_class(kind: Any) -> type[Any]:
    return type(kind.__name__, (_Sharing, kind), {"__slots__": ("_plan",), "__module__": kind.__module__, "__doc__": kind.__doc__})
