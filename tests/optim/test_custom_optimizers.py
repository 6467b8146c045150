"""LBFGS, optimizers of users, hooks, groups with names, and new optimizers in graphs and compiled steps."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from optim_cases import LBFGS, STEPS, WHOLE_MATRICES
from ranks import on_ranks, with_ranks

import jobflow as flow
from jobflow import nn, optim
from jobflow.core.errors import ArgumentError, ConfigError, JobError

RECORDED = dict(np.load(Path(__file__).parent / "references" / "steps.npz"))


def cpus() -> flow.placement:
    return flow.placement("cpu", [0, 1])


def parameter(values: Any, sbp: Any = None) -> nn.Parameter:
    x = flow.tensor(values)
    return nn.Parameter(x if sbp is None else x.to_global(cpus(), flow.sbp.broadcast).to_global(cpus(), sbp))


def minimised(rank: int, options: dict[str, Any], layouts: tuple[Any, Any]) -> list[float]:
    w, b = RECORDED["w"], RECORDED["b"]
    params = [parameter(w, layouts[0]), parameter(2 * w[0], layouts[1])]
    target = flow.tensor(b) if layouts[0] is None else flow.tensor(b).to_global(cpus(), flow.sbp.broadcast)
    optimizer = optim.LBFGS(params, **options)

    def closure() -> flow.Tensor:
        optimizer.zero_grad()
        loss = sum(((p - target) ** 4).sum() + ((p - target) ** 2).sum() for p in params)
        loss.backward()
        return loss

    return [float(optimizer.step(closure)) for _ in range(4)]


@pytest.mark.parametrize("case", LBFGS)
def test_losses_of_lbfgs_equal_the_record(case: str) -> None:
    np.testing.assert_allclose(minimised(0, LBFGS[case], (None, None)), RECORDED[case], rtol=1e-9)
    for losses in on_ranks(2, minimised, LBFGS[case], (flow.sbp.split(0), flow.sbp.broadcast)):
        np.testing.assert_allclose(losses, RECORDED[case], rtol=1e-9)


def test_lbfgs_resumes_from_its_state() -> None:
    p = parameter([3.0, -2.0])
    optimizer = optim.LBFGS([p], max_iter=2)

    def closure() -> flow.Tensor:
        p.grad = None
        loss = ((p - 1) ** 4).sum()
        loss.backward()
        return loss

    optimizer.step(closure)
    before, saved = p.detach().clone(), optimizer.state_dict()
    optimizer.step(closure)
    result = p.detach().clone()
    p.data.copy_(before)
    other = optim.LBFGS([p], max_iter=2)
    other.load_state_dict(saved)
    other.step(closure)
    np.testing.assert_array_equal(p.detach().numpy(), result.numpy())


class Momentum(optim.Optimizer):
    """A user-defined optimizer with state."""

    def __init__(self, params: Iterable[Any], lr: float = 0.1, beta: float = 0.9) -> None:
        super().__init__(params, {"lr": lr, "beta": beta})

    @flow.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        loss = None
        if closure is not None:
            with flow.enable_grad():
                loss = closure()
        for group in self.param_groups:
            for p in group["params"]:
                if p.grad is None:
                    continue
                state = self.state[p]
                if len(state) == 0:
                    state["step"], state["mean"] = 0, flow.zeros_like(p.data)
                state["step"] += 1
                state["mean"].mul_(group["beta"]).add_(p.grad.data, alpha=1 - group["beta"])
                p.data.add_(state["mean"], alpha=-group["lr"] / (1 - group["beta"] ** state["step"]))
        return loss


class Plain(optim.Optimizer):
    """A user-defined optimizer without state."""

    def __init__(self, params: Iterable[Any], lr: float = 0.1) -> None:
        super().__init__(params, {"lr": lr})

    def step(self, closure: Callable[[], Any] | None = None) -> None:
        for group in self.param_groups:
            for p in group["params"]:
                p.data.add_(p.grad.data, alpha=-group["lr"])


def losses(rank: int, create: Callable[[Any], Any], kind: str, sbp: Any = None) -> list[float]:
    """Return the losses of five steps: eager, in a compiled function, or in a graph."""
    w = parameter(RECORDED["w"].astype(np.float32), sbp)
    b = flow.tensor(RECORDED["b"].astype(np.float32))
    b = b if sbp is None else b.to_global(cpus(), flow.sbp.broadcast)
    optimizer = create([w])

    def step() -> flow.Tensor:
        optimizer.zero_grad()
        loss = ((w - b) ** 2).mean()
        loss.backward()
        optimizer.step()
        return loss

    class Training(nn.Graph):
        def __init__(self) -> None:
            super().__init__()
            self.w = w
            self.add_optimizer(optimizer)

        def build(self) -> flow.Tensor:
            loss = ((self.w - b) ** 2).mean()
            loss.backward()
            return loss

    run = {"eager": step, "compiled": flow.compile(step)}.get(kind) or Training()
    return [float(run()) for _ in range(5)]


CREATED: dict[str, Callable[[Any], Any]] = {
    "radam": lambda p: optim.RAdam(p, lr=0.05, betas=(0.9, 0.7), weight_decay=0.01),
    "nadam": lambda p: optim.NAdam(p, lr=0.05, momentum_decay=0.1),
    "adamax": optim.Adamax,
    "lion": lambda p: optim.Lion(p, lr=0.01, weight_decay=0.1),
    "rprop": optim.Rprop,
    "asgd": lambda p: optim.ASGD(p, t0=2, lambd=0.1),
    "momentum": Momentum,
    "plain": Plain,
    "adafactor": optim.Adafactor,
    "muon": lambda p: optim.Muon(p, lr=0.05),
}
#: optimizers that graphs do not support
COMPOSED = ("momentum", "plain", "adafactor", "muon")


@pytest.mark.parametrize("case", CREATED)
def test_losses_are_equal_in_compiled_steps_and_graphs(case: str) -> None:
    expected = losses(0, CREATED[case], "eager")
    for kind in ("compiled",) if case in COMPOSED else ("compiled", "graph"):
        np.testing.assert_allclose(losses(0, CREATED[case], kind), expected, rtol=1e-5)
    if case in COMPOSED:
        for values in on_ranks(2, losses, CREATED[case], "eager", flow.sbp.split(0)):
            np.testing.assert_allclose(values, expected, rtol=1e-5)


def test_steps_of_lion_equal_the_formula() -> None:
    w, g = RECORDED["w"], RECORDED["b"]
    p = parameter(w)
    optimizer = optim.Lion([p], lr=0.125, weight_decay=0.1)
    m = np.zeros_like(w)
    for sign in (1, -1, 1):
        p.grad = flow.tensor(sign * g)
        optimizer.step()
        w = w * (1 - 0.125 * 0.1) - 0.125 * np.sign(0.9 * m + 0.1 * sign * g)
        m = 0.99 * m + 0.01 * sign * g
        np.testing.assert_allclose(p.detach().numpy(), w, rtol=1e-12)


@pytest.mark.parametrize("case", WHOLE_MATRICES)
def test_steps_of_adafactor_equal_the_record(case: str) -> None:
    p = parameter(RECORDED["w"])
    optimizer = optim.Adafactor([p], **WHOLE_MATRICES[case][1])
    for i in range(STEPS):
        p.grad = 2 * flow.tensor(RECORDED["a"]) * (p.detach() - flow.tensor(RECORDED["b"]))
        optimizer.step()
        np.testing.assert_allclose(p.detach().numpy(), RECORDED[case][i], rtol=1e-9)
        saved, optimizer = optimizer.state_dict(), optim.Adafactor([p], **WHOLE_MATRICES[case][1])
        optimizer.load_state_dict(saved)


@pytest.mark.parametrize("tall", [False, True])
def test_steps_of_muon_equal_the_formula(tall: bool) -> None:
    w, g = (RECORDED[name] if tall else RECORDED[name].T.copy() for name in "wb")
    p, m = parameter(w), 0
    optimizer = optim.Muon([p], lr=0.125, momentum=0.5)
    for _ in range(2):
        p.grad = flow.tensor(g)
        optimizer.step()
        m = 0.5 * m + 0.5 * g
        left, values, right = np.linalg.svd((g + m) / 2, full_matrices=False)
        values /= np.linalg.norm(values)
        for _ in range(5):
            values = 3.4445 * values - 4.775 * values**3 + 2.0315 * values**5
        w = w * (1 - 0.125 * 0.1) - 0.125 * max(1, w.shape[0] / w.shape[1]) ** 0.5 * (left * values) @ right
        np.testing.assert_allclose(p.detach().numpy(), w, rtol=1e-9)


@pytest.mark.parametrize(
    ("kind", "options", "text"),
    [
        ("Adafactor", {"d": 0.5}, "d must be a number of at least 1"),
        ("Adafactor", {"eps": 1e-3}, "eps must be two numbers"),
        ("Adafactor", {"beta2_decay": "fast"}, "beta2_decay must be a number of at most 0"),
        ("Muon", {"ns_steps": 100}, "ns_steps must be an integer from 0 to 99"),
        ("Muon", {"adjust_lr_fn": "rms"}, 'adjust_lr_fn must be None, "original"'),
        ("Muon", {"params": [1.0]}, r"params must be matrices; got a parameter float32\[1\]"),
    ],
)
def test_optimizers_of_matrices_refuse_other_options(kind: str, options: dict[str, Any], text: str) -> None:
    values = options.pop("params", [[1.0]])
    with pytest.raises(ConfigError, match=rf"optim.{kind} at test_custom_optimizers.py:\d+: {text}"):
        getattr(optim, kind)([parameter(values)], **options)


def test_hooks_are_called_around_steps() -> None:
    p = parameter([1.0])
    p.grad = flow.ones(1)
    optimizer, calls = optim.SGD([p], lr=0.5), []
    before = optimizer.register_step_pre_hook(lambda own, args, kwargs: calls.append(("before", own is optimizer, p.item())))
    optimizer.register_step_post_hook(lambda own, args, kwargs: calls.append(("after", args, p.item())))
    optimizer.step()
    before.remove()
    optimizer.step()
    assert calls == [("before", True, 1.0), ("after", (), 0.5), ("after", (), 0.0)]
    optimizer.register_step_pre_hook(lambda own, args, kwargs: 3)
    with pytest.raises(ConfigError, match=r"optim.SGD.step at test_custom_optimizers.py:\d+: a hook must return None or a pair"):
        optimizer.step()
    with pytest.raises(ConfigError, match=r"register_step_pre_hook at .*: hook must be a function"):
        optimizer.register_step_pre_hook(3)


def test_compiled_steps_call_hooks_that_are_added_later() -> None:
    p = parameter([1.0])
    optimizer, calls = optim.SGD([p], lr=0.5), []

    @flow.compile
    def step() -> None:
        optimizer.zero_grad()
        (p * 1.0).sum().backward()
        optimizer.step()

    step()
    optimizer.register_step_post_hook(lambda own, args, kwargs: calls.append(p.item()))
    step()
    assert calls == [0.0]


def test_groups_have_names_and_options_of_users() -> None:
    layer = nn.Linear(2, 2)
    optimizer = optim.AdamW([{"params": layer.named_parameters(), "scale": 3}], foreach=True, fused=False)
    assert optimizer.param_groups[0]["param_names"] == ["weight", "bias"] and optimizer.param_groups[0]["scale"] == 3
    with pytest.raises(ConfigError, match="some parameters have names and others do not"):
        optimizer.add_param_group({"params": [parameter([1.0])]})


@pytest.mark.parametrize(
    ("kind", "options", "message"),
    [
        ("Adam", {"foreach": True, "fused": True}, "foreach and fused must not both be True"),
        ("Adam", {"foreach": "yes"}, "foreach must be True, False or None, not 'yes'"),
        ("Adam", {"differentiable": True}, "differentiable=True is not supported"),
        ("SGD", {"maximize": 3}, "maximize must be True or False, not 3"),
        ("Rprop", {"etas": (1.5, 0.5)}, "etas must be a pair"),
        ("Rprop", {"step_sizes": 3}, "step_sizes must be a pair"),
        ("NAdam", {"momentum_decay": -1}, "momentum_decay must be a number of at least 0, not -1"),
        ("ASGD", {"t0": "late"}, "t0 must be a number, not 'late'"),
        ("LBFGS", {"max_iter": 0}, "max_iter must be an integer of at least 1, not 0"),
        ("LBFGS", {"line_search_fn": "armijo"}, "line_search_fn must be None or \"strong_wolfe\", not 'armijo'"),
        ("Optimizer", {"defaults": 3}, "defaults must be a dict of options, not 3"),
    ],
)
def test_options_out_of_range_raise(kind: str, options: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=rf"optim.{kind} at test_custom_optimizers.py:\d+: {message}"):
        getattr(optim, kind)([parameter([1.0])], **options)


def test_lbfgs_needs_a_closure_and_no_graph() -> None:
    p = parameter([1.0])
    with pytest.raises(ArgumentError, match="closure must be a function that computes the gradients"):
        optim.LBFGS([p]).step()
    with pytest.raises(ConfigError, match="a step evaluates the loss several times, which a graph cannot do"):
        losses(0, optim.LBFGS, "graph")
    optimizer = optim.LBFGS([p])
    assert flow.compile(lambda: optimizer.step(lambda: p.sum()))().item() == 1.0  # runs eagerly
    optimizer.register_step_post_hook(lambda own, args, kwargs: None)
    with pytest.raises(JobError, match=r"Training_\d+.add_optimizer at .*: optim has hooks of step"):
        losses(0, lambda params: optimizer, "graph")


@with_ranks(2)
def test_averaged_models_keep_layouts_on_ranks(rank: int) -> None:
    layer = nn.Linear(4, 2).to_global(cpus(), flow.sbp.split(0))
    average = optim.swa_utils.AveragedModel(layer, multi_avg_fn=optim.swa_utils.get_ema_multi_avg_fn(0.75))
    first = layer.weight.numpy().copy()
    for _ in range(2):
        average.update_parameters(layer)
        with flow.no_grad():
            layer.weight.add_(1.0)
    np.testing.assert_allclose(average.module.weight.numpy(), first + 0.25, rtol=1e-6)
    assert average.module.weight.sbp == layer.weight.sbp


def test_averaged_models_have_the_mean_of_all_values() -> None:
    model = nn.Sequential(nn.Linear(2, 3), nn.BatchNorm1d(3))
    swa = optim.swa_utils.AveragedModel(model)
    own = optim.swa_utils.AveragedModel(model, avg_fn=lambda average, value, count: 0.5 * (average + value), use_buffers=True)
    first = model[0].weight.detach().numpy().copy()
    for i in range(3):
        with flow.no_grad():
            model[0].weight.copy_(flow.tensor(first + i))
            model[1].running_mean.fill_(float(i))
        swa.update_parameters(model)
        own.update_parameters(model)
    np.testing.assert_allclose(swa.module[0].weight.detach().numpy(), first + 1, rtol=1e-6)
    np.testing.assert_allclose(own.module[0].weight.detach().numpy(), first + 1.25, rtol=1e-6)
    assert own.module[1].running_mean.tolist() == [1.25] * 3 and swa.module[1].running_mean.tolist() == [2.0] * 3
    assert swa.n_averaged.item() == 3 and "n_averaged" in swa.state_dict()
    batches = [(flow.randn(5, 2), None) for _ in range(3)]
    optim.swa_utils.update_bn(batches, swa)
    means = [swa.module[0](x).detach().numpy().mean(0) for x, _ in batches]
    np.testing.assert_allclose(swa.module[1].running_mean.numpy(), np.mean(means, 0), rtol=1e-5, atol=1e-6)
    assert swa.module[1].momentum == 0.1
    for wrong in ({"avg_fn": 3}, {"avg_fn": max, "multi_avg_fn": max}):
        with pytest.raises(ArgumentError, match=r"swa_utils.AveragedModel at test_custom_optimizers.py:\d+: .*avg_fn"):
            optim.swa_utils.AveragedModel(model, **wrong)
    with pytest.raises(ArgumentError, match="decay must be a number from 0 to 1; got 2"):
        optim.swa_utils.get_ema_multi_avg_fn(2)
