"""Options that are set by calls: `flow.config` and `flow.env`, and their common base.

An option is a row of a table: its accepted values and, if it has an effect, the field that stores it. The options in `IGNORED` are
accepted with one notice. Unknown names are errors with a suggestion.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import field, fields, replace
from typing import Any

import jobflow.core.scope as scope
from jobflow.core.dataclass import dataclass
from jobflow.core.errors import ConfigError, VariableError, did_you_mean, user_line
from jobflow.core.extras import optional
from jobflow.core.notices import notice
from jobflow.core.types import DType
from jobflow.engine.anomaly_switch import anomalies
from jobflow.engine.placements import placement, world_size
from jobflow.graph.strategy import Strategy
from jobflow.kernels.machine_class import own_class
from jobflow.kernels.target import SETTINGS, Checks, Computing
from jobflow.runtime.world import environment as variables
from jobflow.runtime.world.environment import default_client

#: options of older programs without an effect here; the key of a row is the accepted type, and the default of a call without an argument
IGNORED: dict[str, dict[str, str]] = {
    "config": {
        "bool": """enable_model_io_v2 thread_enable_local_message_queue collective_boxing.nccl_enable_all_to_all
            collective_boxing.nccl_enable_mixed_fusion collective_boxing.nccl_fusion_all_gather collective_boxing.nccl_fusion_all_reduce
            collective_boxing.nccl_fusion_all_reduce_use_buffer collective_boxing.nccl_fusion_broadcast collective_boxing.nccl_fusion_reduce
            collective_boxing.nccl_fusion_reduce_scatter""",
        "bool = True": """use_rdma collect_act_event enable_mem_chain_merge enable_numa_aware_cuda_malloc_host
            save_downloaded_file_to_local_fs collective_boxing.enable_fusion""",
        "bool = False": "nccl_use_compute_stream disable_group_boxing_by_dst_parallel",
        "int": """comm_net_worker_num compute_thread_pool_size max_mdsave_worker_num persistence_buf_byte rdma_mem_block_mbyte
            rdma_recv_msg_buf_mbyte reserved_device_mem_mbyte reserved_host_mem_mbyte collective_boxing.nccl_fusion_max_ops
            collective_boxing.nccl_fusion_threshold_mb collective_boxing.nccl_num_streams collective_boxing.num_callback_threads""",
        "str": "load_library load_library_now",
    },
    "env": {"int": "data_port logbuflevel logtostderr", "bool = True": "grpc_use_no_signal"},
    "function_config": {
        "bool = True": """prune_parallel_cast_ops prune_cast_to_static_shape_ops prune_amp_white_identity_ops
            do_parallel_cast_before_widening_type_cast enable_fuse_add_to_output enable_fuse_cast_scale enable_fuse_model_update_ops
            enable_gradients_stats_aggregation enable_cudnn_fused_normalization_add_relu enable_cudnn cudnn_conv_heuristic_search_algo
            cudnn_conv_use_deterministic_algo_only cudnn_conv_enable_true_half enable_true_half_config_when_conv cudnn_conv_enable_pseudo_half
            enable_cudnn_conv_pseudo_half enable_reused_mem enable_inplace use_xla_jit use_tensorrt allow_cpu_return_op
            enable_inplace_in_reduce_struct enable_nccl use_nccl_inter_node_communication use_boxing_v2
            enable_all_reduce_group all_reduce_fp16 disable_all_reduce_sequence enable_keep_header_only enable_float_compute_for_half_gemm
            use_memory_allocation_algorithm_v2 enable_ssp tensorrt.use_fp16 tensorrt.use_int8
            static_mem_alloc_policy_white_list.policy_mem_size_first static_mem_alloc_policy_white_list.policy_mutual_exclusion_first
            static_mem_alloc_policy_white_list.policy_time_line static_mem_alloc_algo_white_list.show""",
        "any": """cudnn_buf_limit_mbyte cudnn_conv_force_fwd_algo cudnn_conv_force_bwd_data_algo cudnn_conv_force_bwd_filter_algo
            concurrency_width exp_run_conf all_reduce_group_num all_reduce_lazy_ratio all_reduce_group_min_mbyte all_reduce_group_size_warmup
            non_distributed_optimizer_group_size_mbyte tensorrt.int8_calibration
            static_mem_alloc_policy_white_list.has
            static_mem_alloc_policy_white_list.add static_mem_alloc_policy_white_list.remove""",
    },
    "nn.Graph": {
        "any": """allow_fuse_model_update_ops allow_fuse_add_to_output allow_fuse_cast_scale set_outputs_buffer_size enable_multi_tensor_update
            enable_fused_model_update_cast enable_straighten_algorithm enable_compress_memory enable_choose_best_memory_allocation
            enable_cudnn_conv_heuristic_search_algo enable_cudnn_fused_normalization_add_relu enable_auto_parallel
            enable_auto_parallel_ignore_user_sbp_config enable_auto_parallel_trunk_algo enable_auto_parallel_sbp_collector
            set_auto_parallel_computation_cost_ratio set_auto_parallel_wait_time set_auto_memory_strategy allow_auto_memory"""
    },
}


def devices_from_launcher() -> int | None:
    """Return the number of devices that the environment sets, or None."""
    return variables.number(os.environ, variables.DEVICES, 1) if os.environ.get(variables.DEVICES) else None


@contextmanager
def _of_variable() -> Iterator[None]:
    """Raise a ConfigError of the block as a VariableError, because the invalid value is in an environment variable."""
    try:
        yield
    except ConfigError as error:
        raise VariableError(str(error)) from None


def kernels_at_first() -> str:
    """Return the default of the option `kernels`.

    Raises: VariableError if the environment sets an unknown value, or a value that needs packages that are not installed.
    """
    configured = os.environ.get(variables.KERNELS, "").strip() or "auto"
    with _of_variable():
        Option(choices=tuple(SETTINGS)).check(variables.KERNELS, configured)
        check_kernels(configured, f"{variables.KERNELS}={configured}")
    own_class()
    return configured


#: formats of checkpoints: jobflow's, and directories of the legacy system
CHECKPOINT_FORMATS = ("jobflow", "oneflow")


def checkpoint_format_at_first() -> str:
    """Return the default of the option `checkpoint_format`; raise VariableError if the environment sets an unknown value."""
    configured = os.environ.get(variables.CHECKPOINTS, "").strip() or CHECKPOINT_FORMATS[0]
    with _of_variable():
        Option(choices=CHECKPOINT_FORMATS).check(variables.CHECKPOINTS, configured)
    return configured


def _is_blocking() -> bool:
    """Return True if CUDA_LAUNCH_BLOCKING is an integer other than 0; CUDA reads it as C's atoi does."""
    number = re.match(r"\s*[+-]?\d+", os.environ.get(variables.BLOCKING, ""))
    return number is not None and int(number[0]) != 0


def debug_at_first() -> str:
    """Return the default of the option `debug`; raise VariableError if the environment sets an unknown value."""
    configured = os.environ.get(variables.DEBUG, "").strip() or ("sync" if _is_blocking() else "off")
    with _of_variable():
        Option(choices=("off", "sync")).check(variables.DEBUG, configured)
    return configured


#: default of an option that requires a value
NEEDED: Any = object()
#: names of types in messages
_KINDS: dict[type, str] = {
    int: "an int",
    float: "a float",
    bool: "a bool",
    str: "a text",
    dict: "a dict",
    DType: "an element type such as jobflow.float32",
    scope.consistent_view: "scope.consistent_view()",
    scope.mirrored_view: "scope.mirrored_view()",
    scope.placement: "scope.placement(tag, devices)",
    Strategy: "a strategy such as strategies.data_parallel()",
}


@dataclass(frozen=True)
class Option:
    """An option: its accepted types (any if empty), choices, minimum and maximum, and the default of a call without an argument."""

    kinds: tuple[type, ...] = ()
    default: Any = NEEDED
    ignored: bool = False
    choices: tuple[str, ...] = ()
    least: int | None = None
    most: int | None = None
    #: current name of an old option, whose use prints a notice
    now: str = ""
    #: True if it may be set after the first job has run
    late: bool = False

    def check(self, what: str, value: Any) -> None:
        """Raise ConfigError unless the value is accepted; a bool is not accepted as a number."""
        if value is NEEDED:
            raise ConfigError(f"{what}: called without a value; pass a value")
        is_kind = isinstance(value, self.kinds) and not isinstance(value, type) and (not isinstance(value, bool) or bool in self.kinds)
        if self.kinds and not is_kind:
            raise ConfigError(f"{what}: the value must be {' or '.join(_KINDS[kind] for kind in self.kinds)}; got {value!r}")
        if self.choices and not (isinstance(value, str) and value in self.choices):
            near = did_you_mean(value, self.choices) if isinstance(value, str) else ""
            raise ConfigError(f"{what}: the value must be one of {', '.join(self.choices)}; got {value!r}{near}")
        if self.least is not None and not value >= self.least:
            raise ConfigError(f"{what}: the value must be at least {self.least}; got {value}")
        if self.most is not None and not value <= self.most:
            raise ConfigError(f"{what}: the value must be at most {self.most}; got {value}")


def ignored_options(owner: str) -> dict[str, Option]:
    """Return the options of `owner`, a key of `IGNORED` such as "config", that are accepted without an effect."""
    kinds = {"bool": (bool,), "int": (int,), "str": (str,), "any": ()}
    defaults = {"": None, "True": True, "False": False}
    options: dict[str, Option] = {}
    for accepted, names in IGNORED[owner].items():
        kind, _, default = accepted.partition(" = ")
        options |= dict.fromkeys(names.split(), Option(kinds[kind], defaults[default], ignored=True))
    return options


def notice_ignored(owner: str, name: str) -> None:
    notice(f"{owner}.{name} has no effect and is ignored")


def unknown(owner: str, full: str, name: str, legal: Iterable[str]) -> ConfigError:
    """Return the error for an unknown option, with a suggestion from the names `legal`."""
    return ConfigError(f"{owner}.{full} at {user_line()}: there is no such option{did_you_mean(name, legal)}")


class Names:
    """An object whose attributes are the options in `table`; the name "a.b" is option b of section a.

    `attribute` returns the value of the attribute for a full name such as "a.b".
    """

    def __init__(self, owner: str, table: Mapping[str, Option], attribute: Callable[[str], Any], section: str = "") -> None:
        self._owner, self._table, self._attribute, self._section = owner, table, attribute, section

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        full = self._section + name
        if full in self._table:
            return self._attribute(full)
        if any(known.startswith(f"{full}.") for known in self._table):
            return Names(self._owner, self._table, self._attribute, f"{full}.")
        raise unknown(self._owner, full, name, {known.partition(".")[0] for known in dir(self)})

    def __dir__(self) -> list[str]:
        own = {name for name in vars(type(self)) if not name.startswith("_")}
        return sorted(own | {known.removeprefix(self._section) for known in self._table if known.startswith(self._section)})


def option(initial: Any, *kinds: type, **more: Any) -> Any:
    """Declare a dataclass field that an option sets; `initial` is its default, or a function that returns the default."""
    start: dict[str, Any] = {"default_factory" if callable(initial) else "default": initial}
    return field(**start, metadata={"option": Option(kinds, **{"default": None, **more})})


@dataclass
class Settings:
    """Values set by `flow.config`; owned by the session, which sets `started` to True when its world starts."""

    #: None if neither the program nor JOBFLOW_DEVICES sets a number
    gpu_device_num: int | None = option(None, int, least=0)
    cpu_device_num: int | None = option(devices_from_launcher, int, least=1)
    machine_num: int = option(1, int, least=1)
    enable_legacy_model_io: bool = option(False, bool, default=True)
    enable_debug_mode: bool = option(False, bool, default=True)
    #: algorithm of convolutions
    conv_algorithm: str = option("auto", str, choices=("auto", "direct", "winograd"))
    #: kernel tier, see `kernels.target`; a change recompiles existing programs at their next call
    kernels: str = option(kernels_at_first, str, choices=tuple(SETTINGS), late=True)
    #: "highest": products of float32 on GPUs have full precision; "high" and "medium": their factors are rounded to TF32
    matmul_precision: str = option("highest", str, choices=("highest", "high", "medium"), late=True)
    #: "sync": the host waits for a GPU after each call, so that the error of a kernel names its instruction and line
    debug: str = option(debug_at_first, str, choices=("off", "sync"), default="sync", late=True)
    #: set by `use_deterministic_algorithms`
    deterministic: bool = False
    #: cache directory of files that can be regenerated, such as compiled loops; None: $JOBFLOW_CACHE, or jobflow in ~/.cache
    cache_folder: str | None = option(None, str)
    #: format that `checkpoint.save` and `train.CheckPoint` write; all formats can be read
    checkpoint_format: str = option(checkpoint_format_at_first, str, choices=CHECKPOINT_FORMATS, late=True)
    #: seed of random operations without a separate seed
    seed: int | None = option(None, int, least=0)
    #: True if replicated variables are stored once per node, and each rank updates its part
    share_variables: bool = option(True, bool, default=True)
    #: number of argument shapes for which a job or graph stays compiled
    compiled_shapes: int = option(16, int, least=1)
    #: values of options without an effect
    ignored: dict[str, Any] = field(default_factory=dict)
    started: bool = False
    #: True if jobs are eager
    eager: bool = False

    @property
    def computing(self) -> Computing:
        """The settings on which the kernels of a program depend."""
        checks = Checks(self.debug == "sync", anomalies.enabled and anomalies.check_nan)
        return Computing(self.kernels, self.matmul_precision, self.deterministic, checks)


@dataclass
class EnvSettings:
    """Values set by `flow.env`; `started` is True after the ranks are connected."""

    #: "single": rank 0 runs the program; "multi": every rank does, the default unless mpiexec started them
    client: str = option(default_client, str, choices=("single", "multi"))
    ctrl_port: int | None = option(None, int, least=1)
    log_dir: str | None = option(None, str)
    machines: tuple[dict[str, Any], ...] = ()
    #: values of options without an effect
    ignored: dict[str, Any] = field(default_factory=dict)
    started: bool = False


def _table(owner: str, settings: type) -> dict[str, Option]:
    """Return the options of `owner`, "config" or "env", by name: the fields of the class `settings`, and the ignored options."""
    return {one.name: one.metadata["option"] for one in fields(settings) if one.metadata} | ignored_options(owner)


class _Setters(Names):
    """Base class of options that are set by calls: ``options.gpu_device_num(2)`` stores 2 and returns True.

    After the start, a call stores nothing, prints a notice and returns False, unless the option is `late`.
    """

    def __init__(self, owner: str, table: dict[str, Option], settings: Callable[[], Any]) -> None:
        super().__init__(owner, table, self._setter)
        self._settings = settings

    def _setter(self, full: str) -> Callable[..., bool]:
        option = self._table[full]

        def set_option(val: Any = option.default) -> bool:
            option.check(f"{self._owner}.{full} at {user_line()}", val)
            if full == "kernels":
                check_kernels(val, f"{self._owner}.{full}({val!r}) at {user_line()}")
            with scope.lock():
                stored = self._store(full, option, val)
                if full in ("kernels", "matmul_precision", "debug"):
                    forget_prepared()
                return stored

        return set_option

    def _store(self, full: str, option: Option, value: Any) -> bool:
        settings = self._settings()
        if settings.started and not option.late:
            notice(f"{self._owner}.{full}({value!r}) at {user_line()} comes too late and has no effect: call it before the first job runs")
            return False
        if full in ("gpu_device_num", "cpu_device_num") and value and (configured := devices_from_launcher()) not in (None, value):
            notice(f"{self._owner}.{full}({value!r}) at {user_line()}: there are {configured} devices, since {variables.DEVICES}={configured}")
            value = configured
        if option.ignored:
            notice_ignored(self._owner, full)
            settings.ignored[full] = value
        else:
            setattr(settings, full, value)
        return True


def forget_prepared() -> None:
    """Forget the kernels of eager operations, because a setting on which they depend has changed."""
    eager = scope.current().root.eager
    if eager is not None:
        for owner in (eager, *eager.gpus.values()):
            owner.prepared.clear()


def check_kernels(setting: str, what: str) -> None:
    """Raise ConfigError if the value `setting` of the option `kernels` needs packages that are not installed."""
    if setting == "llvm":
        try:
            optional("llvmlite", what)
        except ModuleNotFoundError as error:
            raise ConfigError(f'{error}; use "numpy", which needs no other package') from None


class ConfigOptions(_Setters):
    """The options of `flow.config`: ``config.gpu_device_num(2)``, ``config.kernels("llvm")``, ``config.collective_boxing...``."""

    def __init__(self, settings: Callable[[], Settings]) -> None:
        super().__init__("config", _table("config", Settings), settings)

    def enable_tensor_float_32_compute(self, val: bool = True) -> bool:
        """Set `matmul_precision` to "high" for True, and to "highest" for False."""
        Option((bool,)).check(f"config.enable_tensor_float_32_compute at {user_line()}", val)
        return bool(self.matmul_precision("high" if val else "highest"))

    def legacy_model_io_enabled(self) -> bool:
        """Return the value set by `enable_legacy_model_io`."""
        return self._settings().enable_legacy_model_io


class EnvOptions(_Setters):
    """The options of `flow.env`: ``env.client("multi")``, ``env.machine([{"addr": "192.168.1.1"}])``, ``env.init()``.

    `resource` returns the settings of `flow.config`; `start`, called by `init`, starts the environment.
    """

    def __init__(
        self, settings: Callable[[], EnvSettings], resource: Callable[[], Settings] = Settings, start: Callable[[], object] | None = None
    ) -> None:
        super().__init__("env", _table("env", EnvSettings), settings)
        self._resource = resource
        self._start = start

    def init(self) -> bool:
        """Start the environment; return False with a notice if it has already started."""
        with scope.lock():
            settings = self._settings()
            if settings.started:
                notice("env.init() comes too late and has no effect: the environment has started")
                return False
            if self._start is not None:
                self._start()
            settings.started = True
            return True

    @staticmethod
    def get_rank() -> int:
        """Return the rank of this process."""
        eager = scope.current().root.eager
        return variables.rank() if eager is None else int(eager.rank.index)

    @staticmethod
    def get_world_size() -> int:
        """Return the number of processes of the program."""
        return world_size()

    @staticmethod
    def get_local_rank() -> int:
        """Return the rank of this process on its machine."""
        from jobflow.runtime.world import rendezvous

        return rendezvous.local_rank()

    @staticmethod
    def get_node_size() -> int:
        """Return the number of machines of the program."""
        from jobflow.runtime.world import rendezvous

        return rendezvous.node_size()

    @staticmethod
    def all_device_placement(device_type: str) -> placement:
        """Return the placement on all ranks; `device_type` is "cpu" or "cuda".  Raises: PlacementError for an unsupported type."""
        return placement.all(device_type)

    def machine(self, *val: Any) -> bool:
        """Record the machines of the program, the first of which runs the client.

        The arguments, or one list of them, are addresses or dicts with the key "addr".  The launcher, such as mpiexec, determines where ranks run.
        Return False with a notice if the environment has started.

        Raises: ConfigError without machines, or if an address is missing or occurs twice.
        """
        listed = val[0] if len(val) == 1 and isinstance(val[0], list | tuple) else val
        machines = tuple({"addr": entry} if isinstance(entry, str) else dict(entry) if isinstance(entry, dict) else {} for entry in listed)
        what = f"env.machine at {user_line()}"
        if not machines or not all(type(machine.get("addr")) is str for machine in machines):
            raise ConfigError(f'{what}: pass a list of dicts with the key "addr", or addresses; got {list(listed)!r}')
        addresses = [machine["addr"] for machine in machines]
        if len(set(addresses)) != len(addresses):
            raise ConfigError(f"{what}: addresses must differ; got {', '.join(addresses)}")
        if self._settings().started:
            notice(f"{what} comes too late and has no effect: call it before the first job runs")
            return False
        self._settings().machines = machines
        if len(machines) > 1:
            notice("env.machine only records the machines: start the program on them with mpiexec")
        return True

    def init_bootstrap_confs(self, *val: Any, **kargs: Any) -> bool:
        """Print a notice that the option has no effect; return False if the environment has started."""
        notice("env.init_bootstrap_confs has no effect and is ignored")
        return not self._settings().started

    def current_resource(self) -> Settings:
        """Return a copy of the settings of `flow.config`."""
        return replace(self._resource())
