"""The session: registered jobs, variables, settings, and the world of ranks.

It starts at the first need: a job call, a checkpoint, a look at variables.  Then all registered jobs are traced in the order of
their declaration, so that their variables exist and have their first values, and the ranks bind their plans.

Python threads may call jobs at once: what concerns the session runs with `scope.lock` held, one thread at a time.
"""

from __future__ import annotations

import hashlib
import math
import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextvars import copy_context
from functools import partial
from typing import Any

import numpy as np

import jobflow.core.scope as scope
from jobflow.core.errors import ArgumentError, CheckpointError, JobError, PlacementError, user_line
from jobflow.core.layout import Placement, first_ranks
from jobflow.core.notices import notice
from jobflow.core.types import Array
from jobflow.engine.compiled import Compiled
from jobflow.engine.expected import Declared, ProgramTensors, Unfinished
from jobflow.engine.options import ConfigOptions, EnvOptions, EnvSettings, Settings
from jobflow.graph.graph_text import physical_text
from jobflow.graph.ir import Variable
from jobflow.kernels.target import Target, target_of
from jobflow.program.client import assembled
from jobflow.program.commands import Barrier, ExchangeItems, ReadVariables, WriteVariables
from jobflow.program.program import StorageChoice
from jobflow.program.rank_group import compare_programs
from jobflow.runtime.device import cupy_device as cuda
from jobflow.runtime.interrupts import held
from jobflow.runtime.world.launched import launched
from jobflow.runtime.world.start import start_world
from jobflow.runtime.world.world import World
from jobflow.typing.lazy import Lazy
from jobflow.typing.signature import Bound

#: In how many calls of a job clients compare their arguments.
CALLS_COMPARED = 3


class Session:
    """Jobs and variables of one program, until `close`."""

    def __init__(self) -> None:
        self.settings = Settings()
        self.jobs: dict[str, Declared] = {}
        self.variables: dict[str, Variable] = {}
        self.runs: dict[str, int] = {}
        #: variables that have been set from outside of jobs, until a job looks for its own
        self.loaded: set[str] = set()
        self.world: World | None = None
        #: a checkpoint that is being written
        self.unfinished: Unfinished | None = None
        #: those of modules that jobs call, if any does
        self.tensors: ProgramTensors | None = None
        self._compiled: dict[tuple[Declared, Any, Any], Compiled] = {}
        #: by job, what its programs depend on beside the shapes of arguments: see `Compiled.modes`
        self._modes: dict[Declared, dict[int, Callable[[], Any]]] = {}
        #: programs of jobs that others have taken the place of; given back when the next one is compiled, which all clients do together
        self._replaced: list[tuple[Declared, Any, Any]] = []
        self._number = 0
        #: how many calls of a job have been compared; `runs` go on where a checkpoint ended
        self._compared: Counter[str] = Counter()

    @property
    def started(self) -> bool:
        return self.world is not None

    # ---------------------------------------------------------------- devices

    @property
    def device_tag(self) -> str:
        """The kind of device the program asked for."""
        return "gpu" if self.settings.gpu_device_num else "cpu"

    def target(self) -> Target:
        """What programs are compiled for: the devices that there are, which are CPUs where a GPU was asked for and there is none."""
        if self.world is not None:
            tag = self.world.ranks[0].device.tag
        else:
            tag = self.device_tag if cuda.available() else "cpu"
        return target_of(tag, self.settings.kernels)

    @property
    def asked_devices(self) -> int | None:
        """How many devices the program asked for, on all machines; None if it did not say."""
        each = self.settings.gpu_device_num or self.settings.cpu_device_num
        return None if each is None else each * self.settings.machine_num

    @property
    def multi(self) -> bool:
        """True if every process calls jobs itself."""
        return self.world is not None and self.world.multi

    @property
    def here(self) -> tuple[int, ...] | None:
        """The ranks whose parts of arguments this client cuts; None for all."""
        return tuple(rank.index for rank in self.world.ranks) if self.world is not None and self.world.multi else None

    def device_count(self) -> int:
        """How many devices the world has, or will have."""
        if self.world is not None:
            return self.world.size
        started = launched()
        return started.size if started is not None else self.asked_devices or 1

    def devices_per_machine(self) -> int:
        """How many devices each machine has."""
        return max(self.device_count() // self.settings.machine_num, 1)

    def default_placement(self) -> Placement:
        """All devices."""
        return first_ranks(self.device_tag, self.device_count())

    def place(self, tag: str, devices: Sequence[Any], hierarchy: tuple[int, ...] | None) -> Placement:
        """The ranks that texts like "0:0-3" mean, or numbers of ranks; GPU ids must exist, CPU ids fold onto the ranks there are.

        Lists of lists are rows of a mesh, as `hierarchy` is; a mesh that folds keeps its inner dimensions where it can.
        """
        here = f"placement({tag!r}, {list(devices)}{'' if hierarchy is None else f', {hierarchy}'}) at {user_line()}"
        asked, mesh = self._grid(devices, here)
        if len(set(asked)) != len(asked):
            raise PlacementError(f"{here} names a device twice")
        mesh = hierarchy or mesh
        if math.prod(mesh) != len(asked):
            raise PlacementError(f"{here}: {len(asked)} devices do not fill a hierarchy {mesh}, which has {math.prod(mesh)}")
        ranks = self._existing(tag, asked, here)
        return Placement("gpu" if tag == "cuda" else tag, ranks, mesh if len(ranks) == len(asked) else folded(mesh, len(ranks)))

    def _grid(self, devices: Sequence[Any], here: str) -> tuple[list[int], tuple[int, ...]]:
        """The devices that are meant, one after another, and the mesh that nested lists make of them."""
        rows = [entry for entry in devices if isinstance(entry, list | tuple)]
        if not rows:
            found = [rank for entry in devices for rank in self._ranks(entry, here)]
            return found, (len(found),)
        if len(rows) < len(devices):
            raise PlacementError(f"{here}: lists and devices are mixed; write a mesh as lists of equal length")
        grids = [self._grid(row, here) for row in rows]
        if len({mesh for _, mesh in grids}) > 1:
            raise PlacementError(
                f"{here}: the rows of a mesh are of equal length; these have {', '.join(str(len(ranks)) for ranks, _ in grids)} devices"
            )
        return [rank for ranks, _ in grids for rank in ranks], (len(grids), *grids[0][1])

    def _ranks(self, entry: Any, here: str) -> list[int]:
        if type(entry) is int and entry >= 0:
            return [entry]
        match = re.fullmatch(r"@?(\d+):(\d+(?:-\d+)?(?:,\d+(?:-\d+)?)*)", entry) if isinstance(entry, str) else None
        if match is None:
            shown = f'"{entry}"' if isinstance(entry, str) else repr(entry)
            raise PlacementError(f'{here}: cannot read {shown}; write "machine:device" or "machine:first-last", for example "0:0-3"')
        found: list[int] = []
        for part in match[2].split(","):
            first, _, last = part.partition("-")
            found.extend(int(match[1]) * self.devices_per_machine() + device for device in range(int(first), int(last or first) + 1))
        return found

    def _existing(self, tag: str, asked: Sequence[int], here: str) -> tuple[int, ...]:
        """The ranks of the world that devices stand for."""
        size = self.device_count()
        beyond = [rank for rank in asked if rank >= size]
        if not beyond:
            return tuple(asked)
        if tag != "cpu":
            there = f"there {'is one' if size == 1 else f'are {size}'}: set config.gpu_device_num or config.cpu_device_num before the first job call"
            raise PlacementError(f"{here}: device {beyond[0]} does not exist; {there}")
        notice(f"cpu devices beyond the {size} available are mapped onto these (first in {here})")
        return tuple(dict.fromkeys(rank % size for rank in asked))

    # ---------------------------------------------------------------- jobs

    def register(self, job: Declared) -> None:
        """A job with the name of an earlier one takes its place, whose programs are given back."""
        with scope.lock():
            self.jobs[job.name] = job
            self._replaced = [key for key in self._compiled if (key[0].name == job.name and key[0] != job) or key in self._replaced]

    def start(self) -> World:
        """Bring up the world; once."""
        with scope.lock():
            if self.world is None:
                multi = environment().client == "multi"
                self.world = start_world(self.device_tag, self.asked_devices, multi=multi)
                self.settings.started = environment().started = True
            return self.world

    def prepare_all(self) -> None:
        """Trace, compile and bind every registered job that is not yet."""
        if not self.jobs and not self.settings.eager:
            raise JobError(f"at {user_line()}: there is no job yet; declare one with @global_function before variables are used")
        with scope.lock():
            self.start()
            for job in [job for job in self.jobs.values() if job.ahead]:
                self.compiled(job, job.declared_shapes(self))

    def compiled(self, job: Declared, shapes: Any) -> Compiled:
        """The job for arguments of these shapes, bound on every rank."""
        with scope.lock():
            found = self._compiled.pop(self._key(job, shapes), None)
            fresh = found is None
            found = found or self._compile(job, shapes)
            self._modes.setdefault(job, {}).update(found.modes)
            self._compiled[self._key(job, shapes)] = found  # the last used is the last to be forgotten
            if fresh:
                self._forget(job)
            return found

    def _key(self, job: Declared, shapes: Any) -> tuple[Declared, Any, Any]:
        return job, shapes, (self.settings.kernels, *[mode() for mode in self._modes.get(job, {}).values()])

    def _compile(self, job: Declared, shapes: Any) -> Compiled:
        world = self.start()
        # in a context of its own, of which nothing is left wherever Ctrl-C ends it
        compiled = copy_context().run(job.compile, self, shapes, self._number)
        self._number += 1
        if world.multi:
            self._compare_programs(world, job, compiled)
        new = {name: variable for name, variable in compiled.variables.items() if name not in self.variables}
        try:
            self._bind(world, compiled)
            self.variables |= new
            if self.tensors is not None:
                self.tensors.tie({name: x for name, x in compiled.tensors.items() if name in new})
        except BaseException:
            self.variables = {name: variable for name, variable in self.variables.items() if name not in new}
            if world.ranks:  # under MPI, the job has ended
                compiled.release(world, tuple(new))
            raise
        return compiled

    def _bind(self, world: World, compiled: Compiled) -> None:
        io_buffers = world.size > 1 and not world.multi and len(set(map(id, compiled.programs))) == 1
        storage = StorageChoice(share=self.settings.share_variables, io_buffers=io_buffers)
        compiled.bind(world, storage, self.target(), self.settings.cache_folder)

    def _compare_programs(self, world: World, job: Declared, compiled: Compiled) -> None:
        """Raise JobError unless every client has traced the same program."""
        lines = [f"kernels: {self.target()}", *"\n".join(map(physical_text, compiled.programs)).splitlines()]
        exchange = partial(ExchangeItems, about=f"the programs of job {job.name}")
        if difference := compare_programs(lines, range(world.size), lambda item: world.call(exchange(item))):
            first, other = difference.ranks
            raise JobError(
                f"job {job.name} ({job.where}): rank {other} has traced another program than rank {first}; with multi client, every rank must run "
                f"the same script with the same settings. {difference}"
            )

    def compare_arguments(self, job: Declared, arrays: Mapping[str, Sequence[Array | Lazy]]) -> None:
        """ArgumentError unless every client passes the same arguments; looked at in the first calls only, because it costs a message."""
        world = self.world
        if world is None or not world.multi or self._compared[job.name] >= CALLS_COMPARED:
            return
        self._compared[job.name] += 1
        mine = {name: digest(*map(_print, values)) for name, values in arrays.items()}
        for rank, others in enumerate(world.call(ExchangeItems(mine, f"the arguments of job {job.name}"))):
            different = [name for name in mine if others.get(name) != mine[name]]
            if different:
                raise ArgumentError(
                    f'{job.name}({different[0]}=...) at {user_line()}: argument "{different[0]}" of rank {rank} differs from that of rank '
                    f"{world.ranks[0].index}; with multi client, every rank must pass the same whole arrays: use the same seed for random inputs"
                )

    def _forget(self, job: Declared) -> None:
        """Give back the programs of replaced jobs, and of this name, if there are many, those used longest ago."""
        assert self.world is not None
        mine = [key for key in self._compiled if key[0].name == job.name and key not in self._replaced]
        most = self.settings.compiled_shapes * max(1 + 2 * len(self._compiled[key].sized) for key in mine)  # programs of a call
        if len(mine) > most:
            notice(many_shapes(f"job {job.name}", self.settings.compiled_shapes))
        for key in [*self._replaced, *mine[:-most]]:
            dropped = self._compiled.pop(key)
            dropped.close()
            dropped.release(self.world)
        self._replaced.clear()

    def call(self, job: Declared, args: tuple[Any, ...]) -> Any:
        """Run a job; its result as the return annotation says."""
        return self.performed(job, args)()

    def performed(self, job: Declared, args: tuple[Any, ...]) -> Callable[[], Any]:
        """Run a job; what gives its result, which calls functions of the program and so is called without the lock."""
        with scope.lock():
            if self.world is None:
                self.prepare_all()
            return job.run(self, args)

    def run(self, compiled: Compiled, bound: Sequence[Bound], beside: Mapping[str, Any]) -> list[Any]:
        """One step on all ranks; what it gives, as `Compiled.values` has it.  Called with the lock held since `compiled` was looked up."""
        with held():
            values = self.look(compiled, bound, beside)
            self.runs[compiled.name] = self.runs.get(compiled.name, 0) + 1
            self.changed(compiled.graph.updates)
        return values

    def look(self, compiled: Compiled, bound: Sequence[Bound], beside: Mapping[str, Any]) -> list[Any]:
        """The same of a program that writes no variables, in the middle of a step."""
        assert self.world is not None
        arguments = compiled.arguments(bound, self.runs.get(compiled.name, 0))
        return compiled.with_beside(compiled.run(self.world, arguments, self.here), beside)

    # ---------------------------------------------------------------- variables

    def read(self, names: Sequence[str]) -> dict[str, Array]:
        """The current values of variables, whole."""
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
        """Set variables; shape and element type must be theirs (CheckpointError)."""
        with scope.lock():
            self.settle()
            self.put(values)
            self.changed(values)

    def settle(self) -> None:
        """Have variables take what the program has written to tensors that are variables; before they are read, written or used.  Collective."""
        if self.tensors is not None:
            self.tensors.settle()

    def changed(self, names: Iterable[str]) -> None:
        """Have such tensors show what these variables have become."""
        if self.tensors is not None:
            self.tensors.changed(names)

    def put(self, values: Mapping[str, Array]) -> None:
        """`write`, without a look at tensors."""
        assert self.world is not None
        each: list[dict[str, Array]] = [{} for _ in range(self.world.size)]
        for name, value in values.items():
            variable = self.variables[name]
            if tuple(value.shape) != variable.type.shape or np.dtype(value.dtype) != variable.type.dtype.numpy:
                raise CheckpointError(
                    f'load_variables at {user_line()}: variable "{name}" is {variable.type} but the value is {value.dtype}{list(value.shape)}'
                )
            for rank, shard in zip(variable.placement.ranks, variable.layout.shards(value), strict=True):
                each[rank][name] = shard
        self.world.call(WriteVariables(), each)
        self.loaded.update(values)

    @property
    def writes_files(self) -> bool:
        """True in the one process that writes for all."""
        assert self.world is not None
        return any(rank.index == 0 for rank in self.world.ranks)

    def barrier(self) -> None:
        """Wait until every rank is here."""
        with scope.lock():
            assert self.world is not None
            self.world.call(Barrier())

    def finish(self) -> None:
        """Wait for what is unfinished, and raise what went wrong with it; collective."""
        with scope.lock():
            if self.unfinished is not None:
                self.unfinished.wait()

    def close(self) -> None:
        """Finish, and end the ranks.  Jobs and variables are gone with them.

        Who leaves by an exception, as one of several clients, waits for nobody: others may wait for it elsewhere, and would not hear of it.
        """
        with scope.lock():
            try:
                if self.world is None or not self.world.parting:
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


def many_shapes(what: str, kept: int) -> str:
    """What is said when a program for an earlier shape is dropped."""
    return (
        f"{what} has been called with more than {kept} shapes of arguments: programs for those used longest ago are dropped, "
        f"and compiled again when they are needed; config.compiled_shapes(n) keeps n"
    )


def _print(value: Array | Lazy) -> str | memoryview:
    return value.fingerprint if isinstance(value, Lazy) else np.ascontiguousarray(value).data


def digest(*parts: str | memoryview) -> str:
    """A short text that differs if the content does."""
    sha = hashlib.sha256()
    for part in parts:
        sha.update(part.encode() if isinstance(part, str) else part)
    return sha.hexdigest()


def folded(mesh: tuple[int, ...], size: int) -> tuple[int, ...]:
    """A mesh of as many dimensions for fewer ranks: inner dimensions stay while they divide what is left.

    folded((2, 2), 2) == (1, 2)        folded((2, 4), 2) == (2, 1)
    """
    inner: list[int] = []
    for n in reversed(mesh[1:]):
        inner.insert(0, n if size % n == 0 else 1)
        size //= inner[0]
    return (size, *inner)


def environment() -> EnvSettings:
    """What the program said about its environment; it outlives sessions."""
    root = scope.current().root
    with root.lock:
        if root.environment is None:
            root.environment = EnvSettings()
        return root.environment


def current_session() -> Session:
    """The session of this program (or of this test)."""
    root = scope.current().root
    with root.lock:
        if root.session is None:
            root.session = Session()
        return root.session


def clear_default_session() -> None:
    """Close the current session: jobs, variables and settings are forgotten."""
    _refuse_in_jobs("clear_default_session")
    root = scope.current().root
    with root.lock:
        if root.session is not None:
            if root.eager is not None and root.session.world is not None:
                root.eager.part(root.session.world)
            root.session.close()
        root.session = Session()


def sync_default_session() -> None:
    """Wait for everything launched: calls of jobs return when they are done, so there is nothing to wait for."""


def started_session() -> Session:
    """The current session, with all registered jobs prepared."""
    _refuse_in_jobs("what needs all variables")
    with scope.lock():
        session = current_session()
        session.prepare_all()
        return session


def _refuse_in_jobs(what: str) -> None:
    """JobError in the body of a job, which is traced while the session is being prepared."""
    if scope.current().interpreter is not None:
        raise JobError(f"{what} was called at {user_line()} in the body of a job; call it outside, before or after the job")


def _settings() -> Settings:
    return current_session().settings


def _begin() -> None:
    current_session().start()


#: `flow.config` and `flow.env`: options of the session in force, and of its environment.
config = ConfigOptions(_settings)
env = EnvOptions(environment, _settings, _begin)
