"""The choice of the transport of tensors between ranks on GPUs, with its reason.

NCCL is used if each rank has a GPU of its own, or if NCCL supports several ranks per GPU and this is enabled.  Otherwise ranks of one machine may
open each other's GPU memory, if this is enabled and a test succeeds.  Otherwise tensors are copied through page-locked memory of the hosts.  All
ranks choose the same transport, because they compare the same facts.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any, NamedTuple

from jobflow.core.notices import notice
from jobflow.runtime.comm.communicator import Communicator
from jobflow.runtime.comm.nccl_communicator import NcclCommunicator
from jobflow.runtime.comm.peer_communicator import PeerCommunicator
from jobflow.runtime.comm.staged_communicator import StagedCommunicator
from jobflow.runtime.comm.waits import named
from jobflow.runtime.device.device import Device

#: the first version of NCCL that supports several ranks on one GPU, and the variable of the environment that enables it
SHARED_GPU, SHARED_GPU_SETTING = 23000, "NCCL_MULTI_RANK_GPU_ENABLE"

#: the variable of the environment that enables windows in GPU memory
WINDOWS_SETTING = "JOBFLOW_GPU_IPC"

INSTALL = 'pip install "nvidia-nccl-cu13>=2.27.7,<3"'


class RankDevice(NamedTuple):
    """The facts of a rank's device on which the choice depends."""

    tag: str
    #: the machine and the address of the GPU; "" for the host
    gpu: str
    #: the version of NCCL; 0 without NCCL
    nccl: int
    #: True if the rank permits NCCL to use one GPU for several ranks
    shares: bool
    #: True if the rank permits its peers to open its GPU memory
    opens: bool = False


class Transport(NamedTuple):
    """A transport, "nccl", "windows", "host" or "none", and the reason of its choice."""

    kind: str
    reason: str

    def __str__(self) -> str:
        names = {"nccl": "NCCL", "windows": "windows in GPU memory", "host": "page-locked memory of the hosts", "none": "no transport"}
        return f"{names[self.kind]}: {self.reason}"


def facts(device: Device) -> RankDevice:
    """Return the facts of this rank's device."""
    if device.tag == "cpu":
        return RankDevice("cpu", "", 0, False)
    if (setting := os.environ.get(WINDOWS_SETTING, "0")) not in ("", "0", "1"):
        notice(f"{WINDOWS_SETTING}={setting} has no effect: set it to 0 or 1")
    return RankDevice("gpu", device.identity, device.nccl_version, *(os.environ.get(name) == "1" for name in (SHARED_GPU_SETTING, WINDOWS_SETTING)))


def choose(devices: Sequence[RankDevice]) -> Transport:
    """Return the transport between these ranks."""
    transport = nccl_or_hosts(devices, range(len(devices)))
    machines = {device.gpu.rpartition(" ")[0] for device in devices}
    if transport.kind == "host" and len(machines) == 1 and all(device.opens for device in devices):
        return Transport("windows", f"{transport.reason}, and {WINDOWS_SETTING}=1 enables windows in GPU memory")
    return transport


def nccl_or_hosts(devices: Sequence[RankDevice], ranks: Sequence[int]) -> Transport:
    """Return the transport between `ranks`, which have these devices, without windows in GPU memory."""
    hosts = [rank for rank, device in zip(ranks, devices, strict=True) if device.tag == "cpu"]
    if len(hosts) == len(devices):
        return Transport("none", "no tensors are exchanged between GPUs")
    if hosts:
        return Transport("host", f"{named(hosts)} {'have' if len(hosts) > 1 else 'has'} no GPU")
    without = [rank for rank, device in zip(ranks, devices, strict=True) if not device.nccl]
    if without:
        return Transport("host", f"NCCL is not installed on {named(without)}; install it with: {INSTALL}")
    versions = sorted({device.nccl for device in devices})
    if len(versions) > 1:
        return Transport("host", f"the ranks have different versions of NCCL ({', '.join(map(version_text, versions))})")
    users: dict[str, list[int]] = {}
    for rank, device in zip(ranks, devices, strict=True):
        users.setdefault(device.gpu, []).append(rank)
    sharing = next((several for several in users.values() if len(several) > 1), None)
    if sharing is None:
        return Transport("nccl", f"each rank has its own GPU, NCCL {version_text(versions[0])}")
    if versions[0] >= SHARED_GPU and all(device.shares for device in devices):
        return Transport("nccl", f"{named(sharing)} share a GPU, which {SHARED_GPU_SETTING}=1 enables")
    return Transport("host", f"{named(sharing)} share a GPU")


def version_text(version: int) -> str:
    """Return a version number of NCCL as text, such as "2.28.9"."""
    return f"{version // 10000}.{version % 10000 // 100}.{version % 100}"


def device_communicator(inner: Communicator, device: Device, devices: Sequence[RankDevice]) -> Communicator:
    """Return the communicator of a rank on `device`; `devices` are the facts of all ranks."""
    transport = choose(devices)
    note_hosts(inner, transport)
    if device.tag == "cpu" or transport.kind == "none":
        return inner
    if transport.kind == "nccl":
        return NcclCommunicator(inner, device)
    if transport.kind == "windows":
        return PeerCommunicator(inner, device)
    return host_communicator(inner, device, all(device.tag == "gpu" for device in devices))


def note_hosts(comm: Communicator, transport: Transport) -> None:
    """Print a notice on the first rank if tensors of GPUs are exchanged through the hosts."""
    if comm.rank == 0 and comm.size > 1 and transport.kind == "host":
        notice(f"GPUs exchange tensors through the host: {transport.reason}")


def host_communicator(inner: Communicator, device: Any, divide: bool = False) -> Communicator:
    """Return the communicator of a rank on a GPU through the memory of the hosts; with `divide`, all ranks are on GPUs, and divide arrays."""
    return StagedCommunicator(inner, device, divide=divide)
