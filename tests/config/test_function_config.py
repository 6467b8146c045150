"""The configuration of jobs, and the optimizer it may describe."""

from __future__ import annotations

import copy
import pickle
from typing import Any

import pytest

from jobflow import optimizer as opt
from jobflow import scope
from jobflow.core import notices
from jobflow.core.errors import ConfigError, JobError
from jobflow.core.types import bfloat16, float16, float32, int32
from jobflow.engine.job_config import OPTIONS, ExecutionConfig, FunctionConfig, function_config
from jobflow.optimizer import optimizer_of


@pytest.fixture(autouse=True)
def unsaid() -> None:
    notices.forget()


def trained(rule: Any, rate: float = 0.1) -> FunctionConfig:
    config = FunctionConfig()
    config.train.primary_lr(rate)
    config.train.model_update_conf(rule)
    return config


def test_three_spellings_of_one_class() -> None:
    assert function_config is FunctionConfig is ExecutionConfig


def test_options_are_called_and_read_back(capsys: pytest.CaptureFixture[str]) -> None:
    config = FunctionConfig()
    config.default_data_type(float32)
    config.train.primary_lr(0.1)
    config.enable_auto_mixed_precision()
    view, placement = scope.mirrored_view(), scope.placement("cpu", "0:0")
    config.default_logical_view(view)
    config.default_placement_scope(placement)
    config.default_initializer_conf({"constant_conf": {"value": 10}})
    assert config.options == {
        "default_data_type": float32,
        "train.primary_lr": 0.1,
        "enable_auto_mixed_precision": True,
        "default_logical_view": view,
        "default_placement_scope": placement,
        "default_initializer_conf": {"constant_conf": {"value": 10}},
    }
    assert config.function_desc.train.primary_lr == 0.1
    assert config.function_desc.enable_auto_mixed_precision is True
    assert config.function_desc.enable_inplace is None
    assert str(config.lines["train.primary_lr"]).startswith("test_function_config.py:")
    assert capsys.readouterr() == ("", "")


def test_switches_without_meaning_say_so_once(capsys: pytest.CaptureFixture[str]) -> None:
    config = FunctionConfig()
    config.enable_inplace()
    config.enable_inplace(False)
    config.enable_inplace(True)
    config.tensorrt.use_fp16()
    config.cudnn_conv_force_fwd_algo(1)
    config.static_mem_alloc_policy_white_list.has("x")
    assert config.function_desc.enable_inplace is True
    assert config.function_desc.cudnn_conv_force_fwd_algo == 1
    assert capsys.readouterr().err.splitlines() == [
        "jobflow: function_config.enable_inplace has no effect and is ignored",
        "jobflow: function_config.tensorrt.use_fp16 has no effect and is ignored",
        "jobflow: function_config.cudnn_conv_force_fwd_algo has no effect and is ignored",
        "jobflow: function_config.static_mem_alloc_policy_white_list.has has no effect and is ignored",
    ]


def test_the_old_spelling_of_the_view(capsys: pytest.CaptureFixture[str]) -> None:
    config = FunctionConfig()
    view = scope.consistent_view()
    config.default_distribute_strategy(view)
    assert config.options == {"default_logical_view": view}
    assert config.function_desc.default_distribute_strategy is view
    assert capsys.readouterr().err == "jobflow: function_config.default_distribute_strategy is the old name of default_logical_view\n"


@pytest.mark.parametrize("name", sorted(OPTIONS))
def test_every_option_is_reachable_and_readable(name: str) -> None:
    config = FunctionConfig()
    part_value: Any = config
    for part in name.split("."):
        assert hasattr(part_value, part)
        part_value = getattr(part_value, part)
    assert callable(part_value)


def test_unknown_names_are_errors_with_a_suggestion() -> None:
    config = FunctionConfig()
    with pytest.raises(ConfigError, match=r'^function_config\.train\.primary_rl at .*; did you mean "primary_lr"\?$'):
        config.train.primary_rl(0.1)
    with pytest.raises(ConfigError, match='did you mean "train"'):
        _ = config.trian
    with pytest.raises(ConfigError, match="no such option"):
        _ = config.function_desc.nothing_like_it
    with pytest.raises(ConfigError, match=r'did you mean "train\.primary_lr"'):
        config.set("train.primary_l", 1.0)
    assert not hasattr(config.train, "nothing")
    assert hasattr(config.train, "num_gradient_accumulation_steps")


@pytest.mark.parametrize(
    ("call", "text"),
    [
        (lambda c: c.default_data_type("float32"), "default_data_type at test_function_config.py"),
        (lambda c: c.default_data_type("float32"), "the value must be an element type such as jobflow.float32; got 'float32'"),
        (lambda c: c.train.primary_lr("0.1"), "the value must be an int or a float; got '0.1'"),
        (lambda c: c.train.primary_lr(True), "the value must be an int or a float; got True"),
        (lambda c: c.train.model_update_conf(None), "the value must be a dict; got None"),
        (lambda c: c.default_logical_view("mirrored"), "the value must be scope.consistent_view() or scope.mirrored_view(); got 'mirrored'"),
        (lambda c: c.default_placement_scope("gpu"), "the value must be scope.placement(tag, devices); got 'gpu'"),
        (lambda c: c.enable_auto_mixed_precision(1), "the value must be a bool; got 1"),
        (lambda c: c.train.primary_lr(), "called without a value; pass a value"),
        (lambda c: c.default_logical_view(), "called without a value; pass a value"),
        (lambda c: c.enable_nccl("yes"), "the value must be a bool; got 'yes'"),
    ],
)
def test_values_of_the_wrong_kind(call: Any, text: str) -> None:
    config = FunctionConfig()
    with pytest.raises(ConfigError) as raised:
        call(config)
    assert text in str(raised.value)
    assert config.options == {}


def test_copies_are_independent_and_pickle() -> None:
    config = trained({"naive_conf": {}})
    copied = config.copy()
    config.train.primary_lr(0.5)
    assert copied.options["train.primary_lr"] == 0.1
    assert copy.copy(copied).options == pickle.loads(pickle.dumps(copied)).options == copied.options
    assert repr(copied) == "FunctionConfig(train.primary_lr=0.1, train.model_update_conf={'naive_conf': {}})"


def test_training_options_make_a_train_job() -> None:
    assert trained({}).trains
    config = FunctionConfig()
    config.default_data_type(float32)
    assert not config.trains


def test_what_would_change_the_numbers_is_refused() -> None:
    for call, text in [
        (lambda c: c.mixed_precision(float32), "mixed_precision(jobflow.float32) at test_function_config.py"),
        (lambda c: c.mixed_precision(float32), "must be jobflow.float16 or jobflow.bfloat16"),
        (lambda c: c.train.num_gradient_accumulation_steps(0), "must be at least 1"),
        (lambda c: c.reduce_dtype(int32), "the value must be jobflow.float32, jobflow.float16 or jobflow.bfloat16"),
        (lambda c: (c.train.primary_lr(0.1), c.train.secondary_lr(0.2)), "train.secondary_lr(0.2) at"),
    ]:
        config = FunctionConfig()
        call(config)
        with pytest.raises(JobError) as raised:
            config.check()
        assert text in str(raised.value)
    config = trained({"naive_conf": {}})
    config.enable_auto_mixed_precision(False)
    assert config.half is None
    config.train.num_gradient_accumulation_steps(1)
    config.train.secondary_lr(0.1)
    config.check()


def test_precisions() -> None:
    config = FunctionConfig()
    assert config.half is None
    config.enable_auto_mixed_precision()
    assert config.half is float16
    config.mixed_precision(bfloat16)
    config.check()
    assert config.half is bfloat16, "the spelling that names a type says more"


# ---- model_update_conf ---------------------------------------------------------------------------------------------------------------

CONSTANT = opt.PiecewiseConstantScheduler([], [0.1])


@pytest.mark.parametrize(
    ("rule", "optimizer"),
    [
        ({"naive_conf": {}}, opt.SGDW(CONSTANT, momentum=0.0)),
        ({"momentum_conf": {}}, opt.SGDW(CONSTANT, momentum=0.9)),
        ({"momentum_conf": {"beta": 0.5}}, opt.SGDW(CONSTANT, momentum=0.5)),
        ({"rmsprop_conf": {"centered": True}}, opt.RMSProp(CONSTANT, 0.99, 1e-8, True)),
        ({"lars_conf": {"lars_coefficient": 0.01}}, opt.LARS(CONSTANT, 0.9, 1e-9, 0.01)),
        ({"adam_conf": {}}, opt.AdamW(CONSTANT)),
        ({"adam_conf": {"do_bias_correction": True, "epsilon": 1e-6}}, opt.AdamW(CONSTANT, epsilon=1e-6, do_bias_correction=True)),
        ({"lazy_adam_conf": {"beta1": 0.8}}, opt.AdamW(CONSTANT, beta1=0.8, do_bias_correction=True)),
        ({"lamb_conf": {"beta2": 0.99}}, opt.LAMB(CONSTANT, beta2=0.99)),
        (
            {"naive_conf": {}, "weight_decay_conf": {"weight_decay_rate": 0.01, "excludes": {"pattern": ["bias"]}}},
            opt.SGDW(CONSTANT, momentum=0.0, weight_decay=0.01, weight_decay_excludes=["bias"]),
        ),
        (
            {"adam_conf": {}, "weight_decay_conf": {"weight_decay_rate": 0.01, "includes": {"pattern": ["w"]}}},
            opt.AdamW(CONSTANT, weight_decay=0.01, weight_decay_includes=["w"]),
        ),
        (
            {"naive_conf": {}, "clip_conf": {"clip_by_global_norm": {"clip_norm": 2.0}}},
            opt.SGDW(CONSTANT, momentum=0.0, grad_clipping=opt.grad_clipping.by_global_norm(2.0)),
        ),
    ],
)
def test_optimizers_of_configurations(rule: Any, optimizer: Any) -> None:
    assert optimizer_of(trained(rule)) == optimizer
    assert optimizer_of(trained(rule).options) == optimizer


STEPS = {"decay_batches": 10}
LINEAR = opt.warmup.linear(4, 0.25)


@pytest.mark.parametrize(
    ("decay", "schedule"),
    [
        ({"exponential_conf": {**STEPS, "decay_rate": 0.5}}, opt.ExponentialScheduler(0.1, 10, 0.5, warmup=LINEAR)),
        ({"inverse_time_conf": {**STEPS, "decay_rate": 0.5, "staircase": True}}, opt.InverseTimeScheduler(0.1, 10, 0.5, True, warmup=LINEAR)),
        ({"natural_exp_conf": {**STEPS, "decay_rate": 0.5}}, opt.NaturalExpScheduler(0.1, 10, 0.5, warmup=LINEAR)),
        ({"polynomial_conf": {**STEPS, "power": 2.0, "cycle": True}}, opt.PolynomialScheduler(0.1, 10, 0.0001, 2.0, True, warmup=LINEAR)),
        ({"cosine_conf": {**STEPS, "alpha": 0.5}}, opt.CosineScheduler(0.1, 10, 0.5, warmup=LINEAR)),
        ({"linear_cosine_conf": {**STEPS, "num_periods": 2}}, opt.LinearCosineScheduler(0.1, 10, 2, warmup=LINEAR)),
        ({"piecewise_scaling_conf": {"boundaries": [5], "scales": [1, 0.1]}}, opt.PiecewiseScalingScheduler(0.1, [5], [0.1], warmup=LINEAR)),
    ],
)
def test_schedules_of_configurations(decay: Any, schedule: Any) -> None:
    warmup = {"linear_conf": {"warmup_batches": 4, "start_multiplier": 0.25}}
    optimizer = optimizer_of(trained({"naive_conf": {}, "learning_rate_decay": decay, "warmup_conf": warmup}))
    assert optimizer.lr_scheduler == schedule


def test_piecewise_constants_warm_up_towards_the_primary_rate() -> None:
    decay = {"piecewise_constant_conf": {"boundaries": [6], "values": [0.4, 0.2]}}
    warmup = {"constant_conf": {"warmup_batches": 3, "multiplier": 0.5}}
    scheduler = optimizer_of(trained({"naive_conf": {}, "learning_rate_decay": decay, "warmup_conf": warmup})).lr_scheduler
    assert [scheduler.rate(step) for step in (0, 2, 3, 6, 7)] == [0.05, 0.05, 0.4, 0.4, 0.2]
    assert pickle.loads(pickle.dumps(scheduler)) == scheduler


def test_the_loss_scale_of_a_configuration() -> None:
    config = trained({"naive_conf": {}})
    config.train.loss_scale_factor(64)
    assert optimizer_of(config).loss_scale == 64.0


@pytest.mark.parametrize(
    ("rule", "text"),
    [
        ({}, "pass exactly one of naive_conf, momentum_conf"),
        ({"naive_conf": {}, "adam_conf": {}}, "not naive_conf and adam_conf"),
        ({"niave_conf": {}}, 'function_config.train.model_update_conf: unknown key "niave_conf"; did you mean "naive_conf"?'),
        ({"adam_conf": {"beta_1": 0.9}}, 'model_update_conf.adam_conf: unknown key "beta_1"; did you mean "beta1"?'),
        ({"naive_conf": {}, "learning_rate_decay": {"cosine_conf": {}}}, "learning_rate_decay.cosine_conf: set decay_batches"),
        ({"naive_conf": {}, "learning_rate_decay": {}}, "learning_rate_decay: pass exactly one of exponential_conf"),
        ({"naive_conf": {}, "learning_rate_decay": {"piecewise_scaling_conf": {"scales": [2]}}}, "scales must start with 1"),
        ({"naive_conf": {}, "warmup_conf": {"linear_conf": {"warmup_batches": 3}}}, "set start_multiplier"),
        ({"naive_conf": {}, "clip_conf": {"clip_by_global_norm": 1.0}}, "clip_conf.clip_by_global_norm: must be a dict, not 1.0"),
        ({"naive_conf": {}, "weight_decay_conf": {"weight_decay_rate": "x"}}, "weight_decay_rate: must be a number, not 'x'"),
    ],
)
def test_configurations_that_describe_no_optimizer(rule: Any, text: str) -> None:
    with pytest.raises(ConfigError) as raised:
        optimizer_of(trained(rule))
    assert text in str(raised.value)


def test_an_incomplete_optimizer_names_the_missing_options() -> None:
    config = FunctionConfig()
    config.train.model_update_conf({"naive_conf": {}})
    with pytest.raises(JobError, match=r"function_config\.train\.primary_lr is not set"):
        optimizer_of(config)
