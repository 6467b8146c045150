"""A program gives the same losses under every strategy."""

from __future__ import annotations

import functools

import numpy as np
import pytest
import trained

import jobflow as flow
import jobflow.typing as tp
from jobflow import strategies as st

MLP = {
    "consistent": st.consistent(),
    "dp": st.data_parallel(),
    "tp": st.tensor_parallel(),
    "tp by names": st.tensor_parallel(columns="up-weight", rows="down-weight"),
    "tp of the second layer": st.tensor_parallel(columns="down-weight", rows="head-weight"),
    "zero 1": st.zero(1, least=1),
    "zero 2": st.zero(2, least=1),
    "zero 3": st.zero(3, least=1),
    "pp": st.pipeline(),
    "pp in microbatches": st.pipeline(microbatches=3),
    "pp, gpipe": st.pipeline(microbatches=4, schedule="gpipe"),
    "dp x tp": st.combine(st.data_parallel(2), st.tensor_parallel()),
    "zero x tp": st.combine(st.zero(3, least=1), st.tensor_parallel(2)),
    "tp x dp": st.combine(st.tensor_parallel(2), st.data_parallel(2)),
    "dp x zero": st.combine(st.data_parallel(2), st.zero(3, least=1)),
    "pp x dp": st.mesh(pipeline=2, microbatches=3),
    "pp x zero": st.mesh(pipeline=2, data=2, zero=2, microbatches=2),
    "pp x tp": st.mesh(pipeline=2, tensor=2, microbatches=2),
    "interleaved": st.pipeline(2, microbatches=4, stages=4, schedule="interleaved"),
}
DEVICES = {"interleaved": 2}
GPT = (
    "dp",
    "tp",
    "pp",
    "2x2",
    "2x1x2",
    "2x2x1",
    "zero=1,least=1",
    "zero=2,least=1",
    "zero=3,least=1",
    "tensor=2,zero=2,least=1",
    "pipeline=2,tensor=2,microbatches=4",
)


@functools.cache
def expected(clip: float | None = None, batch: int = trained.BATCH) -> list[float]:
    return trained.mlp_curve(None, 1, batch=batch, clip=clip)


@functools.cache
def expected_of_gpt() -> list[float]:
    return trained.gpt_curve("dp", 1)


@pytest.mark.parametrize("name", MLP)
def test_mlp(name: str) -> None:
    curve = trained.mlp_curve(MLP[name], DEVICES.get(name, 4))
    np.testing.assert_allclose(curve, expected(), rtol=1e-9)


@pytest.mark.parametrize("strategy", [st.zero(1, least=1), st.zero(3, least=1), st.tensor_parallel(), st.mesh(data=1, tensor=3)], ids=repr)
def test_three_devices_cut_unevenly(strategy: st.Strategy) -> None:
    """No axis of the model divides by 3."""
    np.testing.assert_allclose(trained.mlp_curve(strategy, 3, batch=11), expected(batch=11), rtol=1e-9)


@pytest.mark.parametrize("name", ["dp", "tp", "zero 1", "zero 2", "zero 3", "zero x tp", "pp", "pp x zero"])
def test_clipping_by_global_norm(name: str) -> None:
    """The norm is that of all gradients, wherever their parts are."""
    np.testing.assert_allclose(trained.mlp_curve(MLP[name], 4, clip=0.05), expected(0.05), rtol=1e-9)


@pytest.mark.parametrize("name", ["tp", "pp x zero", "pp x tp"])
def test_optimizer_scalars_are_stored_with_their_variable(name: str) -> None:
    one, several = (trained.mlp_curve(*arguments, optimizer="LAMB") for arguments in ((None, 1), (MLP[name], 4)))
    np.testing.assert_allclose(several, one, rtol=1e-9)


@pytest.mark.parametrize("strategy", GPT)
def test_gpt(strategy: str) -> None:
    curve = trained.gpt_curve(strategy, 4)
    assert curve[-1] < curve[0], "it does not learn"
    np.testing.assert_allclose(curve, expected_of_gpt(), rtol=1e-5)


def test_eight_ranks_in_three_dimensions() -> None:
    np.testing.assert_allclose(trained.gpt_curve("2x2x2", 8), expected_of_gpt(), rtol=1e-5)


def test_mirrored_bodies_compute_the_loss_of_one_rank() -> None:
    """The 4 ranks compute the losses of their quarters of the rows; gradients are of all rows."""
    trained.begin(4)
    rows = trained.BATCH // 4

    @flow.global_function("train", trained.config_of(st.mirrored()))
    def job(
        images: tp.ListNumpy.Placeholder((rows, trained.WIDTH), dtype=flow.float64), labels: tp.ListNumpy.Placeholder((rows,), dtype=flow.int32)
    ) -> tp.ListNumpy:
        assert flow.scope.mirrored_view_enabled()
        loss = flow.nn.sparse_softmax_cross_entropy_with_logits(labels, trained.mlp(images))
        flow.optimizer.Adam(flow.optimizer.PiecewiseConstantScheduler([], [0.01])).minimize(loss)
        return loss

    curve = []
    for step in range(4):
        images, labels = trained.mlp_batch(step)
        losses = job(np.split(images, 4), np.split(labels, 4))
        assert [loss.shape for loss in losses] == [(rows,)] * 4
        curve.append(float(np.mean(losses)))
    np.testing.assert_allclose(curve, expected(), rtol=1e-9)
