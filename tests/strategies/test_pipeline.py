"""Cuts of pipeline stages, and their ranks."""

from __future__ import annotations

from typing import Any

import pytest
import trained

from jobflow import strategies as st
from jobflow.core.errors import ConfigError, PlacementError
from jobflow.engine.session import current_session


def stages(job: str) -> dict[str, int]:
    """The stage of every forward node that has one, by name."""
    (compiled,) = (compiled for compiled in current_session()._compiled.values() if compiled.name == job)
    nodes = compiled.programs[0].graph.nodes
    return {node.name: node.provenance.stage for node in nodes if node.provenance.stage is not None and node.phase == "forward"}


def ranks(*names: str) -> list[tuple[int, ...]]:
    return [current_session().variables[name].placement.ranks for name in names]


def test_stages_are_layers_of_like_work() -> None:
    trained.mlp_curve(st.pipeline(), 3, 1)
    stage_of = stages("train_mlp")
    assert [stage_of[name] for name in ("up-matmul", "down-matmul", "head-matmul")] == [0, 1, 2]
    assert ranks("up-weight", "down-weight", "head-weight") == [(0,), (1,), (2,)]
    assert ranks("up-weight-m", "head-bias-v") == [(0,), (2,)], "what the optimizer remembers lies with its variable"


def test_stages_begin_at_names() -> None:
    trained.mlp_curve(st.pipeline(cuts=["head-*"]), 2, 1)
    assert ranks("up-weight", "down-weight", "head-weight") == [(0,), (0,), (1,)]
    trained.mlp_curve(st.pipeline(cuts="down-weight"), 2, 1)
    assert ranks("up-weight", "down-weight", "head-weight") == [(0,), (1,), (1,)]


def test_operations_on_arguments_run_on_the_stages_that_read_them() -> None:
    """The words go to the first stage, the labels to the last."""
    trained.gpt_curve("pp", 2, 1)
    (compiled,) = current_session()._compiled.values()
    placements = {value.name: value.node.placement.ranks for value in compiled.graph.inputs}
    assert placements == {"words": (0,), "following": (1,)}


def test_groups_take_turns_when_stages_are_interleaved() -> None:
    trained.mlp_curve(st.pipeline(2, stages=4, microbatches=4, schedule="interleaved"), 2, 1)
    assert sorted(set(stages("train_mlp").values())) == [0, 1, 2, 3]
    (compiled,) = current_session()._compiled.values()
    for node in compiled.programs[0].graph.nodes:
        if node.provenance.stage is not None and node.op.word() != "reroute":
            assert node.placement.ranks == (node.provenance.stage % 2,)


def test_every_stage_has_a_mesh_of_its_own() -> None:
    trained.mlp_curve(st.mesh(pipeline=2, data=2, tensor=2), 8, 1)
    placements = {variable.placement for name, variable in current_session().variables.items() if variable.trainable}
    assert {(p.ranks, p.mesh) for p in placements} == {((0, 1, 2, 3), (2, 2)), ((4, 5, 6, 7), (2, 2))}


def test_the_pipeline_may_be_the_inner_dimension() -> None:
    trained.mlp_curve(st.combine(st.data_parallel(2), st.pipeline(2)), 4, 1)
    assert ranks("up-weight", "head-weight") == [(0, 2), (1, 3)]


@pytest.mark.parametrize(
    ("strategy", "devices", "kind", "message"),
    [
        (st.pipeline(stages=3), 2, ConfigError, "stages 3 must be a multiple of 2, the number of groups of ranks"),
        (st.pipeline(cuts=["down-*", "head-*"]), 2, ConfigError, "2 cuts define 3 stages, not 2; pass 1 cuts, or set stages"),
        (st.pipeline(cuts=["nothing"]), 2, ConfigError, 'job train_mlp has no op or variable like "nothing"'),
        (st.pipeline(cuts=["head-*", "down-*"]), 3, ConfigError, 'the first op or variable like "down-*" does not follow the previous cut'),
        (st.pipeline(stages=400), 2, PlacementError, "are too few for 400 stages"),
        (st.pipeline(4), 2, PlacementError, "the sizes do not match the 2 ranks of the job"),
        (st.combine(st.pipeline(2), st.pipeline(2)), 4, PlacementError, "only one dimension can be a pipeline"),
    ],
    ids=str,
)
def test_mistakes(strategy: Any, devices: int, kind: type[Exception], message: str) -> None:
    with pytest.raises(kind) as caught:
        trained.mlp_curve(strategy, devices, 1)
    assert message in str(caught.value)
