"""The executor of a plan, which binds the plan to memory once; a step is then `for f, a in calls: f(*a)`.

Every instruction becomes one or a few prepared calls on views of the rank's buffers.  The body runs before the epilogue.  All ranks
synchronize between body and epilogue, by a barrier or by a collective at the end of the body.  So if a body raises on any rank, no variable has
changed on any rank.

If a runtime assertion (`ops.runtime_assertions`) fails, the rank continues to the end of its body.  The ranks exchange their failures there, all
of them raise the first one, and all can run again.

GPUs that communicate without their hosts (`Communicator.enqueues`) have no such point: the host launches a step and does not wait.  Updates wait for
reductions of gradients on the GPU, and failures are gathered on the GPUs (`assertion_results`).  If the host of a rank fails in a body, the other
ranks abort the collectives, and their variables cannot be read any more.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from itertools import chain
from typing import Any, TypeVar

import numpy as np

from jobflow.core.dataclass import dataclass
from jobflow.core.errors import NOWHERE, AbortedError, JobError, JobflowError, PlanError
from jobflow.core.types import Array
from jobflow.kernels import registry
from jobflow.kernels.target import Target, target_of
from jobflow.ops.host_operation import HostOperation
from jobflow.ops.op import Call
from jobflow.ops.runtime_assertions import RuntimeAssertion
from jobflow.plan.plan import Collective, Completion, Compute, Instruction, Plan, Slot, Transfer, Wait
from jobflow.plan.storage import is_argument, is_common
from jobflow.runtime.anomaly_search import AnomalySearch
from jobflow.runtime.assertion_results import AssertionResults, RankAssertions, RunFailures
from jobflow.runtime.comm.communicator import Binding, Communicator
from jobflow.runtime.device.cuda_copies import SIDES
from jobflow.runtime.device.cuda_device import CudaDevice
from jobflow.runtime.device.cuda_errors import FIND, KernelFailure, is_kernel_failure
from jobflow.runtime.device.cuda_facts import free_cached
from jobflow.runtime.device.cuda_graph import CapturedGraph
from jobflow.runtime.device.device import Device, OutOfMemory, memory_of
from jobflow.runtime.failed_assertions import FailedAssertion, assertions, failed_assertion, raise_first
from jobflow.runtime.host_calls import host_calls
from jobflow.runtime.memory_contents import largest_values_text
from jobflow.runtime.posts import in_schedule_order, together
from jobflow.runtime.rebound_argument import ReboundArgument
from jobflow.runtime.replays import Replays
from jobflow.runtime.run_errors import kernel_failure, located
from jobflow.runtime.variable_buffers import State, window
from jobflow.runtime.variable_shadows import Shadows

T = TypeVar("T")


@dataclass(frozen=True)
class Through:
    """Memory shared by the ranks, for the arguments and the outputs of a run."""

    #: by buffer name of the plan
    buffers: Mapping[str, Array]
    #: this rank's shards of the arguments, by key, and of the outputs, by position
    arguments: Mapping[str, Array]
    outputs: Mapping[int, Array]


class Executor:
    """One plan, bound to the buffers of one rank.  Binding is collective: every rank binds the plans of a job together."""

    def __init__(
        self, plan: Plan, device: Device, comm: Communicator, state: State, through: Through | None = None, target: Target | None = None
    ) -> None:
        self.plan = plan
        #: the target of its operations
        self.target = target or target_of(device.tag)
        self.device = device
        #: called at the start of each run
        self.begin: Callable[[], None] | None = None
        common = {} if through is None else through.buffers
        own = {feed.slot.buffer: feed.slot.type.nbytes for feed in plan.feeds if is_argument(feed.slot.buffer)}
        self._shadows = Shadows(plan, state, device, self.target)
        with memory_of(f"job {plan.job}: intermediate values", partial(largest_values_text, plan)):
            device.require(sum(plan.buffers.values()) + sum(own.values()) + SIDES * sum(feed.slot.type.nbytes for feed in plan.feeds))
            self.buffers = {**state.buffers, **self._shadows.buffers, **common, "arena": device.allocate(plan.buffers["arena"])}
            self.buffers["shared"] = comm.allocate(plan.buffers["shared"])
            self.buffers |= {name: device.allocate(nbytes) for name, nbytes in own.items()}
        self.feeds = {feed.name: (self.view(feed.slot), feed.box) for feed in plan.feeds}
        self._waits: dict[int, list[Call]] = {}
        runtime_assertions = assertions(plan.body)
        self._rank = comm.members[comm.rank]
        self._results = self._results_of(device, comm)
        bound = self._bound_body(comm)
        late = [(i, self._bind(i, comm)) for i in plan.epilogue]
        comm.seal()
        bound = together(bound, comm) if comm.in_schedule_order else bound
        self.call_instructions = [i for i, calls in (*bound, *late) for _ in calls]
        self.body: list[Call] = [call for _, calls in bound for call in calls]
        self.epilogue: list[Call] = [call for _, calls in late for call in calls]
        fed = [(name, view) for name, (view, _) in self.feeds.items() if view.size]
        #: copies all arguments together, on a GPU
        self._feeder = device.feeder([view for _, view in fed]) if fed and isinstance(device, CudaDevice) else None
        self._fed_names = [name for name, _ in fed]
        self.fetches = [(position, self.view(slot)) for position, slot in plan.fetches]
        #: positions of outputs that the caller reads in the memory of the program, without a copy
        self.shown: frozenset[int] = frozenset()
        self._rebound_arguments = self._movable_arguments(bound, late)
        in_place = {feed.name for feed in plan.feeds if feed.slot.buffer in common}
        self._takes = [] if through is None else [(self.feeds[key][0], a) for key, a in through.arguments.items() if key not in in_place]
        self._gives = [] if through is None else [(through.outputs[position], view) for position, view in self.fetches]
        #: a barrier after feeding, because other ranks may read shared arguments
        self._fed = comm.barrier if any(comm.exchange(bool(in_place))) else None
        self.meet = comm.barrier if self._must_meet(comm) else None
        #: exchanges failed assertions, if any rank has assertions
        self._exchange = comm.exchange if any(comm.exchange(bool(runtime_assertions))) else None
        self.meet = self.meet if self._exchange is None else None
        #: True if this rank reads the results of assertions at the end of each run, because other ranks do so when they read outputs
        self._settles = self._results is not None and comm.enqueues and any(comm.exchange(bool(self.fetches)))
        if self._results is not None:
            self._copy_results(self._results, comm, late)
        self._anomalies = AnomalySearch(plan, device, self.view) if self.target.checks.anomalies else None
        #: exchanges objects between the ranks
        self._all = comm.exchange
        if self.target.checks.synchronous and isinstance(device, CudaDevice):
            self._wait_after_calls(device)
        #: captured graphs in place of the calls of both parts together, or of each; empty on CPUs, and for runs that need single calls
        self.replays = self._replays_of(device)
        if isinstance(device, CudaDevice):
            free_cached(device.index)  # memory of timed algorithms
        #: a barrier after a run that writes shared memory, so that the next run reads complete data
        self.depart = comm.barrier if comm.size > 1 and any(comm.exchange(_writes_common(plan))) else None

    def _results_of(self, device: Device, comm: Communicator) -> AssertionResults | None:
        if not isinstance(device, CudaDevice):
            return None
        own = RankAssertions.of(self._rank, self.plan.body)
        ranks = comm.exchange(own) if comm.enqueues else [own]
        if not any(each.instructions for each in ranks):
            return None
        return AssertionResults(device, ranks, comm.rank if comm.enqueues else 0, self.target.tier == "nvrtc")

    def _bound_body(self, comm: Communicator) -> list[tuple[Instruction, list[Call]]]:
        """Bind the body; ranks that enqueue their communication gather the results of assertions, at one position in the order of collectives."""
        body = in_schedule_order(self.plan.body) if comm.in_schedule_order else self.plan.body
        results = self._results if comm.enqueues else None
        if results is None:
            return [(instruction, self._bind(instruction, comm)) for instruction in body]
        bound: list[tuple[Instruction, list[Call]]] = []
        wait: list[Call] | None = None
        for instruction in body:
            if wait is None and isinstance(instruction, Collective | Transfer) and instruction.order > results.order:
                start, wait = results.gather(comm)
                bound.append((results.last, start))
            bound.append((instruction, self._bind(instruction, comm)))
        if wait is None:
            start, wait = results.gather(comm)
            bound.append((results.last, start))
        return [*bound, (results.last, wait)]

    def _copy_results(self, results: AssertionResults, comm: Communicator, late: Sequence[tuple[Instruction, list[Call]]]) -> None:
        """Insert the copy of the results of assertions to the host.

        If a failed assertion can stop the updates on the GPUs of all ranks, the copy is the last call.  Then the host does not wait before the
        epilogue.
        """
        updates = [call for instruction, calls in late if isinstance(instruction, Compute) for call in calls]
        may_guard = (comm.size == 1 or comm.enqueues) and self.target.tier == "nvrtc"
        guard = results.guard(updates) if may_guard else None
        if not all(comm.exchange(guard is not None) if comm.enqueues else [guard is not None]):
            results.release_guard()
            at = len(self.body) if comm.enqueues else 1 + max(i for i, other in enumerate(self.call_instructions) if other is results.last)
            self.call_instructions.insert(at, results.last)
            self.body.insert(at, results.copy)
            return
        assert guard is not None
        halt, launches = guard
        guarded = iter(launches)
        self.call_instructions.insert(len(self.body), results.last)
        self.call_instructions.append(results.last)
        self.body.append(halt)
        self.epilogue = [next(guarded) if isinstance(instruction, Compute) else call for instruction, calls in late for call in calls]
        self.epilogue.append(results.copy)
        self._exchange = None
        if comm.size == 1:
            results.read_after_waits()

    def undo_by(self, undo: Callable[[int], None]) -> None:
        """Call `undo(count)` if the last `count` runs, which have returned, turn out to have changed no variable; see `AssertionResults`."""
        if self._results is not None:
            self._results.undo_by(undo)

    def _replays_of(self, device: Device) -> list[Replays]:
        if not isinstance(device, CudaDevice) or self.target.checks.synchronous:
            return []
        together = self._exchange is None and self.meet is None and self._anomalies is None
        parts = [[*self.body, *self.epilogue]] if together else [self.body, self.epilogue]
        return [Replays(device, f"job {self.plan.job}", part) for part in parts]

    def _wait_after_calls(self, device: CudaDevice) -> None:
        """Insert a wait of the host after each call, which raises the error of this call; each wait is an object, which `_instruction_of` finds."""
        count = len(self.body)
        self.body, self.epilogue = ([one for call in part for one in (call, (device.synchronize, ()))] for part in (self.body, self.epilogue))
        self.call_instructions = [instruction for instruction in self.call_instructions for _ in range(2)]
        assert len(self.body) == 2 * count

    def _must_meet(self, comm: Communicator) -> bool:
        """Return True if the ranks need a barrier between body and epilogue; the result is the same on all ranks.

        Without the barrier, a rank might fail in its body after another rank has written variables.  Collective.
        """
        if comm.size == 1 or comm.enqueues or not any(comm.exchange(bool(self.plan.epilogue))):
            return False
        all_ranks = tuple(range(comm.size))
        met = [i for i, instruction in enumerate(self.plan.body) if isinstance(instruction, Collective) and instruction.ranks == all_ranks]
        blind = self.device.tag == "gpu"  # a collective is only launched, so the host does not wait for other ranks
        return any(comm.exchange(blind or len(self.plan.body) > met[-1] + 1 if met else True))

    def view(self, slot: Slot) -> Array:
        return window(self.device.xp, self.buffers[slot.buffer], slot)

    def _bind(self, instruction: Instruction, comm: Communicator) -> list[Call]:
        try:
            return self._prepared(instruction, comm)
        except PlanError as error:
            raise PlanError(f"{instruction.name} at {instruction.where}: {error}") from error
        except OutOfMemory as error:
            where = f"job {self.plan.job}: temporary memory of {instruction.name} at {instruction.where}"
            raise OutOfMemory(f"{where}: {error}\n{largest_values_text(self.plan)}") from error

    def _prepared(self, instruction: Instruction, comm: Communicator) -> list[Call]:
        match instruction:
            case Compute(RuntimeAssertion(), inputs, outputs) if self._results is not None:
                return self._results.calls(instruction, self.view(inputs[0]), self.view(outputs[0]))
            case Compute():
                return self._calls(instruction)
            case Transfer(peer, sends, slot, order):
                calls, self._waits[order] = (comm.bind_send if sends else comm.bind_receive)(
                    peer, self.view(slot), name=name_in_errors(instruction, self.plan)
                )
                return calls
            case Wait(_, _, _, order):
                return self._waits.pop(order)
            case Collective(kind, ranks, source, target, counts, receives, reduce):
                counts = (sum(counts),) if kind == "all_reduce" else counts
                combine = reduce if kind in ("all_reduce", "reduce_scatter") else None
                name = name_in_errors(instruction, self.plan)
                binding = Binding(kind, ranks, self.view(source), self.view(target), counts, receives, combine, name)
                if not instruction.concurrent:
                    return comm.bind(binding)
                calls, self._waits[instruction.order] = comm.bind_concurrent(binding)
                return calls
            case Completion(_, _, order):
                return self._waits.pop(order)

    def _calls(self, instruction: Compute) -> list[Call]:
        self.device.begin_instruction()
        inputs, outputs = ([self.view(slot) for slot in slots] for slots in (instruction.inputs, instruction.outputs))
        if isinstance(instruction.op, HostOperation):
            return host_calls(instruction.op, self.device, inputs, outputs)
        return registry.bind(instruction.op, self.target, self.device, inputs, outputs)

    def run(self, arguments: Mapping[str, Array] | None) -> list[tuple[int, Array]]:
        """Run one step on this rank's shards of the arguments; return its shards of the outputs as (position, NumPy copy).

        If `arguments` is None, arguments and outputs are in memory shared by the ranks, and the returned list is empty.
        """
        return self._named(self._run, arguments)

    def start(self, arguments: Mapping[str, Array]) -> Callable[[], list[tuple[int, Array]]]:
        """Launch one step; return a function that returns the result of `run`, and waits for the outputs."""
        try:
            copied = self._named(self._launch, arguments)
        finally:
            if self._results is not None:
                self._results.end()
        finish = self.device.start_to_host([view for _, view in copied])
        failures = None if self._results is None else self._results.last_run
        return lambda: self._named(self._finished, copied, finish, failures)

    def _named(self, function: Callable[..., T], *arguments: Any) -> T:
        """Call a function, and name the job in the error of a kernel that a wait reports."""
        try:
            return function(*arguments)
        except Exception as error:
            if is_kernel_failure(error) and not getattr(error, "is_located", False):
                raise self._kernel_failure(error, self.call_instructions[-1]) from error
            raise

    def _run(self, arguments: Mapping[str, Array] | None) -> list[tuple[int, Array]]:
        if self._results is None:
            return self._outputs(arguments)
        try:
            return self._outputs(arguments)
        finally:
            self._results.end()

    def _outputs(self, arguments: Mapping[str, Array] | None) -> list[tuple[int, Array]]:
        copied = self._launch(arguments)
        if arguments is not None:
            return self._finished(copied, self.device.start_to_host([view for _, view in copied]))
        self.device.synchronize()
        for target, value in self._gives:
            np.copyto(target, value)
        return []

    def _launch(self, arguments: Mapping[str, Array] | None) -> list[tuple[int, Array]]:
        """Run the calls of one step, and return the outputs to copy, by position."""
        if self.begin is not None:
            self.begin()
        if self._results is not None:
            self._results.begin()
        self._take(arguments)
        with np.errstate(all="ignore"):
            self._step(arguments)
            if self.depart is not None:
                self.depart()
        return [fetch for fetch in self.fetches if fetch[0] not in self.shown] if self.shown else self.fetches

    def _finished(
        self, copied: Sequence[tuple[int, Array]], finish: Callable[[], Sequence[Array]], failures: RunFailures | None = None
    ) -> list[tuple[int, Array]]:
        values = finish()
        if failures is not None:
            failures.raise_first()  # a wait for another run may have reported them already
        if self._settles and self._results is not None:
            self._results.settle()
        return [(position, value) for (position, _), value in zip(copied, values, strict=True)]

    def _take(self, arguments: Mapping[str, Array] | None) -> None:
        """Copy the arguments of a run to the rank."""
        if arguments is not None:
            self.feed(arguments)
            return
        for target, value in self._takes:
            self.device.upload(target, value)

    def _step(self, arguments: Mapping[str, Array] | None) -> None:
        body, *late = [each.launches() for each in self.replays] or [self.body, self.epilogue]
        self._shadows.begin()
        failure = self._perform(body)
        if self._exchange is not None:
            self._raise_failure(failure)
        if self._anomalies is not None:
            self._raise_anomaly(self._anomalies, arguments)
        if self.meet is not None:
            self.device.synchronize()
            self.meet()
        for epilogue in late:
            failure = self._perform(epilogue)
            if failure is not None:
                raise failure.error(failure.text)
        self._shadows.complete()

    def _raise_anomaly(self, anomalies: AnomalySearch, arguments: Mapping[str, Array] | None) -> None:
        """Raise an error on all ranks if a value that leaves the body contains NaN on any rank; variables have not changed."""
        if not any(self._all(anomalies.occurs())):
            return
        self._take(arguments)
        calls = zip(self.call_instructions, self.body, strict=False)
        raise_first(self._all(anomalies.first(calls, self._rank)))
        raise JobError(
            f"job {self.plan.job}: NaN in a gradient or result, and not when the run was repeated to find the operation; no variable has changed; "
            "call flow.use_deterministic_algorithms(True)"
        )

    def show(self, outputs: Iterable[int]) -> dict[int, tuple[Array, Array, int]]:
        """Stop copying these outputs; return the array, the buffer and the offset of each, by position.

        Outputs that are not in the arena, and outputs on a GPU, are omitted and still copied.
        """
        requested = set(outputs) if self.device.tag == "cpu" else set()
        places = {position: slot for position, slot in self.plan.fetches if position in requested and slot.buffer == "arena"}
        self.shown = frozenset(places)
        return {position: (view, self.buffers["arena"], places[position].offset) for position, view in self.fetches if position in places}

    def feed(self, arguments: Mapping[str, Array]) -> None:
        """Make this rank's shards of the arguments available to the plan; every rank must call this."""
        if self._feeder is not None:
            self._feeder.feed([arguments[name] for name in self._fed_names])
            return
        for name, (target, _) in self.feeds.items():
            argument = self._rebound_arguments.get(name)
            if argument is None or not self._read_in_place(argument, arguments[name]):
                self.device.upload(target, arguments[name])
        if self._fed is not None:
            self._fed()

    # ---------------------------------------------------------------- arguments read without a copy

    def _movable_arguments(self, *parts: list[tuple[Instruction, list[Call]]]) -> dict[str, ReboundArgument]:
        """Return the arguments that may change their address, except arguments that peers read at a fixed address."""
        shared = {i.slot.buffer for i in self.plan.instructions if isinstance(i, Transfer | Wait)}
        shared |= {i.input.buffer for i in self.plan.instructions if isinstance(i, Collective)}
        result: dict[str, ReboundArgument] = {}
        for feed in self.plan.feeds:
            if is_argument(feed.slot.buffer) and feed.slot.buffer not in shared:
                result[feed.name] = argument = ReboundArgument(feed.slot, self.buffers[feed.slot.buffer])
                for prepared, part in zip((self.body, self.epilogue), parts, strict=True):
                    at = 0
                    for instruction, calls in part:
                        if isinstance(instruction, Compute) and any(slot.buffer == feed.slot.buffer for slot in instruction.inputs):
                            argument.readers.append((prepared, at, at + len(calls), instruction))
                        at += len(calls)
        return result

    def _read_in_place(self, argument: ReboundArgument, array: Array) -> bool:
        """Bind the calls that read an argument to the memory of `array`, and return True.

        Return False, with the calls bound to the argument's own memory, if `array` must be copied instead.  A copy is required if `array`
        is not contiguous or aligned, or has another element type.  It is also required if `array` overlaps other buffers of the rank, or
        would need a different number of calls.
        """
        start = array.__array_interface__["data"][0]
        plain = array.flags.c_contiguous and start % array.itemsize == 0 and array.dtype == argument.slot.type.dtype.numpy
        if plain and start == argument.start:
            return True
        mine = (memory for name, memory in self.buffers.items() if not is_argument(name))
        if not plain or any(np.may_share_memory(array, memory) for memory in mine) or not self._rebind(argument, array.reshape(-1).view(np.uint8)):
            self._rebind(argument, argument.own)
            return False
        return True

    def _rebind(self, argument: ReboundArgument, memory: Array) -> bool:
        """Bind the calls that read an argument to other memory; return False if the number of calls changes."""
        start = memory.__array_interface__["data"][0]
        if start == argument.start:
            return True
        argument.start = 0  # no address, in case an interrupt leaves only some calls bound to the new memory
        self.buffers[argument.slot.buffer] = memory
        rebound = [self._calls(instruction) for *_, instruction in argument.readers]
        if any(stop - first != len(calls) for (_, first, stop, _), calls in zip(argument.readers, rebound, strict=True)):
            return False
        for (prepared, first, stop, _), calls in zip(argument.readers, rebound, strict=True):
            prepared[first:stop] = calls
        for i, (position, slot) in enumerate(self.plan.fetches):
            if slot.buffer == argument.slot.buffer:
                self.fetches[i] = position, self.view(slot)
        argument.start = start
        return True

    def _perform(self, prepared: list[Call]) -> FailedAssertion | None:
        """Run the calls; return the first failed assertion, or None.

        Other errors, except AbortedError, are raised with the name and the line of their instruction.
        """
        f: Callable[..., Any]
        a: tuple[Any, ...]
        failure: FailedAssertion | None = None
        calls = iter(prepared)
        while True:
            try:
                for f, a in calls:
                    f(*a)
                return failure
            except AbortedError:
                raise
            except Exception as error:
                graph = f if isinstance(f, CapturedGraph) else None
                instruction = self._instruction_of(*(graph.calls[-1] if graph is not None else (f, a)))
                if is_kernel_failure(error):
                    raise self._kernel_failure(error, instruction) from error
                if graph is not None:
                    raise JobflowError(f"{self._range_of(graph)}: {error} ({type(error).__name__}); {FIND}") from error
                if isinstance(instruction, Compute) and isinstance(instruction.op, RuntimeAssertion) and isinstance(error, instruction.op.error):
                    failure = failure or failed_assertion(self.plan.body, instruction, self._rank, error)
                    continue
                if failure is not None:  # a consequence of the failed assertion
                    raise failure.error(failure.text) from error
                result = located(error, instruction, self.plan)
                if result is error:
                    raise
                raise result from error

    def _kernel_failure(self, error: Exception, last: Instruction) -> KernelFailure:
        """Return the error of a kernel at or before the instruction `last`; a synchronous run has waited after each instruction before it."""
        return kernel_failure(error, self.plan.job, last if self.target.checks.synchronous else self.call_instructions[0], last)

    def _instruction_of(self, function: Callable[..., Any], arguments: tuple[Any, ...]) -> Instruction:
        calls = enumerate(chain(self.body, self.epilogue))
        return self.call_instructions[next(i for i, call in calls if call[1] is arguments and call[0] is function)]

    def _range_of(self, graph: CapturedGraph) -> str:
        """Return the first and the last instruction of a graph for messages: a GPU does not report which one failed."""
        first, last = (self._instruction_of(*graph.calls[k]) for k in (0, -1))
        return f"job {self.plan.job}, from {first.name} at {first.where} to {last.name} at {last.where}"

    def _raise_failure(self, failure: FailedAssertion | None) -> None:
        """Exchange failed assertions; if there are any, raise the first one on all ranks."""
        assert self._exchange is not None
        failures = [failure] if self._results is None else self._results.failures()
        raise_first(self._exchange(failures[0]) if len(failures) == 1 else failures)


def _writes_common(plan: Plan) -> bool:
    return any(isinstance(i, Compute) and any(is_common(slot.buffer) for slot in i.outputs) for i in plan.epilogue)


def name_in_errors(instruction: Collective | Transfer, plan: Plan) -> str:
    """Return the name of a communication for messages: the op, its job or graph, and the user's line."""
    return f"{instruction.name} of {plan.job}{'' if instruction.where == NOWHERE else f' at {instruction.where}'}"
