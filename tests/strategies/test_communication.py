"""Traffic between ranks under every strategy has the textbook size, to the byte."""

from __future__ import annotations

from dataclasses import replace

import pytest
import trained

from jobflow import strategies as st
from jobflow.engine.session import current_session

RANKS = 4
SIZE = trained.GPT
#: bytes of the activations between two blocks, and of one number for each of their rows
STREAM, ROWS = SIZE.batch * SIZE.length * SIZE.width * 4, SIZE.batch * SIZE.length * 4
JOB = "train_job"


def trained_gpt(strategy: str, blocks: int = SIZE.blocks) -> None:
    trained.gpt_curve(strategy, RANKS, 1, replace(SIZE, blocks=blocks))


def parameters() -> dict[str, int]:
    """Bytes of every trainable variable."""
    return {name: variable.type.nbytes for name, variable in current_session().variables.items() if variable.trainable}


def test_data_parallel_sums_gradients_once() -> None:
    """2 psi (n-1)/n per rank, and one number per row and rank for nothing: losses stay where they are."""
    trained_gpt("dp")
    psi = sum(parameters().values())
    assert trained.counted(JOB) == {"all_reduce": 1}
    assert trained.bytes_of_all(JOB) == 2 * psi * (RANKS - 1)


@pytest.mark.parametrize("stage", [1, 2])
def test_zero_sends_no_more_than_data_parallel(stage: int) -> None:
    trained.begin(RANKS)
    trained.mlp_curve(st.zero(stage, least=8), RANKS, 1)
    psi = sum(parameters().values())
    assert trained.bytes_of_all("train_mlp") == 2 * psi * (RANKS - 1)
    phases = {boxing.phase for boxing in trained.boxings("train_mlp") if boxing.kind == "reduce_scatter"}
    assert phases == {"update" if stage == 1 else "backward"}, "stage 1 waits for all gradients, stage 2 for none"


def test_zero_3_gathers_again_what_the_backward_pass_reads() -> None:
    """The first layer's weight and the biases are not read again: 3 psi for all others."""
    trained.mlp_curve(st.zero(3, least=8), RANKS, 1)
    each = parameters()
    again = each["down-weight"] + each["head-weight"]
    assert trained.bytes_of_all("train_mlp") == (2 * sum(each.values()) + again) * (RANKS - 1)
    gathers = [boxing for boxing in trained.boxings("train_mlp") if boxing.kind == "all_gather"]
    assert [boxing.node.inputs[0].name for boxing in gathers if boxing.phase == "backward"] == ["head-weight", "down-weight"]


def test_every_microbatch_has_its_passes() -> None:
    """Of 3 microbatches stage 1 reduces the sum, stage 2 each, and stage 3 gathers for each pass."""
    sent = []
    for stage in (1, 2, 3):
        trained.begin(RANKS)
        trained.mlp_job(st.zero(stage, least=8), microbatches=3)(*trained.mlp_batch(0))
        sent.append(trained.bytes_of_all("train_mlp"))
    each = parameters()
    psi, again = sum(each.values()), each["down-weight"] + each["head-weight"]
    assert sent == [part * (RANKS - 1) for part in (2 * psi, 4 * psi, 3 * (2 * psi + again))]


def test_zero_3_of_a_gpt() -> None:
    trained_gpt("zero=3,least=1024")
    large = {name: size for name, size in parameters().items() if size >= 4 * 1024}
    small = sum(parameters().values()) - sum(large.values())
    again = sum(size for name, size in large.items() if name not in ("words", "positions"))
    assert trained.bytes_of_all(JOB) == (2 * sum(large.values()) + again + 2 * small) * (RANKS - 1)


def test_tensor_parallel_gathers_nothing_large() -> None:
    """Per block two sums of the stream forward and two backward; the head adds one; the loss's classes are split: three numbers per row."""
    trained_gpt("tp")
    redistributions = trained.boxings(JOB)
    assert {boxing.kind for boxing in redistributions} == {"all_reduce"}
    forward = [boxing.size for boxing in redistributions if boxing.phase == "forward"]
    backward = [boxing.size for boxing in redistributions if boxing.phase == "backward"]
    assert sorted(forward) == sorted([STREAM] * 2 * SIZE.blocks + [ROWS] * 3)
    assert backward == [STREAM] * (2 * SIZE.blocks + 1)
    assert not [boxing for boxing in redistributions if boxing.phase == "update"], "no gradient is told anybody"


def test_data_and_tensor_parallel_do_not_disturb_each_other() -> None:
    """On 2 x 2 ranks: the sums of tensor parallelism on half the batch, and those of data parallelism for half the parameters."""
    trained_gpt("2x2")
    redistributions = trained.boxings(JOB)
    assert {boxing.kind for boxing in redistributions} == {"all_reduce"}
    assert len([boxing for boxing in redistributions if boxing.phase != "update"]) == 4 * SIZE.blocks + 1 + 3
    each = parameters()
    split = {name for name, variable in current_session().variables.items() if name in each and str(variable.sbp[1]) != "B"}
    held = sum(size // 2 if name in split else size for name, size in each.items())
    sums = sum(trained.sent_by_all(boxing.node) for boxing in redistributions if boxing.phase == "update")
    padding = 64 * len(each) * RANKS
    assert 0 <= sums - 2 * held * (2 - 1) / 2 * RANKS <= padding, "tensors are aligned in what travels together"


def test_pipeline_sends_the_stream() -> None:
    """Send each cut once forward and once back, and nothing else."""
    trained_gpt("pp", blocks=4)
    redistributions = trained.boxings(JOB)
    assert {boxing.kind for boxing in redistributions} == {"move"}
    assert [boxing.size for boxing in redistributions] == [STREAM] * 2 * (RANKS - 1)


def test_microbatches_of_a_pipeline_send_as_much() -> None:
    trained_gpt("pipeline=4,microbatches=4", blocks=4)
    assert trained.bytes_of_all(JOB) == STREAM * 2 * (RANKS - 1)


def test_optimizer_state_follows_its_variable() -> None:
    trained.mlp_curve(st.zero(1, least=8), RANKS, 1)
    variables = current_session().variables
    for name in ("up-weight-m", "down-weight-v", "head-bias-m"):
        assert variables[name].sbp == variables[name[:-2]].sbp
        assert str(variables[name].sbp[0]) == "S(0)"
