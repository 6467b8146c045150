"""The devices that an entry of `placement` names: a rank, or "machine:devices" such as "0:0-3"."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from jobflow.core.errors import PlacementError, counted


def ranks_of(tag: str, entry: Any, machines: int, per_machine: int, what: str) -> list[int]:
    """Return the ranks that an entry names, among machines with `per_machine` devices each; `what` names the placement in errors.

    Raises: PlacementError for another entry; for GPUs, also for a missing machine or device of one of several machines.
    """
    if type(entry) is int and entry >= 0:
        return [entry]
    match = re.fullmatch(r"@?(\d+):(\d+(?:-\d+)?(?:,\d+(?:-\d+)?)*)", entry) if isinstance(entry, str) else None
    if match is None:
        shown = f'"{entry}"' if isinstance(entry, str) else repr(entry)
        raise PlacementError(f'{what}: cannot read {shown}; write "machine:device" or "machine:first-last", for example "0:0-3"')
    machine, devices = int(match[1]), list[int]()
    for part in match[2].split(","):
        first, _, last = part.partition("-")
        devices.extend(range(int(first), int(last or first) + 1))
    if tag != "cpu":
        _check(machine, devices, machines, per_machine, f'{what}: "{entry}" names')
    return [machine * per_machine + device for device in devices]


def _check(machine: int, devices: Sequence[int], machines: int, per_machine: int, what: str) -> None:
    if machine >= machines:
        remedy = 'write "0:device" or a rank' if machines == 1 else "set config.machine_num before the first job call"
        raise PlacementError(f"{what} machine {machine}, but there {'is' if machines == 1 else 'are'} {counted(machines, 'machine')}; {remedy}")
    if machines > 1 and devices and max(devices) >= per_machine:
        each = counted(per_machine, "device")
        raise PlacementError(f"{what} device {max(devices)} of machine {machine}, but each machine has {each}; name the machine of each device")
