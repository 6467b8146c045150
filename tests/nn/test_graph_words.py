"""nn.Graph: settings, proxies of modules, printed text, saved states and errors."""

from __future__ import annotations

import re
import warnings
from typing import Any

import numpy as np
import pytest
from graphs import Forward, Model, Trained, as_graph, graph_of, places, tensor_of, usual
from ranks import on_ranks, with_ranks

import jobflow as flow
from jobflow.core.errors import ConfigError, JobError
from jobflow.engine.placements import placement, sbp
from jobflow.functional.tensor_class import Tensor
from jobflow.nn.graph import Graph, GraphModule, ProxyModule
from jobflow.nn.modules.module import Module
from jobflow.optim.optimizers import SGD

S0, B = sbp.split(0), sbp.broadcast


def test_a_graph_needs_super_init_before_its_modules() -> None:
    class Early(Graph):
        def __init__(self, model: Any) -> None:
            self.model = model

    def program(rank: int) -> None:
        with pytest.raises(AttributeError, match=re.escape("super().__init__()")):
            Early(Model(1))

    on_ranks(1, program)


@with_ranks(1)
def test_optimizers_need_a_loss_and_a_loss_an_optimizer() -> None:
    model = Model(1)
    graph = Forward(model)
    graph.add_optimizer(SGD(model.parameters(), 0.1))
    with pytest.raises(JobError, match="an optimizer of jobflow"):
        graph.add_optimizer(0.1)

    class Wide(Trained):
        def build(self, x: Tensor, y: Tensor) -> Any:
            self.model(x)[1].backward()

    with pytest.raises(JobError, match=re.escape("the loss must have one element")):
        as_graph(Wide(model, [SGD(model.parameters(), 0.1)], None, usual), model.places, (B, B), 1)


@with_ranks(1)
@pytest.mark.parametrize("way", ["loss.backward", "autograd.backward", "autograd.grad"])
@pytest.mark.parametrize("kind", ["constant", "outside"])
def test_gradients_of_tensors_from_outside_of_build_raise(kind: str, way: str) -> None:
    model = Model(1)
    outside = flow.ones(1, requires_grad=True).sum()

    class Apart(Trained):
        def build(self, x: Tensor, y: Tensor) -> Any:
            loss = flow.tensor(8.0) if kind == "constant" else outside
            calls = {"autograd.backward": flow.autograd.backward, "autograd.grad": lambda loss: flow.autograd.grad(loss, x)}
            return loss.backward() if way == "loss.backward" else calls[way](loss)

    with pytest.raises(JobError, match=r"(backward|grad) at test_graph_words\.py:\d+"):
        as_graph(Apart(model, [SGD(model.parameters(), 0.1)], None, usual), model.places, (B, B), 1)


@with_ranks(1)
def test_an_empty_microbatch_raises() -> None:
    model = Model(1)
    graph = Trained(model, [SGD(model.parameters(), 0.1)], None, lambda g: g.config.set_gradient_accumulation_steps(9))
    with pytest.raises(JobError, match=re.escape("the batch has 8 rows (input0, input1), so 1 of the 9 microbatches would be empty")):
        as_graph(graph, model.places, (B, B), 1)


@with_ranks(1)
def test_settings_are_checked() -> None:
    graph = Forward(Model(1))
    with pytest.raises(ConfigError, match='did you mean "enable_zero"'):
        graph.config.enable_zeros()
    with pytest.raises(ConfigError, match="1, 2 or 3"):
        graph.config.enable_zero(stage=4)
    with pytest.raises(ConfigError, match="an int >= 1"):
        graph.config.set_gradient_accumulation_steps(0)
    with pytest.raises(ConfigError, match="1f1b"):
        graph.config.set_pipeline_schedule("2f2b")
    with pytest.raises(ConfigError, match="activation_checkpointing"):
        graph.model.to(GraphModule).activation_checkpoint = True
    assert not hasattr(graph.config, "nothing")


@with_ranks(1)
def test_switches_without_effect_are_accepted(capsys: pytest.CaptureFixture[str]) -> None:
    graph = Forward(Model(1))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        graph.config.allow_fuse_add_to_output(True)
        graph.config.set_outputs_buffer_size(2)


@with_ranks(1)
def test_modules_are_proxies_with_settings() -> None:
    model = Model(1)
    graph = Forward(model)
    assert isinstance(graph.model, ProxyModule) and isinstance(graph.model.m_stage0, ProxyModule)
    assert graph.model.to(Module) is model and graph.model.m_stage0.to(Module) is model.m_stage0
    graph.model.m_stage0.config.stage_id = 3
    assert graph.model.m_stage0.to(GraphModule).stage_id == 3
    assert graph.model.m_stage0.w is model.m_stage0.w
    with pytest.raises(JobError, match=r"nn\.Module or nn\.graph\.GraphModule"):
        graph.model.to(SGD)


@with_ranks(1)
def test_state_can_be_loaded_before_the_first_call_only() -> None:
    model = Model(1)
    graph = Forward(model)
    saved = graph.state_dict()
    assert list(saved) == ["model"] and list(saved["model"]) == ["m_stage0.w", "m_stage1.w"]
    assert not graph.is_compiled
    graph(tensor_of(np.ones((4, 5)), model.places[0], B))
    assert graph.is_compiled
    with pytest.raises(JobError, match="before its first call"):
        graph.load_state_dict(saved)


def test_repr_before_and_after_compilation() -> None:
    def program(rank: int) -> Any:
        model = Model(2)
        graph = Forward(model)
        before = repr(graph)
        graph(tensor_of(np.ones((4, 5)), places(2)[0], S0))
        return graph.name, before, repr(graph)

    for name, before, after in on_ranks(2, program):
        assert name == "Forward_0"
        assert "(PARAMETER:model.m_stage0.w:float32[5,8] cpu[0]:B)" in before and "(OP:" not in before
        assert "(INPUT:input0:float32[4,5] cpu[0]:S(0))" in after
        assert "MatMul()(input0, model.m_stage0.w)" in after and "move[cpu[0]" in after


def test_debug_prints_on_the_requested_ranks(capsys: pytest.CaptureFixture[str]) -> None:
    def program(rank: int) -> None:
        graph = graph_of(lambda x: x * 2.0)
        graph.debug(1, ranks=[1])
        graph(tensor_of(np.ones((4, 5)), placement("cpu", [0, 1]), S0))

    on_ranks(2, program)
    assert capsys.readouterr().out.count("job Plain_0 on cpu[0-1]") == 1
