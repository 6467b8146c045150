"""Training as a graph equals eager training on one rank: stages, microbatches, layouts, ZeRO, checkpoints."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
import pytest
from graphs import Model, Trained, as_graph, at_once, batches, tensor_of, usual, weights
from ranks import agree, on_ranks

from jobflow.core.errors import CheckpointError
from jobflow.core.types import bfloat16
from jobflow.engine.placements import sbp
from jobflow.functional.saving import load, save
from jobflow.nn.graph import GradScaler, GraphModule, StaticGradScaler
from jobflow.optim.lr_scheduler import StepLR
from jobflow.optim.optimizers import LAMB, SGD, Adagrad, Adam, AdamW, RMSprop

STEPS = 4
S0, S1, B = sbp.split(0), sbp.split(1), sbp.broadcast

OPTIMIZERS: dict[str, Any] = {
    "sgd": lambda p: SGD(p, 0.1),
    "momentum": lambda p: SGD(p, 0.1, momentum=0.9, weight_decay=0.01),
    "adam": lambda p: Adam(p, 0.01),
    "adamw": lambda p: AdamW(p, 0.01),
    "lamb": lambda p: LAMB(p, 0.01, weight_decay=0.1),
    "rmsprop": lambda p: RMSprop(p, 0.01),
    "adagrad": lambda p: Adagrad(p, 0.1),
    "clipped": lambda p: SGD([{"params": p, "lr": 0.1, "clip_grad_max_norm": 0.1, "clip_grad_norm_type": 2.0}]),
}


@cache
def expected(optimizer: str) -> tuple[list[float], list[Any]]:
    """Return losses and weights of eager training on one rank."""

    def program(rank: int) -> Any:
        model = Model(1)
        chosen = OPTIMIZERS[optimizer](model.parameters())
        return at_once(model, chosen, StepLR(chosen, 2, 0.5), (B, B), STEPS), weights(model)

    return on_ranks(1, program)[0]


def trained(rank: int, n: int, optimizer: str, how: tuple[Any, Any, Any], setting: Any = usual) -> Any:
    model = Model(n, second=how[2])
    chosen = OPTIMIZERS[optimizer](model.parameters())
    graph = Trained(model, [chosen], StepLR(chosen, 2, 0.5), setting)
    losses = as_graph(graph, model.places, how[:2], STEPS)
    return losses, weights(model), [str(p.layout) for p in model.parameters()], repr(graph)


def check(got: list[Any], optimizer: str, close: float = 2e-6) -> None:
    losses, references = expected(optimizer)
    for mine, own, *_ in got:
        np.testing.assert_allclose(mine, losses, rtol=close, atol=close)
        for a, b in zip(own, references, strict=True):
            np.testing.assert_allclose(a, b, rtol=10 * close, atol=10 * close)


def parts(k: int, schedule: str | None = None) -> Any:
    def setting(graph: Any) -> None:
        graph.config.set_gradient_accumulation_steps(k)
        if schedule is not None:
            graph.config.set_pipeline_schedule(schedule)

    return setting


def zero(stage: int, k: int = 1) -> Any:
    def setting(graph: Any) -> None:
        parts(k)(graph)
        graph.config.enable_zero(True, stage=stage, shard_min_size=4)

    return setting


@pytest.mark.parametrize("optimizer", list(OPTIMIZERS))
@pytest.mark.parametrize("n", [1, 4])
def test_every_optimizer(n: int, optimizer: str) -> None:
    check(on_ranks(n, trained, n, optimizer, (S0, B, S1)), optimizer)


@pytest.mark.parametrize("how", [(S0, B, S1), (B, S0, B), (S0, S0, S0), (S1, S1, S1), (S0, S1, B)])
@pytest.mark.parametrize("k", [2, 4])
def test_microbatches_pair_their_rows_in_every_layout(how: Any, k: int) -> None:
    check(on_ranks(4, trained, 4, "momentum", how, parts(k)), "momentum")


@pytest.mark.parametrize("schedule", ["gpipe", "1f1b"])
@pytest.mark.parametrize("n", [1, 2, 4])
def test_stages_run_microbatches_by_a_schedule(n: int, schedule: str) -> None:
    check(on_ranks(n, trained, n, "adam", (S0, B, B), parts(4, schedule)), "adam")


@pytest.mark.parametrize("stage", [1, 2, 3])
@pytest.mark.parametrize("k", [1, 2])
def test_zero_stores_shards_of_parameters(stage: int, k: int) -> None:
    got = on_ranks(4, trained, 4, "adam", (S0, S0, S1), zero(stage, k))
    check(got, "adam")
    assert [layouts for _, _, layouts, _ in got] == [["cpu[0-1]:S(0)", "cpu[2-3]:S(1)"]] * 4


def test_checkpointed_modules_are_rematerialized() -> None:
    def setting(graph: Any) -> None:
        graph.model.m_stage0.to(GraphModule).activation_checkpointing = True
        parts(2)(graph)

    got = on_ranks(2, trained, 2, "sgd", (B, B, B), setting)
    check(got, "sgd")
    assert "again:" in got[0][3] and "again:" not in on_ranks(2, trained, 2, "sgd", (B, B, B))[0][3]


@pytest.mark.parametrize("scaler", [None, GradScaler(init_scale=1024.0), StaticGradScaler(64.0)])
def test_half_precision_is_near(scaler: Any) -> None:
    def setting(graph: Any) -> None:
        graph.config.enable_amp(True, dtype=bfloat16) if scaler is None else graph.config.enable_amp(True)
        if scaler is not None:
            graph.set_grad_scaler(scaler)

    got = on_ranks(2, trained, 2, "sgd", (B, B, B), setting)
    check(got, "sgd", 2e-2 if scaler is None else 3e-3)
    assert got[0][0] != expected("sgd")[0]


def test_a_scaler_alone_changes_nothing_but_infinities_skip_a_step() -> None:
    check(on_ranks(2, trained, 2, "sgd", (B, B, B), lambda graph: graph.set_grad_scaler(StaticGradScaler(64.0))), "sgd")
    got = on_ranks(1, trained, 1, "sgd", (B, B, B), lambda graph: graph.set_grad_scaler(GradScaler(init_scale=float(2.0**127) * 1.5)))
    losses, _ = expected("sgd")
    assert got[0][0][0] == pytest.approx(losses[0]) and len(got[0][0]) == STEPS


def test_several_optimizers_each_step_their_own() -> None:
    def program(rank: int, graph: bool) -> Any:
        model = Model(1)
        first, second = SGD([model.m_stage0.w], 0.1), AdamW([model.m_stage1.w], 0.01)
        if graph:
            return as_graph(Trained(model, [first, second], None, usual), model.places, (B, B), STEPS), weights(model)
        both = Both(first, second)
        return at_once(model, both, None, (B, B), STEPS), weights(model)

    (a,), (b,) = on_ranks(1, program, True), on_ranks(1, program, False)
    np.testing.assert_allclose(a[0], b[0], rtol=1e-6)
    np.testing.assert_allclose(a[1][1], b[1][1], rtol=1e-5)


class Both:
    """Two optimizers with the interface of one."""

    def __init__(self, *optimizers: Any) -> None:
        self.optimizers = optimizers
        self.param_groups = optimizers[0].param_groups

    def zero_grad(self) -> None:
        for one in self.optimizers:
            one.zero_grad()

    def step(self) -> None:
        for one in self.optimizers:
            one.step()


@pytest.mark.parametrize("n", [2, 4])
def test_a_state_loaded_on_one_rank_is_sent_to_its_stages(n: int, tmp_path: Any) -> None:
    """The loading rank may be outside of the stage."""

    def program(rank: int, steps: int, skip: int) -> Any:
        model = Model(n)
        optimizer = AdamW(model.parameters(), 0.01)
        graph = Trained(model, [optimizer], StepLR(optimizer, 2, 0.1), usual)
        if skip:
            graph.load_state_dict(load(tmp_path / "saved", global_src_rank=n - 1))
        losses = as_graph(graph, model.places, (S0, B), steps, skip)
        if steps == 2:
            save(graph.state_dict(), tmp_path / "saved", global_dst_rank=0)
        return losses

    whole, _, losses = (agree(n, program, *arguments) for arguments in ((4, 0), (2, 0), (4, 2)))
    assert whole[2:] == losses


def test_a_frozen_parameter_does_not_change_and_the_loss_is_of_the_batch() -> None:
    def program(rank: int) -> Any:
        model = Model(2)
        model.m_stage0.w.requires_grad = False
        before = weights(model)
        graph = Trained(model, [SGD(model.parameters(), 0.1)], None, parts(4))
        ((x, y),) = batches(1)
        loss = graph(tensor_of(x, model.places[0], S0), tensor_of(y, model.places[1], S0))
        after = weights(model)
        return tuple(loss.shape), np.array_equal(before[0], after[0]), np.array_equal(before[1], after[1])

    assert agree(2, program) == ((), True, False)


def test_training_resumes_from_a_state_with_equal_results() -> None:
    def program(rank: int) -> Any:
        def graph_of() -> tuple[Model, Any]:
            model = Model(4)
            optimizer = AdamW(model.parameters(), 0.01)
            return model, Trained(model, [optimizer], StepLR(optimizer, 2, 0.1), usual)

        model, graph = graph_of()
        whole = as_graph(graph, model.places, (S0, B), 4)
        model, graph = graph_of()
        as_graph(graph, model.places, (S0, B), 2)
        saved = graph.state_dict()
        steps, names = int(saved["System-Train-TrainStep"].numpy()[0]), sorted(saved)
        rates = saved["System-Train-LearningRate"]
        model, graph = graph_of()
        graph.load_state_dict(saved)
        losses = as_graph(graph, model.places, (S0, B), 4, skip=2)
        model, graph = graph_of()
        graph.load_state_dict({name: x for name, x in saved.items() if name != "System-Train-LearningRate"})
        assert as_graph(graph, model.places, (S0, B), 4, skip=2) == losses, "what was saved before there were rates in it"
        model = Model(4)
        with pytest.raises(CheckpointError, match="1 learning-rate schedules, but the graph has 0"):
            Trained(model, [AdamW(model.parameters(), 0.01)], None, usual).load_state_dict(saved)
        return whole[2:], losses, steps, names, rates

    for whole, continued, steps, names, rates in on_ranks(4, program):
        np.testing.assert_array_equal(whole, continued)
        assert steps == 2
        assert rates[0]["last_epoch"] == 2
        assert names == [
            "System-Train-LearningRate",
            "System-Train-TrainStep",
            "model",
            *(f"model.m_stage{i}.w-{slot}" for i in (0, 1) for slot in ("m", "v")),
        ]
