"""Optimizers and schedules against recorded ones, to 1e-9 in float64; the same steps wherever the parameter lies."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from optim_cases import COMPOSED, EPOCHS, METRICS, OPTIMIZERS, SCHEDULES, SHAPE, STEPS
from ranks import on_ranks, with_ranks

import jobflow as flow
from jobflow import optim
from jobflow.core.errors import CheckpointError, ConfigError, JobError
from jobflow.core.layout import B, Layout, P, Placement, S
from jobflow.core.types import type_of
from jobflow.functional.tensor_class import Tensor
from jobflow.functional.values import numpy
from jobflow.optim import lr_scheduler

RECORDED = dict(np.load(Path(__file__).parent / "references" / "steps.npz"))
LAYOUTS: dict[str, tuple[Any, ...]] = {"B": (B,), "S(0)": (S(0),), "S(1)": (S(1),)}
#: layouts on 3 and 4 ranks, some of which have no elements
WIDE = {"S(1) of 3": ((0, 1, 2), (3,), (S(1),)), "S(0) of 4": ((0, 1, 2, 3), (4,), (S(0),)), "S(1) then S(1)": ((0, 1, 2, 3), (2, 2), (S(1), S(1)))}


def tensor(array: np.ndarray[Any, Any], rank: int = 0, layout: Layout | None = None) -> Tensor:
    """A local tensor, or this rank's piece of a global one."""
    piece = array if layout is None else layout.shards(array)[layout.placement.ranks.index(rank)]
    return Tensor(type_of(array), layout, np.array(piece))


def steps(rank: int, kind: str, options: dict[str, Any], layout: Layout | None, count: int = STEPS) -> np.ndarray[Any, Any]:
    """The parameter after each step on the sum of a (w - b)^2."""
    p = tensor(RECORDED["w"], rank, layout)
    p.requires_grad = True
    optimizer = getattr(optim, kind)([p], **options)
    trace = []
    for _ in range(count):
        optimizer.zero_grad()
        p.grad = tensor(2 * RECORDED["a"] * (numpy(p) - RECORDED["b"]), rank, layout)
        optimizer.step()
        trace.append(np.array(numpy(p)))
    return np.array(trace)


@pytest.mark.parametrize("case", OPTIMIZERS)
def test_steps_equal_the_record(case: str) -> None:
    kind, options = OPTIMIZERS[case]
    (values,) = on_ranks(1, steps, kind, options, None)
    np.testing.assert_allclose(values, RECORDED[case], rtol=1e-9)


@pytest.mark.parametrize("lies", LAYOUTS)
@pytest.mark.parametrize("case", [*OPTIMIZERS, "lamb"])
def test_steps_do_not_depend_on_the_layout(case: str, lies: str) -> None:
    kind, options = {**OPTIMIZERS, "lamb": ("LAMB", {"lr": 0.125, "weight_decay": 0.1})}[case]
    (local,) = on_ranks(1, steps, kind, options, None, 3)
    layout = Layout(Placement("cpu", (0, 1)), LAYOUTS[lies])
    for values in on_ranks(2, steps, kind, options, layout, 3):
        np.testing.assert_allclose(values, local, rtol=1e-12)


@pytest.mark.full
@pytest.mark.parametrize("lies", WIDE)
@pytest.mark.parametrize("case", [*OPTIMIZERS, "lamb"])
def test_steps_on_more_ranks_equal_local_steps(case: str, lies: str) -> None:
    kind, options = {**OPTIMIZERS, "lamb": ("LAMB", {"lr": 0.125, "weight_decay": 0.1})}[case]
    (local,) = on_ranks(1, steps, kind, options, None, 3)
    ranks, mesh, sbp = WIDE[lies]
    for values in on_ranks(len(ranks), steps, kind, options, Layout(Placement("cpu", ranks, mesh), sbp), 3):
        np.testing.assert_allclose(values, local, rtol=1e-12)


def test_lamb_by_hand() -> None:
    (values,) = on_ranks(1, steps, "LAMB", {"lr": 0.25, "weight_decay": 0.1}, None, 3)
    w, m, v = RECORDED["w"], np.zeros(SHAPE), np.zeros(SHAPE)
    for t, after in enumerate(values, 1):
        g = 2 * RECORDED["a"] * (w - RECORDED["b"])
        m, v = 0.9 * m + 0.1 * g, 0.999 * v + 0.001 * g * g
        u = m / (1 - 0.9**t) / (np.sqrt(v / (1 - 0.999**t)) + 1e-8) + 0.1 * w
        w = w - 0.25 * np.linalg.norm(w) / np.linalg.norm(u) * u
        np.testing.assert_allclose(after, w, rtol=1e-9)


@with_ranks(2)
def test_training_resumes_from_a_state(rank: int) -> None:
    """Half of the steps, saved, loaded into an optimizer of a parameter that lies in another way, and the other half."""
    kind, options = OPTIMIZERS["adam decay"]
    whole = steps(rank, kind, options, None)
    layouts = [Layout(Placement("cpu", (0, 1)), (S(0),)), Layout(Placement("cpu", (0, 1)), (B,))]
    saved: dict[str, Any] = {}
    values = RECORDED["w"]
    for layout, count in zip(layouts, (4, STEPS - 4), strict=True):
        p = tensor(values, rank, layout)
        optimizer = optim.Adam([p], **options)
        if saved:
            optimizer.load_state_dict(saved)
        for _ in range(count):
            p.grad = tensor(2 * RECORDED["a"] * (numpy(p) - RECORDED["b"]), rank, layout)
            optimizer.step()
        values, saved = np.array(numpy(p)), optimizer.state_dict()
    np.testing.assert_allclose(values, whole[-1], rtol=1e-9)
    other = optim.Adam([tensor(np.zeros((2, 2)), rank, layouts[0])])
    with pytest.raises(CheckpointError, match="does not match the parameter"):
        other.load_state_dict(saved)


@pytest.mark.parametrize("case", OPTIMIZERS)
def test_training_resumes_from_a_state_of_pytorch(case: str) -> None:
    kind = OPTIMIZERS[case][0]
    saved = flow.load(Path(__file__).parent / "references" / "states.pt")[case]
    p = flow.nn.Parameter(saved["p"])
    optimizer = getattr(optim, kind)([p], lr=5.0)
    optimizer.load_state_dict(saved["optimizer"])
    names = {number: set(state) for number, state in optimizer.state_dict()["state"].items()}
    assert names == {number: set(state) for number, state in saved["optimizer"]["state"].items()}
    for _ in range(STEPS - STEPS // 2):
        p.grad = tensor(2 * RECORDED["a"] * (p.detach().numpy() - RECORDED["b"]))
        optimizer.step()
    np.testing.assert_allclose(p.detach().numpy(), RECORDED[case][-1], rtol=1e-9)


def test_states_of_older_releases_are_loaded() -> None:
    p = tensor(np.zeros(2, np.float32))
    groups = [{"params": [0], "lr": 0.5}]
    adam = optim.Adam([p])
    adam.load_state_dict({"state": {"0": {"step": 3, "m": flow.ones(2), "v": flow.ones(2), "max_v": flow.ones(2)}}, "param_groups": groups})
    assert set(adam.state[p]) == {"step", "exp_avg", "exp_avg_sq", "max_exp_avg_sq"} and adam.param_groups[0]["lr"] == 0.5
    sgd = optim.SGD([p], momentum=0.5, dampening=0.5)
    sgd.load_state_dict({"state": {0: {"step": 3, "momentum_buf": flow.ones(2, dtype=flow.float64)}}, "param_groups": groups})
    assert set(sgd.state_dict()["state"][0]) == {"momentum_buffer"} and sgd.state[p]["momentum_buffer"].dtype is flow.float32
    p.grad = flow.ones(2)
    sgd.step()
    np.testing.assert_allclose(sgd.state[p]["momentum_buffer"].numpy(), 1.0)


@pytest.mark.parametrize(
    "saved",
    [
        None,
        [],
        {},
        {"state": {}, "param_groups": None},
        {"state": {}, "param_groups": [None]},
        {"state": {}, "param_groups": [{"params": 0}]},
        {"state": {}, "param_groups": [{"params": [0, 1]}]},
        {"state": {}, "param_groups": [{"params": [[]]}]},
        {"state": [], "param_groups": [{"params": [0]}]},
        {"state": {1: {}}, "param_groups": [{"params": [0]}]},
        {"state": {(): {}}, "param_groups": [{"params": [0]}]},
        {"state": {0: None}, "param_groups": [{"params": [0]}]},
        {"state": {0: {"step": "x"}}, "param_groups": [{"params": [0]}]},
        {"state": {0: {"step": math.nan}}, "param_groups": [{"params": [0]}]},
        {"state": {0: {"step": -1}}, "param_groups": [{"params": [0]}]},
        {"state": {0: {"exp_avg": flow.ones(3)}}, "param_groups": [{"params": [0]}]},
        {"state": {}, "param_groups": [{"params": [0], "lr": -1.0}]},
    ],
)
def test_other_states_are_refused(saved: Any) -> None:
    optimizer = optim.Adam([tensor(np.zeros(2, np.float32))], lr=0.5)
    with pytest.raises((CheckpointError, ConfigError), match="load_state_dict at test_optim"):
        optimizer.load_state_dict(saved)
    assert optimizer.param_groups[0]["lr"] == 0.5 and not optimizer.state


def test_schedules_resume_from_states_of_pytorch() -> None:
    optimizer, schedule = schedule_of("LambdaLR", {"lr_lambda": lambda t: 0.5**t}, 1.0)
    state = {"base_lrs": [2.0], "last_epoch": 2, "_step_count": 3, "_is_initial": False, "_last_lr": [0.5], "lr_lambdas": [None], "step": 1}
    schedule.load_state_dict(state)
    schedule.step()
    assert optimizer.param_groups[0]["lr"] == 0.25
    for wrong in (None, [], {1: 2}, {"last_epoch": "x"}, {"last_epoch": None}, {"base_lrs": 3}, {"base_lrs": [1.0, 2.0]}):
        with pytest.raises(CheckpointError, match="load_state_dict at test_optim"):
            schedule.load_state_dict(wrong)
    assert optimizer.param_groups[0]["lr"] == 0.25


def schedule_of(kind: str, options: dict[str, Any], lr: float = 0.2) -> tuple[optim.Optimizer, Any]:
    optimizer = optim.SGD([tensor(np.zeros(1))], lr=lr, momentum=0.9)
    return optimizer, getattr(lr_scheduler, kind)(optimizer, **options)


@pytest.mark.parametrize("case", [*SCHEDULES, *COMPOSED])
def test_schedules_are_the_recorded_ones(case: str) -> None:
    rates, halves = [], []
    for half in (False, True):  # also with a schedule that loads the state of another one
        optimizer, schedule = created(case)
        rates.append([])
        for step in range(EPOCHS):
            group = optimizer.param_groups[0]
            rates[-1].append([group["lr"], group["momentum"]] if getattr(schedule, "cycle_momentum", False) else group["lr"])
            schedule.step()
            if half and step == EPOCHS // 2:
                halves = [optimizer.state_dict(), schedule.state_dict()]
                optimizer, schedule = created(case)
                optimizer.load_state_dict(halves[0])
                schedule.load_state_dict(halves[1])
    np.testing.assert_allclose(rates[0], RECORDED[f"schedule {case}"], rtol=1e-11)
    np.testing.assert_array_equal(rates[0], rates[1])


def created(case: str) -> tuple[optim.Optimizer, Any]:
    """Return an optimizer and the schedule of a case."""
    if case in SCHEDULES:
        return schedule_of(*SCHEDULES[case])
    optimizer = optim.SGD([tensor(np.zeros(1))], lr=0.2, momentum=0.9)
    return optimizer, COMPOSED[case](lr_scheduler, optimizer)


def test_plateau_is_the_recorded_one() -> None:
    optimizer, schedule = schedule_of("ReduceLROnPlateau", {"patience": 2, "cooldown": 1, "factor": 0.5})
    rates = []
    for metric in METRICS:
        schedule.step(metric)
        rates.append(optimizer.param_groups[0]["lr"])
    np.testing.assert_allclose(rates, RECORDED["plateau"])


def test_custom_schedules() -> None:
    def rates(kind: str, options: dict[str, Any]) -> list[float]:
        optimizer, schedule = schedule_of(kind, options, 1.0)
        lr_history = []
        for _ in range(6):
            lr_history.append(optimizer.param_groups[0]["lr"])
            schedule.step()
        return lr_history

    assert rates("LambdaLR", {"lr_lambda": lambda t: 0.5**t}) == [0.5**t for t in range(6)]
    np.testing.assert_allclose(rates("PolynomialLR", {"steps": 4, "end_learning_rate": 0.2}), [1, 0.8, 0.6, 0.4, 0.2, 0.2])
    np.testing.assert_allclose(
        rates("CosineDecayLR", {"decay_steps": 4, "alpha": 0.1}), [0.9 * (1 + math.cos(math.pi * min(t, 4) / 4)) / 2 + 0.1 for t in range(6)]
    )
    np.testing.assert_allclose(rates("WarmUpLR", {"warmup_factor": 0.25, "warmup_iters": 3}), [0.25, 0.5, 0.75, 1, 1, 1])

    optimizer = optim.SGD([tensor(np.zeros(1))], lr=1.0)
    warm = lr_scheduler.WarmUpLR(lr_scheduler.ExponentialLR(optimizer, 0.5), 0.5, 2, "constant")
    lr_history = [optimizer.param_groups[0]["lr"]]
    for _ in range(3):
        warm.step()
        lr_history.append(optimizer.param_groups[0]["lr"])
    assert lr_history == [0.5, 0.5, 0.25, 0.125]
    again = lr_scheduler.StepLR(optim.SGD([tensor(np.zeros(1))], lr=1.0), 2)
    again.load_state_dict({**again.state_dict(), "last_epoch": 5})
    assert again.get_last_lr() == pytest.approx([0.01])


def test_groups_and_mistakes() -> None:
    a, b = tensor(np.zeros(2)), tensor(np.ones(2))
    optimizer = optim.SGD([{"params": [a], "lr": 0.5}, {"params": b}], lr=0.1)
    assert [group["lr"] for group in optimizer.param_groups] == [0.5, 0.1]
    a.grad, b.grad = tensor(np.ones(2)), tensor(np.ones(2))
    optimizer.step()
    np.testing.assert_allclose([a.array, b.array], [[-0.5, -0.5], [0.9, 0.9]])
    optimizer.zero_grad(set_to_none=False)
    assert a.grad is not None and not a.grad.array.any()
    optimizer.zero_grad()
    assert a.grad is None
    for options, reason in (
        ({"params": []}, "params is empty"),
        ({"params": [a, a]}, "parameter twice"),
        ({"params": [a], "lr": -1.0}, "lr must be a number of at least 0"),
        ({"params": [{"params": [a], "momentun": 0.9}]}, 'did you mean "momentum"'),
        ({"params": [3]}, "got int"),
        ({"params": [a], "nesterov": True}, "nesterov requires a momentum"),
    ):
        with pytest.raises(ConfigError, match=reason):
            optim.SGD(**options)
    with pytest.raises(ConfigError, match="betas must be a pair"):
        optim.Adam([a], betas=(0.9, 1.0))


@with_ranks(2)
def test_groups_clip_their_gradients(rank: int) -> None:
    layout = Layout(Placement("cpu", (0, 1)), (S(0),))
    a, b = tensor(np.zeros(4), rank, layout), tensor(np.zeros(4), rank, layout)
    optimizer = optim.SGD([{"params": [a], "clip_grad_max_norm": 1.0}, {"params": [b]}], lr=1.0)
    a.grad, b.grad = tensor(np.full(4, 3.0), rank, layout), tensor(np.full(4, 3.0), rank, layout)
    optimizer.clip_grad()
    np.testing.assert_allclose(numpy(a.grad), np.full(4, 0.5), rtol=1e-5)
    np.testing.assert_array_equal(numpy(b.grad), np.full(4, 3.0))


@with_ranks(2)
def test_partial_parameters_are_not_stepped(rank: int) -> None:
    p = tensor(RECORDED["w"], rank, Layout(Placement("cpu", (0, 1)), (P,)))
    p.grad = p.clone()
    with pytest.raises(Exception, match="the overwritten tensor has layout"):
        optim.Adam([p]).step()


def test_warm_up_before_functions_of_the_step() -> None:
    """Groups have separate functions; the warm-up rates lead to the value of the function at the end of the warm-up."""
    first, second = flow.nn.Parameter(flow.zeros(1)), flow.nn.Parameter(flow.zeros(1))
    optimizer = flow.optim.SGD([{"params": [first], "lr": 0.4}, {"params": [second], "lr": 2.0}], lr=0.1)
    inner = flow.optim.lr_scheduler.LambdaLR(optimizer, [lambda t: 1 / (1 + t), lambda t: 0.5**t])
    schedule = flow.optim.lr_scheduler.WarmUpLR(inner, warmup_factor=0.5, warmup_iters=2)
    rates = [schedule.get_last_lr()]
    for _ in range(4):
        schedule.step()
        rates.append(schedule.get_last_lr())
    ends = (0.4 / 3, 0.5)
    starts = (0.2, 1.0)
    halfway = [(start + end) / 2 for start, end in zip(starts, ends, strict=True)]
    expected = [list(starts), halfway, list(ends), [0.1, 0.25], [0.08, 0.125]]
    np.testing.assert_allclose(rates, expected, rtol=1e-12)
    constant = flow.optim.lr_scheduler.WarmUpLR(inner, warmup_factor=0.5, warmup_iters=2, warmup_method="constant")
    np.testing.assert_allclose(constant.get_last_lr(), starts, rtol=1e-12)


def test_arguments_of_the_wrong_kind_raise() -> None:
    weight = flow.nn.Parameter(flow.zeros(2))
    for params, options, message in (
        (weight, {"lr": 0.1}, r"test_optim.py:\d+: params must be a list, not a single tensor float32\[2\]"),
        ([weight], {"lr": "a"}, r"test_optim.py:\d+: lr must be a number of at least 0, not 'a'"),
        ([weight], {"lr": None}, r"test_optim.py:\d+: lr must be a number of at least 0, not None"),
    ):
        with pytest.raises(ConfigError, match=message):
            flow.optim.SGD(params, **options)


def test_schedules_step_in_compiled_functions_and_graphs() -> None:
    def trained(kind: str, create: Callable[[Any, Any], Any]) -> list[float]:
        p = flow.nn.Parameter(flow.ones(2))
        optimizer = optim.SGD([p], lr=0.2)
        schedule = create(lr_scheduler, optimizer)

        def step() -> flow.Tensor:
            optimizer.zero_grad()
            loss = (p**2).sum()
            loss.backward()
            optimizer.step()
            schedule.step()
            return loss

        class Training(flow.nn.Graph):
            def __init__(self) -> None:
                super().__init__()
                self.p = p
                self.add_optimizer(optimizer, lr_sch=schedule)

            def build(self) -> flow.Tensor:
                loss = (self.p**2).sum()
                loss.backward()
                return loss

        run = {"eager": step, "compiled": flow.compile(step)}.get(kind) or Training()
        return [float(run()) for _ in range(6)]

    for create in (
        lambda of, optimizer: of.OneCycleLR(optimizer, 0.5, total_steps=8, cycle_momentum=False),
        lambda of, optimizer: of.SequentialLR(optimizer, [of.ConstantLR(optimizer, 0.5, 2), of.ExponentialLR(optimizer, 0.5)], [3]),
        COMPOSED["multiplicative"],
        COMPOSED["by a user"],
    ):
        expected = trained("eager", create)
        np.testing.assert_allclose(trained("compiled", create), expected, rtol=1e-6)
        np.testing.assert_allclose(trained("graph", create), expected, rtol=1e-6)
    momentum = lambda of, optimizer: of.OneCycleLR(optimizer, 0.5, total_steps=8)  # noqa: E731 - as the cases
    np.testing.assert_allclose(trained("compiled", momentum), trained("eager", momentum), rtol=1e-6)
    with pytest.raises(JobError, match="lr_sch changes the momentum at every step"):
        trained("graph", momentum)


@pytest.mark.parametrize(
    ("kind", "options", "message"),
    [
        ("OneCycleLR", {"max_lr": 0.1, "total_steps": 0}, "total_steps must be an integer of at least 1, not 0"),
        ("OneCycleLR", {"max_lr": [0.1, 0.2], "total_steps": 3}, r"max_lr must be a number, or a list of one number per group \(1\)"),
        ("OneCycleLR", {"max_lr": 0.1, "total_steps": 3, "anneal_strategy": "sine"}, 'anneal_strategy must be "cos" or "linear", not \'sine\''),
        ("CyclicLR", {"base_lr": 0.1, "max_lr": 0.2, "mode": "square"}, 'mode must be "triangular"'),
        ("CyclicLR", {"base_lr": 0.1, "max_lr": 0.2, "step_size_up": "a"}, "step_size_up must be at least 1, not 'a'"),
        ("CosineAnnealingWarmRestarts", {"T_0": 2.5}, "T_0 must be an integer of at least 1, not 2.5"),
        ("SequentialLR", {"schedulers": [], "milestones": []}, "schedulers must be a list of at least one schedule"),
        ("StepLR", {"step_size": 2, "gamma": "a"}, "gamma must be a number, not 'a'"),
        ("PolynomialLR", {"cycle": True}, "end_learning_rate and cycle need steps"),
        ("ConstantLR", {"factor": "a"}, r"factor must be in \[0, 1\], not 'a'"),
        ("StepLR", {"step_size": 2, "last_epoch": None}, "last_epoch must be a number of steps, or -1, not None"),
        ("ReduceLROnPlateau", {"min_lr": "a"}, "min_lr must be a number, or a list"),
    ],
)
def test_options_of_schedules_out_of_range_raise(kind: str, options: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=rf"lr_scheduler.{kind} at test_optim.py:\d+: {message}"):
        schedule_of(kind, options)
