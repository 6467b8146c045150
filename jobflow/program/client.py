"""Programs that a client runs on the ranks of a world: arguments are divided among the ranks, and outputs are assembled."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from itertools import accumulate
from typing import Any

import numpy as np

import jobflow.core.scope as scope
from jobflow.core.dataclass import dataclass
from jobflow.core.errors import JobflowError, SourceLine
from jobflow.core.layout import Layout, Local
from jobflow.core.types import Array, TensorType
from jobflow.graph.ir import Graph, Physical, Variable
from jobflow.graph.training import ArgumentBounds
from jobflow.graph.wire import physical_to_wire
from jobflow.kernels.target import CPU, Target
from jobflow.program.arguments import ArgumentPart, check_values
from jobflow.program.commands import Bind, Run, Unbind, client_buffers_of
from jobflow.program.program import ALONE, StorageChoice
from jobflow.runtime.device.device import Device
from jobflow.runtime.world.world import World
from jobflow.typing.lazy import Lazy

#: per rank, its parts of the outputs with their positions
Parts = Sequence[Sequence[tuple[int, Array]]]


@dataclass(frozen=True)
class ClientProgram:
    """A program on the ranks of a world, identified by its number."""

    name: str
    #: the line that declares the program
    where: SourceLine
    number: int
    #: the program of each rank; one object for all ranks unless their shapes differ
    programs: tuple[Physical, ...]
    #: per rank, its parts of the arguments
    parts: tuple[tuple[ArgumentPart, ...], ...]
    #: bounds on the values of arguments
    bounds: tuple[ArgumentBounds, ...]
    #: per result, the number of outputs that are concatenated along axis 0; () for one each
    pieces: tuple[int, ...]

    @property
    def graph(self) -> Graph:
        return self.programs[0].graph

    @property
    def variables(self) -> dict[str, Variable]:
        return self.graph.variables

    # ---------------------------------------------------------------- binding

    def bind(self, world: World, storage: StorageChoice = ALONE, target: Target = CPU, cache_folder: str | None = None) -> None:
        """Bind the program on every rank."""
        tables = {id(program): physical_to_wire(program) for program in self.programs}
        world.call(Bind(self.number, storage, target, cache_folder), [tables[id(program)] for program in self.programs])

    def release(self, world: World, variables: Sequence[str] = ()) -> None:
        """Release the program, and the variables with these names, on every rank."""
        world.call(Unbind(self.number, tuple(variables)))

    # ---------------------------------------------------------------- running

    def run(self, world: World, arguments: Mapping[str, Any], here: Collection[int] | None = None) -> list[Any]:
        """Run once with whole arguments, and return whole results; a local result is a list with one array per device.  `here` as in `feeds`."""
        buffers = client_buffers_of(world.ranks[0]).get(self.number)
        if buffers is None:
            return self.outputs(self.run_on_ranks(world, self.feeds(arguments, here)))
        buffers.write(arguments)
        self.run_on_ranks(world)
        return self._joined(buffers.read())

    def start(self, world: World, arguments: Mapping[str, Any], here: Collection[int] | None = None) -> Callable[[], list[Any]]:
        """Run once; return a function that returns the results of `run`.

        In a world of one rank on a GPU, this function waits for the outputs, and raises the errors of that wait.
        """
        if world.size == 1 and world.tags[0] == "gpu":
            return self._awaited(world.ranks[0].device, world.call(Run(self.number, self.name, waits=False), self.feeds(arguments, here))[0])
        results = self.run(world, arguments, here)
        return lambda: results

    def _awaited(self, device: Device, answer: Callable[[], list[tuple[int, Array]]] | JobflowError) -> Callable[[], list[Any]]:
        if isinstance(answer, JobflowError):
            raise answer

        def results() -> list[Any]:
            with scope.lock():  # the error of an assertion changes state that runs use
                device.activate()  # any thread may read the results
                return self.outputs([answer()])

        return results

    def run_on_ranks(self, world: World, feeds: Sequence[Mapping[str, Array]] | None = None) -> list[list[tuple[int, Array]]]:
        """Run once with the ranks' parts of the arguments, and return their parts of the outputs.

        If all ranks raise an error together, no variable has changed.
        """
        answers = world.call(Run(self.number, self.name), feeds)
        if isinstance(answers[0], JobflowError):
            raise answers[0]
        return answers

    def feeds(self, arguments: Mapping[str, Any], here: Collection[int] | None = None) -> list[dict[str, Array]]:
        """Return per rank its parts of the arguments, as views of the caller's arrays.

        If `here` is set, only the ranks in `here` get parts.  Lazy arguments are read in this call.
        """
        ranks = self.graph.placement.ranks
        feeds: list[dict[str, Array]] = []
        for rank, parts in enumerate(self.parts):
            if here is not None and rank not in here:
                parts = ()
            own = {name: value[ranks.index(rank)] if isinstance(value, list) else value for name, value in arguments.items()} if parts else {}
            feeds.append({part.key: self._part(part, own[part.argument]) for part in parts})
        return feeds

    def _part(self, part: ArgumentPart, value: Array | Lazy) -> Array:
        array = part.of(value)
        if isinstance(value, Lazy):
            for bound in self.bounds:
                if bound.argument == part.argument:
                    check_values(self.name, bound, array, first=part.slices(value.shape)[0].start if value.shape else 0)
        return array

    # ---------------------------------------------------------------- outputs

    def shards(self, parts: Parts) -> list[dict[int, Array]]:
        """Return, for each output, its shards by rank."""
        shards: list[dict[int, Array]] = [{} for _ in self.graph.outputs]
        for rank, fetches in enumerate(parts):
            for position, array in fetches:
                shards[position][rank] = array
        return shards

    def outputs(self, parts: Parts) -> list[Any]:
        """Return the results as whole arrays; a local result is a list with one array per device."""
        layouts = self.programs[0].layouts
        outputs = zip(self.graph.outputs, self.shards(parts), strict=True)
        return self._joined([assembled(layouts[value], value.tensor_type, shards) for value, shards in outputs])

    def _joined(self, outputs: Sequence[Any]) -> list[Any]:
        if not self.pieces:
            return list(outputs)
        stops = accumulate(self.pieces)
        return [_concatenated(outputs[stop - count : stop]) for count, stop in zip(self.pieces, stops, strict=True)]


def assembled(layout: Layout | Local, type: TensorType, shards: Mapping[int, Array]) -> Any:
    """Assemble a tensor from its shards by rank; a local tensor becomes a list with one array per device."""
    if isinstance(layout, Local):
        return [shards[rank] for rank in layout.placement.ranks]
    if layout.is_whole:
        return next(iter(shards.values()))
    return layout.assemble([shards[rank] for rank in layout.placement.ranks], type)


def _concatenated(values: Sequence[Any]) -> Any:
    """Concatenate `values` along axis 0; these are arrays, or lists with one array per device."""
    if len(values) == 1:
        return values[0]
    if isinstance(values[0], list):
        return [np.concatenate(pieces) for pieces in zip(*values, strict=True)]
    return np.concatenate(values)
