"""`placement` and `sbp`, the public layout types of global tensors.

P = flow.placement(type="cuda", ranks=[[0, 1], [2, 3]])
x = flow.randn(4, 5, placement=P, sbp=[flow.sbp.split(0), flow.sbp.broadcast])
"""

from __future__ import annotations

import math
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

import jobflow.core.layout as layout
import jobflow.core.scope as scope
from jobflow.core.errors import PlacementError, SbpError, user_line
from jobflow.core.layout import MAX, MIN, Broadcast, Partial, Placement, Sbp, Split
from jobflow.core.notices import notice
from jobflow.runtime.device import cuda_device as cuda
from jobflow.runtime.world.environment import launched

TAGS = ("cpu", "cuda")
#: largest number of axes of a tensor with a split
MOST_AXES = 32


class placement:
    """The ranks of a global tensor, in order; nested lists arrange them as a mesh.

    `type` is "cpu" or "cuda". `ranks` are process numbers: a list, nested lists, a range, an array or one number. The older form
    {machine: devices} is accepted, too.

    Raises: PlacementError for a repeated rank, a rank that does not exist, or an invalid value.

    Examples:
        >>> P = flow.placement.all("cpu")  # every rank; flow.placement("cpu", [0, 1]) names two
        >>> flow.ones(4, placement=P, sbp=flow.sbp.broadcast).placement == P
        True
    """

    __slots__ = ("core",)
    core: Placement

    def __init__(
        self, type: str = "", ranks: Any = None, hierarchy: Sequence[int] | None = None, *, device_type: str = "", device_ids: Any = None
    ) -> None:
        what = f"placement at {user_line()}"
        tag, requested = type or device_type, device_ids if ranks is None else ranks
        if tag not in TAGS:
            raise PlacementError(f'{what}: unknown type {tag!r}; use "cpu" or "cuda"')
        if isinstance(requested, Mapping):
            say("placement(type, {machine: devices}) is the old form; write placement(type, ranks=[...])")
            requested = _of_machines(requested, what)
        grid = _grid(requested, what)
        if hierarchy:
            if math.prod(hierarchy) != grid.size:
                raise PlacementError(f"{what}: hierarchy {tuple(hierarchy)} needs {math.prod(hierarchy)} ranks; got {grid.size}")
            grid = grid.reshape(tuple(hierarchy))
        _check(grid, what)
        self.core = Placement(tag, tuple(grid.ravel().tolist()), tuple(grid.shape))
        if tag == "cuda":
            note_without_gpu()

    @classmethod
    def of(cls, core: Placement) -> placement:
        """Return the public form of an internal placement."""
        result = cls.__new__(cls)
        result.core = core
        return result

    @staticmethod
    def all(type: str) -> placement:
        """Return the placement on all ranks; `type` is "cpu" or "cuda".  Raises: PlacementError for an unsupported type."""
        return placement(type, range(world_size()))

    def __repr__(self) -> str:
        return f'jobflow.placement(type="{self.core.tag}", ranks={self.ranks.tolist()})'

    def __eq__(self, other: object) -> bool:
        return isinstance(other, placement) and self.core == other.core

    def __hash__(self) -> int:
        return hash(self.core)

    def __reduce__(self) -> tuple[Any, ...]:
        return placement.of, (self.core,)

    @property
    def type(self) -> str:
        """The kind of device: "cpu" or "cuda"."""
        return self.core.tag

    device_type = type

    @property
    def ranks(self) -> np.ndarray[Any, Any]:
        """The ranks as an array with the shape of the mesh."""
        return np.array(self.core.ranks).reshape(self.core.mesh)

    @property
    def hierarchy(self) -> tuple[int, ...]:
        """The shape of the mesh."""
        return self.core.mesh


def say(text: str) -> None:
    """Print a notice once for all ranks."""
    started = launched()
    if started is None or started.rank == 0:
        notice(text)


def note_without_gpu() -> None:
    """Print a notice that tensors on cuda devices use host memory, if there is no GPU."""
    if not cuda.available():
        say("there is no GPU: tensors on cuda devices use the memory of the host")


def world_size() -> int:
    """Return the number of ranks of this program."""
    eager = scope.current().root.eager
    if eager is not None:
        return eager.rank.size
    started = launched()
    return 1 if started is None else started.size


def _of_machines(machines: Mapping[int, Any], what: str) -> list[int]:
    """Convert {machine: devices} to ranks, with the same number of devices on each machine; raise PlacementError for other keys or values."""
    ranks: list[int] = []
    each = max(world_size() // max(len(machines), 1), 1)
    for machine, devices in machines.items():
        listed = [devices] if isinstance(devices, int) else list(devices)
        if not all(isinstance(device, int | np.integer) for device in (machine, *listed)):
            raise PlacementError(f"{what}: cannot read {{{machine!r}: {devices!r}}}; write ranks=[0, 1]")
        ranks += [machine * each + int(device) for device in listed]
    return ranks


def _grid(ranks: Any, what: str) -> np.ndarray[Any, Any]:
    try:
        grid = np.array(list(ranks) if isinstance(ranks, range) else ranks)
    except ValueError:
        raise PlacementError(f"{what}: the rows of a mesh must have equal lengths; got ranks={ranks!r}") from None
    if grid.dtype.kind not in "iu" or not grid.size:
        raise PlacementError(f"{what}: ranks must be process numbers, for example [0, 1] or [[0, 1], [2, 3]]; got {ranks!r}")
    return grid.reshape(1) if grid.ndim == 0 else grid


def _check(grid: np.ndarray[Any, Any], what: str) -> None:
    ranks = grid.ravel().tolist()
    twice = sorted({rank for rank in ranks if ranks.count(rank) > 1})
    if twice:
        raise PlacementError(f"{what}: rank {twice[0]} occurs twice in {grid.tolist()}; list each rank once")
    size = world_size()
    beyond = [rank for rank in ranks if not 0 <= rank < size]
    if beyond:
        there = "this program runs as one process, rank 0" if size == 1 else f"there are the ranks 0 to {size - 1}"
        raise PlacementError(f"{what}: rank {beyond[0]} of {grid.tolist()} does not exist; {there}. {_how_to_start(max(ranks) + 1)}")


def _how_to_start(ranks: int) -> str:
    """Return commands that start this program with this many ranks."""
    script = Path(sys.argv[0]).name if sys.argv[0].endswith(".py") else "script.py"
    return f"Start {ranks} ranks: mpiexec -n {ranks} python {script}, or: jobflow launch --nproc_per_node {ranks} {script}"


class sbp:
    """The layouts of a tensor along a dimension of the mesh.

    They are `sbp.split(dim)`, `sbp.broadcast`, `sbp.partial_sum`, `sbp.partial_max` and `sbp.partial_min`.

    Examples:
        >>> x = flow.ones(4, placement=flow.placement.all("cpu"), sbp=flow.sbp.split(0))
        >>> x.sbp
        (jobflow.sbp.split(dim=0),)
        >>> (x + flow.ones_like(x)).sbp == x.sbp
        True
    """

    sbp = Sbp
    broadcast = layout.B
    partial_sum = layout.P
    partial_max = Partial(MAX)
    partial_min = Partial(MIN)

    @staticmethod
    def split(dim: int | None = None, *, axis: int | None = None) -> Split:
        """Return the layout with one balanced piece along `dim` per rank; `axis` is the older name of `dim`."""
        number = dim if axis is None else axis
        if type(number) is not int or not 0 <= number < MOST_AXES or (dim is not None and axis is not None):
            raise SbpError(f"sbp.split at {user_line()}: got dim={dim!r}, axis={axis!r}; pass one of them, from 0 to {MOST_AXES - 1}")
        return layout.S(number)


def sbp_tuple(sbp: Any, where: Placement, what: str, ndim: int | None = None) -> tuple[Sbp, ...]:
    """Return one sbp per dimension of the mesh, from a list, or from a single sbp for a mesh of one dimension.

    Raises: SbpError for another object, another number of entries, or an axis that a tensor of `ndim` axes does not have.
    """
    each = tuple(sbp) if isinstance(sbp, list | tuple) else (sbp,)
    for one in each:
        if not isinstance(one, Split | Broadcast | Partial):
            raise SbpError(f"{what}: sbp must consist of sbp.split(dim), sbp.broadcast and sbp.partial_sum; got {sbp!r}")
        if ndim is not None and isinstance(one, Split) and one.axis >= ndim:
            axes = f"the axes 0 to {ndim - 1}" if ndim else "no axes"
            raise SbpError(f"{what}: {one!r} names axis {one.axis}, but the tensor has {axes}")
    if len(each) != len(where.mesh):
        raise SbpError(
            f"{what}: {len(each)} entries {list(each)} for {placement.of(where)!r}, whose mesh has {len(where.mesh)} dimensions; "
            f"pass one per dimension"
        )
    return each
