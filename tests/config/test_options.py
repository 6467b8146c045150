"""`flow.config` and `flow.env`."""

from __future__ import annotations

from typing import Any

import pytest

from jobflow.core import notices
from jobflow.core.errors import ConfigError, VariableError
from jobflow.engine.options import ConfigOptions, EnvOptions, EnvSettings, Settings
from jobflow.kernels.target import Checks, ProductMode, target_of

CONFIG_NAMES = """gpu_device_num enable_legacy_model_io load_library enable_debug_mode enable_model_io_v2 nccl_use_compute_stream
    collective_boxing.nccl_fusion_all_reduce_use_buffer collective_boxing.nccl_fusion_max_ops collective_boxing.nccl_fusion_threshold_mb
    collective_boxing.nccl_enable_all_to_all collective_boxing.nccl_enable_mixed_fusion collective_boxing.nccl_fusion_all_gather
    collective_boxing.nccl_fusion_reduce_scatter use_rdma cpu_device_num machine_num disable_group_boxing_by_dst_parallel
    enable_tensor_float_32_compute collect_act_event collective_boxing.enable_fusion collective_boxing.nccl_fusion_all_reduce
    collective_boxing.nccl_fusion_broadcast collective_boxing.nccl_fusion_reduce collective_boxing.nccl_num_streams
    collective_boxing.num_callback_threads comm_net_worker_num compute_thread_pool_size enable_mem_chain_merge
    enable_numa_aware_cuda_malloc_host legacy_model_io_enabled load_library_now max_mdsave_worker_num persistence_buf_byte
    rdma_mem_block_mbyte rdma_recv_msg_buf_mbyte reserved_device_mem_mbyte reserved_host_mem_mbyte save_downloaded_file_to_local_fs
    thread_enable_local_message_queue conv_algorithm seed"""
ENV_NAMES = "machine ctrl_port log_dir init current_resource data_port grpc_use_no_signal init_bootstrap_confs logbuflevel logtostderr client"


@pytest.fixture(autouse=True)
def unsaid() -> None:
    notices.forget()


def options() -> tuple[ConfigOptions, Settings]:
    settings = Settings()
    return ConfigOptions(lambda: settings), settings


def env() -> tuple[EnvOptions, EnvSettings]:
    settings = EnvSettings()
    return EnvOptions(lambda: settings), settings


def named(root: Any, name: str) -> Any:
    for part in name.split("."):
        root = getattr(root, part)
    return root


@pytest.mark.parametrize("name", CONFIG_NAMES.split())
def test_every_option_of_config_is_there(name: str) -> None:
    assert callable(named(options()[0], name))
    assert name.partition(".")[0] in {entry.partition(".")[0] for entry in dir(options()[0])}


@pytest.mark.parametrize("name", ENV_NAMES.split())
def test_every_option_of_env_is_there(name: str) -> None:
    assert callable(named(env()[0], name))


def test_what_means_something_is_stored_silently(capsys: pytest.CaptureFixture[str]) -> None:
    config, settings = options()
    assert config.gpu_device_num(2) and config.cpu_device_num(4) and config.machine_num(2)
    assert config.enable_debug_mode(True) and config.enable_legacy_model_io()
    assert config.conv_algorithm("direct") and config.kernels("reference") and config.seed(7) and config.share_variables(False)
    assert settings == Settings(2, 4, 2, True, True, "direct", "reference", seed=7, share_variables=False)
    assert config.legacy_model_io_enabled() is True
    assert capsys.readouterr() == ("", "")


def test_precision_and_determinism_choose_the_products_of_gpus() -> None:
    config, settings = options()
    assert settings.computing.target("gpu", timed=True).products == ProductMode(tf32=False, deterministic=False, timed=True)
    assert config.matmul_precision("high")
    settings.deterministic = True
    computing = settings.computing
    assert computing.target("gpu", timed=True).products == ProductMode(tf32=True, deterministic=True, timed=False)
    assert computing.target("cpu", timed=True) == target_of("cpu", settings.kernels)
    for value, precision in ((False, "highest"), (True, "high")):
        assert config.enable_tensor_float_32_compute(value) and settings.matmul_precision == precision


@pytest.mark.parametrize(
    ("environment", "expected"),
    [
        ({}, "off"),
        ({"CUDA_LAUNCH_BLOCKING": "1"}, "sync"),
        ({"CUDA_LAUNCH_BLOCKING": "0"}, "off"),
        ({"CUDA_LAUNCH_BLOCKING": "no"}, "off"),
        ({"JOBFLOW_DEBUG": "sync"}, "sync"),
    ],
)
def test_debug_setting_selects_synchronous_runs(monkeypatch: pytest.MonkeyPatch, environment: dict[str, str], expected: str) -> None:
    for name in ("CUDA_LAUNCH_BLOCKING", "JOBFLOW_DEBUG"):
        monkeypatch.delenv(name, raising=False)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    config, settings = options()
    assert settings.debug == expected and settings.computing.checks.synchronous is (expected == "sync")
    assert config.debug() and settings.computing.target("gpu", timed=True).checks == Checks(synchronous=True)
    monkeypatch.setenv("JOBFLOW_DEBUG", "fast")
    with pytest.raises(VariableError, match="JOBFLOW_DEBUG"):
        Settings()


def test_options_without_effect_print_one_notice(capsys: pytest.CaptureFixture[str]) -> None:
    config, settings = options()
    assert config.collective_boxing.nccl_fusion_threshold_mb(16)
    assert config.collective_boxing.nccl_fusion_threshold_mb(8)
    assert config.use_rdma() and config.nccl_use_compute_stream()
    assert settings.ignored == {"collective_boxing.nccl_fusion_threshold_mb": 8, "use_rdma": True, "nccl_use_compute_stream": False}
    assert capsys.readouterr().err.splitlines() == [
        "jobflow: config.collective_boxing.nccl_fusion_threshold_mb has no effect and is ignored",
        "jobflow: config.use_rdma has no effect and is ignored",
        "jobflow: config.nccl_use_compute_stream has no effect and is ignored",
    ]


@pytest.mark.parametrize(
    ("name", "value", "text"),
    [
        ("gpu_device_num", True, "must be an int; got True"),
        ("gpu_device_num", 2.0, "must be an int; got 2.0"),
        ("gpu_device_num", None, "must be an int; got None"),
        ("gpu_device_num", -1, "must be at least 0; got -1"),
        ("cpu_device_num", 0, "must be at least 1; got 0"),
        ("enable_debug_mode", 1, "must be a bool; got 1"),
        ("load_library", b"x", "must be a text; got b'x'"),
        ("conv_algorithm", "winogrod", "must be one of auto, direct, winograd; got 'winogrod'; did you mean \"winograd\"?"),
        ("collective_boxing.nccl_num_streams", "2", "must be an int; got '2'"),
    ],
)
def test_values_have_exact_types(name: str, value: Any, text: str) -> None:
    config, settings = options()
    with pytest.raises(AssertionError) as raised:
        named(config, name)(value)
    assert str(raised.value).startswith(f"config.{name} at test_options.py:")
    assert text in str(raised.value)
    assert settings == Settings()


def test_an_option_without_default_needs_a_value() -> None:
    with pytest.raises(ConfigError, match="must be an int; got None"):
        options()[0].gpu_device_num()


def test_unknown_names_are_errors_with_a_suggestion() -> None:
    config, _ = options()
    with pytest.raises(
        ConfigError, match=r'^config\.gpu_devices_num at test_options\.py:\d+: there is no such option; did you mean "gpu_device_num"\?$'
    ):
        config.gpu_devices_num(2)
    with pytest.raises(ConfigError, match=r'^config\.collective_boxing\.nccl_num_stream at .*; did you mean "nccl_num_streams"\?$'):
        config.collective_boxing.nccl_num_stream(2)
    with pytest.raises(ConfigError, match='did you mean "collective_boxing"'):
        _ = config.colective_boxing
    with pytest.raises(ConfigError, match=r'^env\.machines at .* did you mean "machine"'):
        _ = env()[0].machines
    assert not hasattr(config, "nothing_like_it")


def test_after_the_start_nothing_changes(capsys: pytest.CaptureFixture[str]) -> None:
    config, settings = options()
    settings.started = True
    assert config.gpu_device_num(2) is False
    assert config.use_rdma() is False
    assert settings == Settings(started=True)
    first = capsys.readouterr().err.splitlines()[0]
    assert first.startswith("jobflow: config.gpu_device_num(2) at test_options.py:")
    assert first.endswith("comes too late and has no effect: call it before the first job runs")


def test_env(capsys: pytest.CaptureFixture[str]) -> None:
    options_, settings = env()
    assert options_.client("multi") and options_.ctrl_port(5000) and options_.log_dir("./log")
    assert (settings.client, settings.ctrl_port, settings.log_dir) == ("multi", 5000, "./log")
    assert capsys.readouterr().err == ""
    assert options_.grpc_use_no_signal() and options_.logtostderr(0) and options_.init_bootstrap_confs("a", b=1)
    assert len(capsys.readouterr().err.splitlines()) == 3
    with pytest.raises(ConfigError, match="must be one of single, multi"):
        options_.client("both")


@pytest.mark.parametrize("options", [([{"addr": "a"}, {"addr": "b"}],), ({"addr": "a"}, {"addr": "b"}), ("a", "b")])
def test_machines(options: Any, capsys: pytest.CaptureFixture[str]) -> None:
    options_, settings = env()
    assert options_.machine(*options)
    assert settings.machines == ({"addr": "a"}, {"addr": "b"})
    assert "start the program on them with mpiexec" in capsys.readouterr().err
    settings.started = True
    assert options_.machine("c") is False
    assert settings.machines == ({"addr": "a"}, {"addr": "b"})


@pytest.mark.parametrize("options", [(), ([],), ({"address": "a"},), (3,), ("a", "a")])
def test_invalid_machines_raise(options: Any) -> None:
    with pytest.raises(AssertionError, match=r"^env\.machine at test_options\.py:\d+: (pass a list of dicts|addresses must differ)"):
        env()[0].machine(*options)


def test_init_starts_once(capsys: pytest.CaptureFixture[str]) -> None:
    settings, started = EnvSettings(), []
    options_ = EnvOptions(lambda: settings, lambda: Settings(gpu_device_num=3), lambda: started.append(1))
    assert options_.current_resource() == Settings(gpu_device_num=3)
    assert options_.init() is True
    assert options_.init() is False
    assert (started, settings.started) == ([1], True)
    assert "comes too late" in capsys.readouterr().err
