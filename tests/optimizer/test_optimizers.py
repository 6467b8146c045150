"""Optimizers against hand-written float64 formulas."""

from __future__ import annotations

import math
import pickle
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest

from jobflow import losses, scope
from jobflow import optimizer as opt
from jobflow.core.errors import ConfigError, JobError
from jobflow.core.types import TensorType, float32
from jobflow.graph.training import DynamicScale

Array = np.ndarray[Any, Any]
STEPS = 6
SCHEDULE = opt.ExponentialScheduler(0.1, 10, 0.5)
TARGET = {"dense-weight": 0.5, "dense-bias": -1.5, "norm-gamma": 2.0}
WD = 0.25


def weights() -> dict[str, Array]:
    random = np.random.default_rng(7)
    return {"dense-weight": random.normal(size=(3, 4)), "dense-bias": random.normal(size=3), "norm-gamma": random.normal(size=(1,))}


def gradients(w: dict[str, Array], step: int) -> dict[str, Array]:
    """Of a bowl whose bottom moves."""
    return {name: (step + 1) * 0.3 * (value - TARGET[name]) for name, value in w.items()}


def rate(step: int) -> float:
    return 0.1 * 0.5 ** (step / 10)


@dataclass
class Reference:
    """One variable under `rule(w, g, lr, t, s)`, which may keep arrays in `s`."""

    rule: Callable[..., Array]
    state: dict[str, Any] = field(default_factory=dict)


def expected(rule: Callable[..., Array]) -> tuple[dict[str, Array], dict[str, Any]]:
    w, states = weights(), {name: {} for name in TARGET}  # type: dict[str, Array], dict[str, dict[str, Any]]
    for t in range(STEPS):
        g = gradients(w, t)
        w = {name: rule(name, w[name], g[name], rate(t), t, states[name]) for name in w}
    return w, {f"{name}-{key}": value for name, state in states.items() for key, value in state.items()}


def sgd(beta: float, wd: Callable[[str], float]) -> Callable[..., Array]:
    def rule(name: str, w: Array, g: Array, lr: float, t: int, s: dict[str, Any]) -> Array:
        if beta == 0:
            return w - lr * (g + wd(name) * w)
        s["momentum"] = beta * s.get("momentum", 0) - lr * g
        return w + s["momentum"] - lr * wd(name) * w

    return rule


def adam(correct: bool, wd: Callable[[str], float], epsilon: float = 1e-8) -> Callable[..., Array]:
    def rule(name: str, w: Array, g: Array, lr: float, t: int, s: dict[str, Any]) -> Array:
        s["m"] = 0.8 * s.get("m", 0) + (1 - 0.8) * g
        s["v"] = 0.95 * s.get("v", 0) + (1 - 0.95) * g**2
        if correct:
            lr = lr * math.sqrt(1 - 0.95 ** (t + 1)) / (1 - 0.8 ** (t + 1))
        return w - lr * (s["m"] / (np.sqrt(s["v"]) + epsilon) + wd(name) * w)

    return rule


def rmsprop(centered: bool) -> Callable[..., Array]:
    def rule(name: str, w: Array, g: Array, lr: float, t: int, s: dict[str, Any]) -> Array:
        s["mean_square"] = 0.9 * s.get("mean_square", 0) + (1 - 0.9) * g * g
        d = s["mean_square"]
        if centered:
            s["mean_gradient"] = 0.9 * s.get("mean_gradient", 0) + (1 - 0.9) * g
            d = d - s["mean_gradient"] ** 2
        return w - lr * g / np.sqrt(d + 1e-3)

    return rule


def lars(wd: Callable[[str], float]) -> Callable[..., Array]:
    def rule(name: str, w: Array, g: Array, lr: float, t: int, s: dict[str, Any]) -> Array:
        w_norm, g_norm = np.sqrt((w**2).sum()), np.sqrt((g**2).sum())
        local = lr * 0.3 * w_norm / (1e-9 + g_norm + wd(name) * w_norm) if w_norm > 0 and g_norm > 0 else lr
        s["momentum"] = 0.7 * s.get("momentum", 0) - local * g
        return w + s["momentum"] - local * wd(name) * w

    return rule


def lamb(wd: Callable[[str], float]) -> Callable[..., Array]:
    def rule(name: str, w: Array, g: Array, lr: float, t: int, s: dict[str, Any]) -> Array:
        s["m"] = 0.8 * s.get("m", 0) + (1 - 0.8) * g
        s["v"] = 0.95 * s.get("v", 0) + (1 - 0.95) * g**2
        s["beta1_t"] = s.get("beta1_t", np.array([0.8])) * 0.8
        s["beta2_t"] = s.get("beta2_t", np.array([0.95])) * 0.95
        d = (s["m"] / (1 - s["beta1_t"])) / (np.sqrt(s["v"] / (1 - s["beta2_t"])) + 1e-6)
        w_norm, d_norm = np.sqrt((w**2).sum()), np.sqrt((d**2).sum())
        r = w_norm / d_norm if w_norm > 0 and d_norm > 0 else 1.0
        return w - lr * r * (d + wd(name) * w)

    return rule


def never(name: str) -> float:
    return 0.0


def always(name: str) -> float:
    return WD


def not_bias(name: str) -> float:
    return 0.0 if "bias" in name or "gamma" in name else WD


def only_weight(name: str) -> float:
    return WD if "weight" in name else 0.0


BETAS = {"beta1": 0.8, "beta2": 0.95}
CASES = {
    "sgd": (opt.SGD(SCHEDULE, momentum=0.0), sgd(0.0, never)),
    "sgd with momentum, by default 0.9": (opt.SGD(SCHEDULE), sgd(0.9, never)),
    "sgdw": (opt.SGDW(SCHEDULE, momentum=0.0, weight_decay=WD), sgd(0.0, always)),
    "sgdw with momentum": (opt.SGDW(SCHEDULE, weight_decay=WD, weight_decay_excludes=["bias", "gamma$"]), sgd(0.9, not_bias)),
    "adam": (opt.Adam(SCHEDULE, **BETAS), adam(False, never)),
    "adam corrected": (opt.Adam(SCHEDULE, **BETAS, do_bias_correction=True, epsilon=1e-2), adam(True, never, 1e-2)),
    "lazy adam": (opt.LazyAdam(SCHEDULE, **BETAS), adam(True, never)),
    "adamw": (opt.AdamW(SCHEDULE, **BETAS, weight_decay=WD, weight_decay_includes="weigh"), adam(False, only_weight)),
    "adamw corrected": (opt.AdamW(SCHEDULE, **BETAS, do_bias_correction=True, weight_decay=WD), adam(True, always)),
    "rmsprop": (opt.RMSProp(SCHEDULE, decay_rate=0.9, epsilon=1e-3), rmsprop(False)),
    "rmsprop centered": (opt.RMSProp(SCHEDULE, decay_rate=0.9, epsilon=1e-3, centered=True), rmsprop(True)),
    "lars": (opt.LARS(SCHEDULE, momentum_beta=0.7, lars_coefficient=0.3, weight_decay=WD), lars(always)),
    "lars without decay": (opt.LARS(SCHEDULE, momentum_beta=0.7, lars_coefficient=0.3), lars(never)),
    "lamb": (opt.LAMB(SCHEDULE, **BETAS, weight_decay=WD, weight_decay_excludes="bias|gamma"), lamb(not_bias)),
}


@pytest.mark.parametrize("case", CASES)
def test_formulas(case: str, train: Any) -> None:
    optimizer, rule = CASES[case]
    trained = train(optimizer, STEPS, weights(), gradients)
    want, slots = expected(rule)
    for name, value in want.items():
        np.testing.assert_allclose(trained.weights[name], value, rtol=1e-12, err_msg=name)
    assert sorted(trained.slots) == sorted(slots)
    for name, value in slots.items():
        np.testing.assert_allclose(trained.slots[name], value, rtol=1e-12, atol=1e-15, err_msg=name)


@pytest.mark.parametrize("case", CASES)
def test_optimizers_pickle_print_and_do_not_change(case: str, train: Any) -> None:
    optimizer, _ = CASES[case]
    copy = pickle.loads(pickle.dumps(optimizer))
    assert copy == optimizer
    assert repr(copy).startswith(f"{type(optimizer).__name__}(lr_scheduler=ExponentialScheduler(base_lr=0.1, ")
    train(optimizer, 2, weights(), gradients)
    assert optimizer == copy


# ---- clipping ------------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("clip_norm", [0.5, 1e6])
def test_gradients_are_clipped_by_the_norm_of_all_of_them(clip_norm: float, train: Any) -> None:
    def clipped(w: dict[str, Array], step: int) -> dict[str, Array]:
        g = gradients(w, step)
        n = math.sqrt(sum(float((value**2).sum()) for value in g.values()))
        return {name: value * clip_norm * min(1 / n, 1 / clip_norm) for name, value in g.items()}

    got = train(opt.SGD(SCHEDULE, grad_clipping=opt.grad_clipping.by_global_norm(clip_norm)), STEPS, weights(), gradients)
    want = train(opt.SGD(SCHEDULE), STEPS, weights(), clipped)
    for name in TARGET:
        np.testing.assert_allclose(got.weights[name], want.weights[name], rtol=1e-12)


def test_clipping_of_zero_gradients_and_of_several_dtypes(train: Any) -> None:
    optimizer = opt.SGD(opt.PiecewiseConstantScheduler([], [1.0]), momentum=0.0, grad_clipping=opt.grad_clipping.by_global_norm(1.0))
    start = {"a": np.ones((2,), np.float32), "b": np.ones((), np.float64), "c": np.ones((1,), np.float16)}
    still = train(optimizer, 1, start, lambda w, t: {k: 0 * v for k, v in w.items()}).weights
    assert all(np.array_equal(still[name], start[name]) for name in start)
    moved = train(optimizer, 1, start, lambda w, t: {"a": 2 * w["a"], "b": 4 * w["b"], "c": 2 * w["c"]}).weights
    norm = math.sqrt(4 + 4 + 16 + 4)
    np.testing.assert_allclose(moved["a"], 1 - 2 / norm, rtol=1e-6)
    np.testing.assert_allclose(moved["b"], 1 - 4 / norm, rtol=1e-12)
    np.testing.assert_allclose(moved["c"], 1 - 2 / norm, rtol=2e-3)
    assert [moved[k].dtype for k in "abc"] == [np.float32, np.float64, np.float16]


def test_an_optimizer_without_variables_does_nothing() -> None:
    optimizer = opt.SGD(SCHEDULE, grad_clipping=opt.grad_clipping.by_global_norm(1.0))
    assert optimizer.update([], None, None) == {}  # type: ignore[arg-type]


# ---- which variables -----------------------------------------------------------------------------------------------------------------


def test_only_the_chosen_variables_move(train: Any) -> None:
    trained = train(opt.SGD(SCHEDULE, variables=["dense-bias"]), 1, weights(), gradients)
    moved = [name for name, start in weights().items() if not np.array_equal(start, trained.weights[name])]
    assert moved == ["dense-bias"]
    assert list(trained.slots) == ["dense-bias-momentum"]


def test_combined_optimizers(train: Any) -> None:
    one = opt.SGD(SCHEDULE, variables=["dense-bias", "norm-gamma"])
    two = opt.Adam(SCHEDULE, **BETAS, variables=["dense-weight"])
    trained = train(opt.CombinedOptimizer([one, two], loss_scale_factor=4.0), STEPS, weights(), gradients)
    by_sgd, by_adam = expected(sgd(0.9, never))[0], expected(adam(False, never))[0]
    for name, want in (("dense-bias", by_sgd), ("norm-gamma", by_sgd), ("dense-weight", by_adam)):
        np.testing.assert_allclose(trained.weights[name], want[name], rtol=1e-12)
    assert opt.CombinedOptimizer([one, two], loss_scale_factor=4.0).loss_scale == 4.0


def test_combined_optimizers_share_nothing_and_leave_nothing_out() -> None:
    one, two = opt.SGD(SCHEDULE, variables=["a", "b"]), opt.SGD(SCHEDULE, variables=["b"])
    with pytest.raises(JobError, match='variable "b" belongs to optimizers 0 and 1'):
        opt.CombinedOptimizer([one, two]).selects(["a", "b"])
    with pytest.raises(JobError, match="no optimizer updates a, c; add each variable"):
        opt.CombinedOptimizer([two]).selects(["a", "b", "c"])
    with pytest.raises(ConfigError, match="SGD has a loss scale or train step"):
        opt.CombinedOptimizer([opt.SGD(SCHEDULE, loss_scale_factor=2.0)])
    with pytest.raises(ConfigError, match="combined optimizers cannot be nested"):
        opt.CombinedOptimizer([opt.CombinedOptimizer([one])])  # type: ignore[list-item]


# ---- minimize ------------------------------------------------------------------------------------------------------------------------


@dataclass
class FakeJob:
    """A train job being traced, as far as optimizers see it."""

    name: str = "train_job"
    variables: dict[str, None] = field(default_factory=lambda: dict.fromkeys(TARGET))
    events: list[Any] = field(default_factory=list)

    def apply(self, op: Any, inputs: Any, name: str | None) -> Any:
        raise AssertionError("nothing is computed here")

    def add_loss(self, loss: Any) -> None:
        self.events.append(loss)

    def minimize(self, optimizer: Any, listed: Any) -> None:
        self.events.append((optimizer, listed))


@dataclass(eq=False)
class FakeTensor:
    tensor_type: TensorType = field(default_factory=lambda: TensorType((4,), float32))


def test_minimize_hands_the_job_the_optimizer_and_the_losses() -> None:
    job, a, b = FakeJob(), FakeTensor(), FakeTensor()
    lazy = opt.SGD(SCHEDULE, variables=lambda: ["dense-bias"])
    with scope.using(interpreter=job):
        opt.SGD(SCHEDULE).minimize(a)
        lazy.minimize([a, b])
        opt.CombinedOptimizer([lazy]).minimize((b,))
    named = opt.SGD(SCHEDULE, variables=("dense-bias",))
    assert job.events == [(opt.SGD(SCHEDULE), [a]), (named, [a, b]), (opt.CombinedOptimizer([named]), [b])]
    assert pickle.loads(pickle.dumps(job.events[1][0])) == named


def test_minimize_and_add_loss_want_a_job_and_a_tensor() -> None:
    with pytest.raises(JobError, match=r"^SGD\.minimize at test_optimizers\.py:\d+: called outside a job"):
        opt.SGD(SCHEDULE).minimize(FakeTensor())
    with pytest.raises(NotImplementedError, match=r"^add_loss at test_optimizers\.py:\d+: called outside a job"):
        losses.add_loss(FakeTensor())
    job = FakeJob()
    with scope.using(interpreter=job):
        with pytest.raises(JobError, match=r"add_loss at .*: loss must be a tensor of the job, not 3\.0"):
            losses.add_loss(3.0)  # type: ignore[arg-type]
        with pytest.raises(JobError, match=r"SGD\.minimize at .*: loss must be a tensor of the job, not None"):
            opt.SGD(SCHEDULE).minimize([FakeTensor(), None])  # type: ignore[list-item]
        with pytest.raises(JobError, match=r'SGD\.minimize in job train_job .*: the job has no variable "dense-wait"; did you mean "dense-weight"\?'):
            opt.SGD(SCHEDULE, variables=["dense-wait"]).minimize(FakeTensor())
        loss = FakeTensor()
        losses.add_loss(loss)
    assert job.events == [loss]


def test_loss_scales() -> None:
    assert opt.SGD(SCHEDULE).loss_scale == 1.0
    assert opt.SGD(SCHEDULE, loss_scale_factor=128).loss_scale == 128.0
    assert opt.SGD(SCHEDULE, loss_scale_policy=opt.loss_scale.static_loss_scale(64.0)).loss_scale == 64.0
    assert opt.SGD(SCHEDULE, loss_scale_factor=128).dynamic_loss_scale is None
    assert opt.SGD(SCHEDULE, loss_scale_policy=opt.loss_scale.dynamic_loss_scale()).dynamic_loss_scale == DynamicScale(2.0**30, 2000, 2.0)


@pytest.mark.parametrize(
    ("make", "text"),
    [
        (lambda: opt.SGD(0.1), "SGD at test_optimizers.py"),
        (lambda: opt.SGD(0.1), "lr_scheduler is 0.1; pass a schedule, for example optimizer.PiecewiseConstantScheduler([], [0.1])"),
        (lambda: opt.SGD(SCHEDULE, variables="dense"), "variables must be a list of strings, not 'dense'"),
        (lambda: opt.SGD(SCHEDULE, variables=[1]), "variables must be a list of strings, not [1]"),
        (lambda: opt.SGD(opt.warmup.linear(5, 0.1)), "lr_scheduler is LinearWarmup(steps=5, start_multiplier=0.1); pass a schedule"),
        (lambda: opt.SGD(SCHEDULE, momentum="0.9"), "momentum must be a number, not '0.9'"),
        (lambda: opt.SGD(SCHEDULE, momentum=None), "momentum must be a number, not None"),
        (lambda: opt.SGDW(SCHEDULE, momentum=math.nan), "momentum must be a number, not nan"),
        (lambda: opt.AdamW(SCHEDULE, weight_decay="1e-4"), "weight_decay must be a number, not '1e-4'"),
        (lambda: opt.AdamW(SCHEDULE, weight_decay_includes=5), "weight_decay_includes must be a list of strings, not 5"),
        (lambda: opt.Adam(SCHEDULE, beta2=1.5), "beta2 must be a number of at least 0 and below 1, not 1.5"),
        (lambda: opt.LAMB(SCHEDULE, beta1=[0.9]), "beta1 must be a number of at least 0 and below 1, not [0.9]"),
        (lambda: opt.Adam(SCHEDULE, epsilon=-1e-8), "epsilon must be a number of at least 0, not -1e-08"),
        (lambda: opt.Adam(SCHEDULE, do_bias_correction="no"), "do_bias_correction must be True or False, not 'no'"),
        (lambda: opt.RMSProp(SCHEDULE, decay_rate=math.inf), "decay_rate must be a number, not inf"),
        (lambda: opt.LARS(SCHEDULE, lars_coefficient=None), "lars_coefficient must be a number, not None"),
        (lambda: opt.CombinedOptimizer(opt.SGD(SCHEDULE)), "optimizers must be a list"),
        (lambda: opt.Adam(SCHEDULE, grad_clipping=1.0), "grad_clipping is 1.0; pass grad_clipping.by_global_norm(n)"),
        (lambda: opt.Adam(SCHEDULE, loss_scale_factor=0), "the factor must be a positive number, not 0"),
        (
            lambda: opt.Adam(SCHEDULE, loss_scale_factor=2.0, loss_scale_policy=opt.loss_scale.static_loss_scale(2.0)),
            "pass loss_scale_factor or loss_scale_policy, not both",
        ),
        (
            lambda: opt.AdamW(SCHEDULE, weight_decay_includes=["a"], weight_decay_excludes="b"),
            "weight_decay_includes or weight_decay_excludes, not both",
        ),
        (lambda: opt.LARS(SCHEDULE, weight_decay_excludes=["(a"]), "weight_decay_excludes '(a' must be a regular expression"),
        (lambda: opt.SGD(SCHEDULE, loss_scale_policy=128.0), "loss_scale_policy is 128.0; pass loss_scale.static_loss_scale(factor) or"),
        (lambda: opt.loss_scale.dynamic_loss_scale(0.5), "initial_loss_scale must be a number from 1 to 3.4e+38, not 0.5"),
        (lambda: opt.loss_scale.dynamic_loss_scale(increment_period=0), "increment_period must be a positive number of steps, not 0"),
        (lambda: opt.loss_scale.dynamic_loss_scale(multiplier=1), "multiplier must be a number above 1, not 1"),
        (lambda: opt.grad_clipping.by_global_norm(0.0), "clip_norm must be a positive number, not 0.0"),
    ],
)
def test_optimizers_that_make_no_sense(make: Any, text: str) -> None:
    with pytest.raises(ConfigError) as raised:
        make()
    assert text in str(raised.value)
