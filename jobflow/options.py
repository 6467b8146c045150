"""`flow.config` and `flow.env`: options of the session and of the environment, called before the first job runs.

An option is a row of a table: the exact type of its value and, if jobflow does something with it, the field of `Settings` or
`EnvSettings` that keeps it.  The others are accepted, kept under their name, and say once that they mean nothing here.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import jobflow.scope as scope
from jobflow.errors import ConfigError, did_you_mean, user_line
from jobflow.notices import notice
from jobflow.placements import placement, world_size
from jobflow.runtime.world import rendezvous, variables
from jobflow.runtime.world.variables import default_client

CONV_ALGORITHMS = ("auto", "direct", "winograd")
CLIENTS = ("single", "multi")


def told_devices() -> int | None:
    """The number of devices that the environment asks for, if it does."""
    return variables.number(os.environ, variables.DEVICES, 1) if os.environ.get(variables.DEVICES) else None


@dataclass
class Settings:
    """What `flow.config` was told; owned by the session, which sets `started` once the values are in use."""

    #: None where nothing was said, and no JOBFLOW_DEVICES
    gpu_device_num: int | None = None
    cpu_device_num: int | None = field(default_factory=told_devices)
    machine_num: int = 1
    enable_legacy_model_io: bool = False
    enable_debug_mode: bool = False
    #: how convolutions are computed: "auto", "direct" or "winograd"
    conv_algorithm: str = "auto"
    #: of all random numbers that have no seed of their own
    seed: int | None = None
    #: whether variables that the ranks of a node hold whole are stored there once, each rank updating its part
    share_variables: bool = True
    #: for how many shapes of arguments one job, or one graph, stays compiled
    compiled_shapes: int = 16
    #: options that mean nothing here
    ignored: dict[str, Any] = field(default_factory=dict)
    started: bool = False


@dataclass
class EnvSettings:
    """What `flow.env` was told; `started` once ranks know each other."""

    #: "single": rank 0 runs the program; "multi": every rank does, which is the default where no mpiexec started them
    client: str = field(default_factory=default_client)
    machines: tuple[dict[str, Any], ...] = ()
    ctrl_port: int | None = None
    log_dir: str | None = None
    #: options that mean nothing here
    ignored: dict[str, Any] = field(default_factory=dict)
    started: bool = False


@dataclass(frozen=True)
class _Option:
    kind: type
    default: Any = None
    #: False if jobflow does nothing with it
    used: bool = False
    choices: tuple[str, ...] = ()
    least: int | None = None


_BOOL, _TRUE, _INT, _TEXT = _Option(bool), _Option(bool, True), _Option(int), _Option(str)
_FALSE = _Option(bool, False)

_CONFIG: dict[str, _Option] = {
    "gpu_device_num": _Option(int, used=True, least=0),
    "cpu_device_num": _Option(int, used=True, least=1),
    "machine_num": _Option(int, used=True, least=1),
    "enable_legacy_model_io": _Option(bool, True, used=True),
    "enable_debug_mode": _Option(bool, True, used=True),
    "compiled_shapes": _Option(int, used=True, least=1),
    "conv_algorithm": _Option(str, used=True, choices=CONV_ALGORITHMS),
    "seed": _Option(int, used=True, least=0),
    "share_variables": _Option(bool, True, used=True),
    "load_library": _TEXT,
    "load_library_now": _TEXT,
    "enable_model_io_v2": _BOOL,
    "nccl_use_compute_stream": _FALSE,
    "use_rdma": _TRUE,
    "disable_group_boxing_by_dst_parallel": _FALSE,
    "enable_tensor_float_32_compute": _TRUE,
    "collect_act_event": _TRUE,
    "comm_net_worker_num": _INT,
    "compute_thread_pool_size": _INT,
    "enable_mem_chain_merge": _TRUE,
    "enable_numa_aware_cuda_malloc_host": _TRUE,
    "max_mdsave_worker_num": _INT,
    "persistence_buf_byte": _INT,
    "rdma_mem_block_mbyte": _INT,
    "rdma_recv_msg_buf_mbyte": _INT,
    "reserved_device_mem_mbyte": _INT,
    "reserved_host_mem_mbyte": _INT,
    "save_downloaded_file_to_local_fs": _TRUE,
    "thread_enable_local_message_queue": _BOOL,
    "collective_boxing.enable_fusion": _TRUE,
    "collective_boxing.nccl_enable_all_to_all": _BOOL,
    "collective_boxing.nccl_enable_mixed_fusion": _BOOL,
    "collective_boxing.nccl_fusion_all_gather": _BOOL,
    "collective_boxing.nccl_fusion_all_reduce": _BOOL,
    "collective_boxing.nccl_fusion_all_reduce_use_buffer": _BOOL,
    "collective_boxing.nccl_fusion_broadcast": _BOOL,
    "collective_boxing.nccl_fusion_max_ops": _INT,
    "collective_boxing.nccl_fusion_reduce": _BOOL,
    "collective_boxing.nccl_fusion_reduce_scatter": _BOOL,
    "collective_boxing.nccl_fusion_threshold_mb": _INT,
    "collective_boxing.nccl_num_streams": _INT,
    "collective_boxing.num_callback_threads": _INT,
}
_ENV: dict[str, _Option] = {
    "client": _Option(str, used=True, choices=CLIENTS),
    "ctrl_port": _Option(int, used=True, least=1),
    "log_dir": _Option(str, used=True),
    "data_port": _INT,
    "grpc_use_no_signal": _TRUE,
    "logbuflevel": _INT,
    "logtostderr": _INT,
}


class _Options:
    """Options of one table as callables: ``options.gpu_device_num(2)`` stores 2 and returns True, or False if it comes too late."""

    def __init__(self, owner: str, table: dict[str, _Option], settings: Callable[[], Any], section: str = "") -> None:
        self._owner = owner
        self._table = table
        self._settings = settings
        self._section = section

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        full = self._section + name
        if full in self._table:
            return self._setter(full)
        if any(known.startswith(f"{full}.") for known in self._table):
            return _Options(self._owner, self._table, self._settings, f"{full}.")
        legal = {known.removeprefix(self._section).partition(".")[0] for known in self._table if known.startswith(self._section)}
        raise ConfigError(f"{self._owner}.{full} at {user_line()}: there is no such option{did_you_mean(name, {*legal, *_methods(self)})}")

    def __dir__(self) -> list[str]:
        return sorted({*super().__dir__(), *(known.removeprefix(self._section) for known in self._table if known.startswith(self._section))})

    def _setter(self, full: str) -> Callable[..., bool]:
        option = self._table[full]

        def set_option(val: Any = option.default) -> bool:
            self._check(full, option, val)
            with scope.lock():
                return self._store(full, option, val)

        return set_option

    def _check(self, full: str, option: _Option, value: Any) -> None:
        what = f"{self._owner}.{full} at {user_line()}"
        kind: Any = type(value)
        if kind is not option.kind:  # a bool is no int here
            raise ConfigError(f"{what}: the value must be of type {option.kind.__name__}; got {value!r}")
        if option.choices and value not in option.choices:
            raise ConfigError(f"{what}: the value must be one of {', '.join(option.choices)}; got {value!r}{did_you_mean(value, option.choices)}")
        if option.least is not None and value < option.least:
            raise ConfigError(f"{what}: the value must be at least {option.least}; got {value}")

    def _store(self, full: str, option: _Option, value: Any) -> bool:
        settings = self._settings()
        if settings.started:
            notice(f"{self._owner}.{full}({value!r}) at {user_line()} comes too late and changes nothing: call it before the first job runs")
            return False
        if full in ("gpu_device_num", "cpu_device_num") and value and (told := told_devices()) not in (None, value):
            notice(f"{self._owner}.{full}({value!r}) at {user_line()}: there are {told} devices, since {variables.DEVICES}={told}")
            value = told
        if option.used:
            setattr(settings, full, value)
        else:
            notice(f"{self._owner}.{full} means nothing here and is ignored")
            settings.ignored[full] = value
        return True


def _methods(options: object) -> set[str]:
    return {name for name in vars(type(options)) if not name.startswith("_")}


class ConfigOptions(_Options):
    """`flow.config`: ``config.gpu_device_num(2)``, ``config.conv_algorithm("direct")``, ``config.collective_boxing...``."""

    def __init__(self, settings: Callable[[], Settings]) -> None:
        super().__init__("config", _CONFIG, settings)

    def legacy_model_io_enabled(self) -> bool:
        """What `enable_legacy_model_io` was set to."""
        enabled: bool = self._settings().enable_legacy_model_io
        return enabled


class EnvOptions(_Options):
    """`flow.env`: ``env.client("multi")``, ``env.machine([{"addr": "192.168.1.1"}])``, ``env.init()``.

    `resource` gives the settings of `flow.config`; `start` starts the environment and is called by `init`.
    """

    def __init__(
        self, settings: Callable[[], EnvSettings], resource: Callable[[], Settings] = Settings, start: Callable[[], object] | None = None
    ) -> None:
        super().__init__("env", _ENV, settings)
        self._resource = resource
        self._start = start

    def init(self) -> bool:
        """Start the environment now rather than at its first use; False if it had been started."""
        with scope.lock():
            settings = self._settings()
            if settings.started:
                notice("env.init() comes too late and changes nothing: the environment has started")
                return False
            if self._start is not None:
                self._start()
            settings.started = True
            return True

    @staticmethod
    def get_rank() -> int:
        """The number of this process among those that run the program."""
        eager = scope.current().root.eager
        return variables.rank() if eager is None else int(eager.rank.index)

    @staticmethod
    def get_world_size() -> int:
        """How many processes run the program."""
        return world_size()

    @staticmethod
    def get_local_rank() -> int:
        """The number of this process on its machine."""
        return rendezvous.local_rank()

    @staticmethod
    def get_node_size() -> int:
        """How many machines the processes run on."""
        return rendezvous.node_size()

    @staticmethod
    def all_device_placement(device_type: str) -> placement:
        """All ranks there are."""
        return placement.all(device_type)

    def machine(self, *val: Any) -> bool:
        """The machines of the job, the first of them the one whose program gives the orders; recorded, since mpiexec says where ranks are."""
        listed = val[0] if len(val) == 1 and isinstance(val[0], list | tuple) else val
        machines = tuple({"addr": entry} if isinstance(entry, str) else dict(entry) if isinstance(entry, dict) else {} for entry in listed)
        what = f"env.machine at {user_line()}"
        if not machines or not all(type(machine.get("addr")) is str for machine in machines):
            raise ConfigError(f'{what}: pass a list of dicts with the key "addr", or addresses; got {list(listed)!r}')
        addresses = [machine["addr"] for machine in machines]
        if len(set(addresses)) != len(addresses):
            raise ConfigError(f"{what}: addresses must differ; got {', '.join(addresses)}")
        if self._settings().started:
            notice(f"{what} comes too late and changes nothing: call it before the first job runs")
            return False
        self._settings().machines = machines
        if len(machines) > 1:
            notice("env.machine only records the machines: start the program on them with mpiexec")
        return True

    def init_bootstrap_confs(self, *val: Any, **kargs: Any) -> bool:
        """Accepted: ranks find each other through mpiexec."""
        notice("env.init_bootstrap_confs means nothing here and is ignored")
        return not self._settings().started

    def current_resource(self) -> Settings:
        """A copy of what `flow.config` was told."""
        return replace(self._resource())
