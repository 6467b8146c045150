"""The session: registered jobs, variables, settings, and the world of ranks.

A session starts on first use: a job call, a checkpoint, or access to variables. All registered jobs are traced in the order of their
declaration. Then the ranks bind their plans, so that all variables exist and are initialized.

Eager tensors read only settings of the session. Functions that start a world or run jobs therefore import the runtime themselves.

Python threads may call jobs concurrently: code of the session holds `scope.lock`, so it runs in one thread at a time.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextvars import copy_context
from typing import TYPE_CHECKING, Any

import numpy as np

import jobflow.core.scope as scope
from jobflow.core.errors import CheckpointError, JobError, PlacementError, user_line
from jobflow.core.layout import Placement, first_ranks
from jobflow.core.notices import notice
from jobflow.core.types import Array
from jobflow.engine.options import ConfigOptions, EnvOptions, EnvSettings, Settings
from jobflow.engine.redefinition import VariableUsers, restart_notice
from jobflow.engine.sizes import folded, many_shapes
from jobflow.kernels.target import Target
from jobflow.runtime.device import cuda_device as cuda
from jobflow.runtime.interrupts import held
from jobflow.runtime.world.environment import launched

if TYPE_CHECKING:
    from jobflow.engine.compiled import Compiled
    from jobflow.engine.expected import ProgramTensors, Unfinished
    from jobflow.engine.job import Job
    from jobflow.graph.ir import Variable
    from jobflow.runtime.world.world import World
    from jobflow.typing.lazy import Lazy
    from jobflow.typing.signature import Bound

#: Number of calls of a job in which clients compare their arguments.
CALLS_COMPARED = 3


class Session:
    """Jobs and variables of one program, until `close`."""

    def __init__(self) -> None:
        self.settings = Settings()
        self.jobs: dict[str, Job] = {}
        self.variables: dict[str, Variable] = {}
        self.runs: dict[str, int] = {}
        #: names of variables that were set outside of jobs
        self.loaded: set[str] = set()
        self.world: World | None = None
        #: the checkpoint being written
        self.unfinished: Unfinished | None = None
        #: tensors of modules that jobs call, if any
        self.tensors: ProgramTensors | None = None
        self._compiled: dict[tuple[Job, Any, Any], Compiled] = {}
        #: job -> state that its programs depend on in addition to argument shapes; see `Compiled.modes`
        self._modes: dict[Job, dict[int, Callable[[], Any]]] = {}
        #: programs of redefined jobs; released at the next compilation, which is collective
        self._replaced: list[tuple[Job, Any, Any]] = []
        self._users = VariableUsers()
        self._number = 0
        #: number of compared calls by job; `runs`, in contrast, continues after a checkpoint
        self._compared: Counter[str] = Counter()

    @property
    def started(self) -> bool:
        return self.world is not None

    # ---------------------------------------------------------------- devices

    @property
    def device_tag(self) -> str:
        """The configured kind of device: "gpu" or "cpu"."""
        return "gpu" if self.settings.gpu_device_num else "cpu"

    def target(self) -> Target:
        """Return the compilation target, which is the CPU if a GPU is configured but missing."""
        if self.world is not None:
            tag = self.world.ranks[0].device.tag
        else:
            tag = self.device_tag if cuda.available() else "cpu"
        return self.settings.computing.target(tag, timed=self.device_count() == 1)

    @property
    def asked_devices(self) -> int | None:
        """The configured number of devices per machine, times the number of machines; None if no number of devices is configured."""
        each = self.settings.gpu_device_num or self.settings.cpu_device_num
        return None if each is None else each * self.settings.machine_num

    @property
    def multi(self) -> bool:
        """True if the world has started in multi-client mode, in which every process calls jobs."""
        return self.world is not None and self.world.multi

    @property
    def here(self) -> tuple[int, ...] | None:
        """The ranks of this process in multi-client mode, where each client slices the arguments for its own ranks; None otherwise."""
        return tuple(rank.index for rank in self.world.ranks) if self.world is not None and self.world.multi else None

    def device_count(self) -> int:
        """Return the number of devices of the world; before its start, the number of launched ranks or configured devices."""
        if self.world is not None:
            return self.world.size
        started = launched()
        return started.size if started is not None else self.asked_devices or 1

    def devices_per_machine(self) -> int:
        """Return the number of devices of each machine."""
        return max(self.device_count() // self.settings.machine_num, 1)

    def default_placement(self) -> Placement:
        """Return the placement of all devices."""
        return first_ranks(self.device_tag, self.device_count())

    def place(self, tag: str, devices: Sequence[Any], hierarchy: tuple[int, ...] | None) -> Placement:
        """Return the placement on `devices`, which are rank numbers or strings such as "0:0-3" (machine 0, devices 0 to 3).

        Nested lists are rows of a mesh, as in `hierarchy`.  A missing GPU is an error.  CPU numbers beyond the existing ranks wrap around; the mesh
        then keeps its inner dimensions if possible.
        """
        here = f"placement({tag!r}, {list(devices)}{'' if hierarchy is None else f', {hierarchy}'}) at {user_line()}"
        requested, mesh = self._grid(tag, devices, here)
        if len(set(requested)) != len(requested):
            raise PlacementError(f"{here}: a device occurs twice; list each device once")
        mesh = hierarchy or mesh
        if math.prod(mesh) != len(requested):
            raise PlacementError(f"{here}: hierarchy {mesh} needs {math.prod(mesh)} devices; got {len(requested)}")
        ranks = self._existing(tag, requested, here)
        return Placement("gpu" if tag == "cuda" else tag, ranks, mesh if len(ranks) == len(requested) else folded(mesh, len(ranks)))

    def _grid(self, tag: str, devices: Sequence[Any], here: str) -> tuple[list[int], tuple[int, ...]]:
        """Return the listed devices in order, and the mesh of nested lists."""
        from jobflow.engine.device_names import ranks_of  # programs without placements need no names of devices

        rows = [entry for entry in devices if isinstance(entry, list | tuple)]
        if not rows:
            ranks = [rank for entry in devices for rank in ranks_of(tag, entry, self.settings.machine_num, self.devices_per_machine(), here)]
            return ranks, (len(ranks),)
        if len(rows) < len(devices):
            raise PlacementError(f"{here}: the list mixes lists and single devices; write a mesh as lists of equal length")
        grids = [self._grid(tag, row, here) for row in rows]
        if len({mesh for _, mesh in grids}) > 1:
            raise PlacementError(
                f"{here}: the rows of a mesh must have equal lengths; got rows of {', '.join(str(len(ranks)) for ranks, _ in grids)} devices"
            )
        return [rank for ranks, _ in grids for rank in ranks], (len(grids), *grids[0][1])

    def _existing(self, tag: str, requested: Sequence[int], here: str) -> tuple[int, ...]:
        """Return the ranks of the world for device numbers; CPU numbers beyond the last rank wrap around."""
        size = self.device_count()
        beyond = [rank for rank in requested if rank >= size]
        if not beyond:
            return tuple(requested)
        if tag != "cpu":
            there = "there is one device" if size == 1 else f"there are {size} devices"
            remedy = "set config.gpu_device_num or config.cpu_device_num before the first job call"
            raise PlacementError(f"{here}: device {beyond[0]} does not exist, because {there}; {remedy}")
        notice(f"cpu devices beyond the {size} available are mapped onto the available ones (first in {here})")
        return tuple(dict.fromkeys(rank % size for rank in requested))

    # ---------------------------------------------------------------- jobs

    def register(self, job: Job) -> None:
        """Register a job in place of an earlier job with the same name, whose programs are released."""
        with scope.lock():
            self.jobs[job.name] = job
            self._replaced = [key for key in self._compiled if (key[0].name == job.name and key[0] != job) or key in self._replaced]

    def start(self) -> World:
        """Return the world of ranks; the first call starts it."""
        from jobflow.runtime.world.start import start_world

        with scope.lock():
            if self.world is None:
                multi = environment().client == "multi"
                self.world = start_world(self.device_tag, self.asked_devices, multi=multi)
                self.settings.started = environment().started = True
            return self.world

    def prepare_all(self) -> None:
        """Compile every registered job for its declared shapes, except eager jobs.

        Raises: JobError if no job is registered, unless eager execution is enabled.
        """
        if not self.jobs and not self.settings.eager:
            raise JobError(f"session at {user_line()}: there is no job yet; declare one with @global_function before variables are used")
        with scope.lock():
            self.start()
            for job in [job for job in self.jobs.values() if job.ahead]:
                self.compiled(job, job.declared_shapes(self))

    def compiled(self, job: Job, shapes: Any) -> Compiled:
        """Return the job compiled for arguments of these shapes and bound on every rank."""
        with scope.lock():
            program = self._compiled.pop(self._key(job, shapes), None)
            fresh = program is None
            program = program or self._compile(job, shapes)
            self._modes.setdefault(job, {}).update(program.modes)
            self._compiled[self._key(job, shapes)] = program  # keeps the order of use
            if fresh:
                self._forget(job)
            return program

    def _key(self, job: Job, shapes: Any) -> tuple[Job, Any, Any]:
        return job, shapes, (self.settings.computing, *[mode() for mode in self._modes.get(job, {}).values()])

    def _compile(self, job: Job, shapes: Any) -> Compiled:
        world = self.start()
        compiled = self._traced(job, shapes)
        self._number += 1
        if world.multi:
            from jobflow.engine.clients import compare_traced_programs

            compare_traced_programs(world, job, compiled, self.target())
        new = {name: variable for name, variable in compiled.variables.items() if name not in self.variables}
        try:
            self._bind(world, compiled)
            self.variables |= new
            if self.tensors is not None:
                self.tensors.bind({name: x for name, x in compiled.tensors.items() if name in new})
        except BaseException:
            self.variables = {name: variable for name, variable in self.variables.items() if name not in new}
            if world.ranks:  # the MPI job has ended
                compiled.release(world, tuple(new))
            raise
        self._users.add(job, compiled.variables)
        return compiled

    def _traced(self, job: Job, shapes: Any) -> Compiled:
        """Trace and compile a job; a redefined job with other variables starts anew."""
        try:
            # a separate context, so that an interruption leaves no context variables set
            return copy_context().run(job.compile, self, shapes, self._number)
        except JobError as error:
            changed = error.variable
            if changed is None:
                raise
            released = self._users.released_by(job, self.jobs)
            if changed not in released:
                self._users.advise(error, job, self.jobs)
                raise
        before = self.variables[changed].type
        self._release(job, released)
        compiled = copy_context().run(job.compile, self, shapes, self._number)
        after = compiled.variables[changed].type if changed in compiled.variables else before
        notice(restart_notice(job, changed, before, after, len(released)))
        return compiled

    def _release(self, job: Job, variables: Sequence[str]) -> None:
        """Release variables, their programs and the number of runs of a redefined job."""
        assert self.world is not None
        if self.tensors is not None:
            self.tensors.release(variables)
        for key in [key for key, program in self._compiled.items() if not program.variables.keys().isdisjoint(variables)]:
            self._drop(key, variables)
        self._replaced = [key for key in self._replaced if key in self._compiled]
        self.variables = {name: variable for name, variable in self.variables.items() if name not in variables}
        self.loaded.difference_update(variables)
        self.runs.pop(job.name, None)
        self._users.remove(variables)

    def _drop(self, key: tuple[Job, Any, Any], variables: Sequence[str] = ()) -> None:
        """Release a program, and these variables."""
        assert self.world is not None
        dropped = self._compiled.pop(key)
        dropped.close()
        dropped.release(self.world, variables)

    def _bind(self, world: World, compiled: Compiled) -> None:
        from jobflow.program.program import StorageChoice

        io_buffers = world.size > 1 and not world.multi and len(set(map(id, compiled.programs))) == 1
        storage = StorageChoice(share=self.settings.share_variables, io_buffers=io_buffers)
        compiled.bind(world, storage, self.target(), self.settings.cache_folder)

    def compare_arguments(self, job: Job, arrays: Mapping[str, Sequence[Array | Lazy]]) -> None:
        """Raise ArgumentError if clients passed different arguments in one of the first calls; later calls are not compared."""
        world = self.world
        if world is None or not world.multi or self._compared[job.name] >= CALLS_COMPARED:
            return
        from jobflow.engine.clients import compare_passed_arguments

        self._compared[job.name] += 1
        compare_passed_arguments(world, job, arrays)

    def _forget(self, job: Job) -> None:
        """Release the programs of replaced jobs, and the least recently used programs of `job` beyond the limit `compiled_shapes`."""
        assert self.world is not None
        mine = [key for key in self._compiled if key[0].name == job.name and key not in self._replaced]
        most = self.settings.compiled_shapes * max(self._compiled[key].programs_per_call for key in mine)
        if len(mine) > most:
            notice(many_shapes(f"job {job.name}", self.settings.compiled_shapes))
        for key in [*self._replaced, *mine[:-most]]:
            self._drop(key)
        self._replaced.clear()

    def call(self, job: Job, args: tuple[Any, ...]) -> Any:
        """Run a job and return its result in the form of the return annotation."""
        return self.performed(job, args)()

    def performed(self, job: Job, args: tuple[Any, ...]) -> Callable[[], Any]:
        """Run a job; return a function that delivers the result.  Callers of the function must not hold `scope.lock`, because it runs user code."""
        with scope.lock():
            if self.world is None:
                self.prepare_all()
            return job.run(self, args)

    def run(self, compiled: Compiled, bound: Sequence[Bound], host_results: Mapping[str, Any]) -> Callable[[], list[Any]]:
        """Run a job once, and return as `start_phase`; the caller holds `scope.lock` since the lookup of `compiled`."""
        with held():
            values = self.start_phase(compiled, bound, host_results)
            self.runs[compiled.name] = self.runs.get(compiled.name, 0) + 1
            self.changed(compiled.graph.updates)
        return values

    def start_phase(self, compiled: Compiled, bound: Sequence[Bound], host_results: Mapping[str, Any]) -> Callable[[], list[Any]]:
        """Run once, and return a function that returns results, then watched values; do not count the run or mark variables as changed."""
        assert self.world is not None
        arguments = compiled.arguments(bound, self.runs.get(compiled.name, 0))
        return compiled.start_run(self.world, arguments, self.here, host_results)

    # ---------------------------------------------------------------- variables

    def read(self, names: Sequence[str]) -> dict[str, Array]:
        """Return the current values of variables as whole arrays."""
        from jobflow.program.client import assembled
        from jobflow.program.commands import ReadVariables

        with scope.lock():
            assert self.world is not None
            self.settle()
            parts = self.world.call(ReadVariables(tuple(names)))
        values: dict[str, Array] = {}
        for name in names:
            variable = self.variables[name]
            values[name] = assembled(variable.layout, variable.type, {rank: own[name] for rank, own in enumerate(parts) if name in own})
        return values

    def write(self, values: Mapping[str, Array]) -> None:
        """Set variables; raise CheckpointError if a shape or an element type differs."""
        with scope.lock():
            self.settle()
            self.put(values)
            self.changed(values)

    def settle(self) -> None:
        """Copy values that the program has written to bound tensors into their variables, before variables are read.  Collective over all clients."""
        if self.tensors is not None:
            self.tensors.settle()

    def changed(self, names: Iterable[str]) -> None:
        """Mark the tensors that are bound to these variables as out of date."""
        if self.tensors is not None:
            self.tensors.changed(names)

    def put(self, values: Mapping[str, Array]) -> None:
        """Set variables without marking bound tensors as out of date; raise CheckpointError if a shape or an element type differs."""
        from jobflow.program.commands import WriteVariables

        assert self.world is not None
        each: list[dict[str, Array]] = [{} for _ in range(self.world.size)]
        for name, value in values.items():
            variable = self.variables[name]
            if tuple(value.shape) != variable.type.shape or np.dtype(value.dtype) != variable.type.dtype.numpy:
                raise CheckpointError(
                    f'load_variables at {user_line()}: variable "{name}" is {variable.type} but the value is '
                    f"{value.dtype}{list(value.shape)}; convert the value"
                )
            for rank, shard in zip(variable.placement.ranks, variable.layout.shards(value), strict=True):
                each[rank][name] = shard
        self.world.call(WriteVariables(), each)
        self.loaded.update(values)

    @property
    def writes_files(self) -> bool:
        """True in the process with rank 0, which writes files for all ranks."""
        assert self.world is not None
        return any(rank.index == 0 for rank in self.world.ranks)

    def barrier(self) -> None:
        """Wait until every rank reaches this barrier."""
        from jobflow.program.commands import Barrier

        with scope.lock():
            assert self.world is not None
            self.world.call(Barrier())

    def finish(self) -> None:
        """Wait for background work, and raise its errors.  All clients must call this."""
        with scope.lock():
            if self.unfinished is not None:
                self.unfinished.wait()

    def close(self) -> None:
        """Finish background work, close the world, and release all programs.

        After an exception, a client does not wait for the other clients, because these may be blocked in another operation.
        """
        with scope.lock():
            try:
                if self.world is None or not self.world.unwinding:
                    self.finish()
                elif self.unfinished is not None:
                    self.unfinished.detach()
            finally:
                if self.world is not None:
                    if self.tensors is not None:
                        self.tensors.part()
                    self.world.close()
                    self.world = None
                self.tensors = None
                self._modes.clear()
                for compiled in self._compiled.values():
                    compiled.close()
                self._compiled.clear()
                self._replaced.clear()


def environment() -> EnvSettings:
    """Return the settings of the environment, which outlive sessions."""
    root = scope.current().root
    with root.lock:
        if root.environment is None:
            root.environment = EnvSettings()
        return root.environment


def current_session() -> Session:
    """Return the current session, which is created at the first call."""
    root = scope.current().root
    with root.lock:
        if root.session is None:
            root.session = Session()
        return root.session


def clear_default_session() -> None:
    """Close the current session and discard its jobs, variables and settings."""
    _refuse_in_jobs("clear_default_session")
    root = scope.current().root
    with root.lock:
        if root.session is not None:
            if root.eager is not None and root.session.world is not None:
                root.eager.part(root.session.world)
            root.session.close()
        root.session = Session()


def sync_default_session() -> None:
    """Return immediately, because a call of a job returns only when it is complete."""


def started_session() -> Session:
    """Return the current session with all registered jobs prepared."""
    _refuse_in_jobs("access to all variables")
    with scope.lock():
        session = current_session()
        session.prepare_all()
        return session


def _refuse_in_jobs(what: str) -> None:
    """Raise JobError in the body of a job, because the session is being prepared while the body is traced."""
    if scope.current().interpreter is not None:
        raise JobError(f"{what} at {user_line()}: called in the body of a job; call it before or after the job")


def _settings() -> Settings:
    return current_session().settings


def _begin() -> None:
    current_session().start()


#: `flow.config` and `flow.env`: options of the current session and of its environment.
config = ConfigOptions(_settings)
env = EnvOptions(environment, _settings, _begin)
