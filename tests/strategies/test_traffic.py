"""Bytes, three times: what communicators counted is what the plans said is what the textbooks say, to the byte, rank by rank."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import trained

import jobflow as flow
from jobflow import strategies as st
from jobflow.engine.session import current_session
from jobflow.plan.plan import ALIGNMENT
from jobflow.plan.traffic import Traffic, planned, total
from jobflow.program.commands import Sent, executors_of
from jobflow.runtime.world.world import Rank

N, STEPS = 4, 3
SIZE = trained.GPT
#: bytes of the activations between two blocks, and of one number for each of their rows
STREAM, ROWS = SIZE.batch * SIZE.length * SIZE.width * 4, SIZE.batch * SIZE.length * 4


@pytest.fixture(autouse=True)
def every_rank_has_its_own_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    """The textbooks know no memory that ranks have in common."""
    begin = trained.begin

    def begin_apart(devices: int) -> None:
        begin(devices)
        flow.config.share_variables(False)

    monkeypatch.setattr(trained, "begin", begin_apart)


def plans_of(rank: Rank, _: Any) -> dict[str, Traffic]:
    """Return the traffic of one run of each plan of a rank, computed from the plans."""
    return total(item for executor in executors_of(rank).values() for item in planned(executor.plan).items())


def sent_by_ranks(run: Callable[[int], Any]) -> tuple[int, set[str]]:
    """Bytes that all ranks handed on in a step, and in which kinds of communication; what was counted is what was planned."""
    run(STEPS)
    world = current_session().world
    assert world is not None
    counted, planned = world.call(Sent()), world.call(plans_of)
    assert len(planned) == N
    for rank, (ours, theirs) in enumerate(zip(counted, planned, strict=True)):
        steps = {kind: Traffic(STEPS * traffic.operations, STEPS * traffic.nbytes) for kind, traffic in theirs.items()}
        assert ours == steps, f"rank {rank}"
    each = [traffic for kinds in planned for traffic in kinds.values()]
    return sum(traffic.nbytes for traffic in each), {kind for kinds in planned for kind, traffic in kinds.items() if traffic.nbytes}


def gpt_under(strategy: str) -> Callable[[int], Any]:
    return lambda steps: trained.gpt_curve(strategy, N, steps)


def mlp_under(strategy: Any) -> Callable[[int], Any]:
    return lambda steps: trained.mlp_curve(strategy, N, steps)


def parameters() -> dict[str, int]:
    """Bytes of every trainable variable."""
    return {name: variable.type.nbytes for name, variable in current_session().variables.items() if variable.trainable}


def together(sizes: Any) -> int:
    """Bytes of tensors that travel as one: each begins at a multiple of the alignment."""
    return sum(-(-size // ALIGNMENT) * ALIGNMENT for size in sizes)


def all_reduce(nbytes: int, n: int = N) -> int:
    """Of all n ranks: each hands on 2 b (n-1)/n."""
    return 2 * nbytes * (n - 1)


def test_data_parallel() -> None:
    sent, kinds = sent_by_ranks(gpt_under("dp"))
    assert kinds == {"all_reduce"}
    assert together(parameters().values()) == sum(parameters().values()), "of this GPT nothing needs padding"
    assert sent == all_reduce(sum(parameters().values()))
    sent, kinds = sent_by_ranks(mlp_under(st.data_parallel()))
    assert kinds == {"all_reduce"} and sent == all_reduce(together(parameters().values()))


@pytest.mark.parametrize("stage", [1, 2])
def test_zero_1_and_2(stage: int) -> None:
    """A reduce_scatter of the gradients and an all_gather of the parameters: psi (n-1)/n each."""
    sent, kinds = sent_by_ranks(mlp_under(st.zero(stage, least=8)))
    assert kinds == {"reduce_scatter", "all_gather"}
    assert sent == 2 * sum(parameters().values()) * (N - 1)
    sent, _ = sent_by_ranks(gpt_under(f"zero={stage},least=1024"))
    large = sum(size for size in parameters().values() if size >= 4 * 1024)
    assert sent == 2 * large * (N - 1) + all_reduce(sum(parameters().values()) - large)


def test_zero_3() -> None:
    """Gather parameters again for the backward pass."""
    sent, _ = sent_by_ranks(mlp_under(st.zero(3, least=8)))
    each = parameters()
    assert sent == (2 * sum(each.values()) + each["down-weight"] + each["head-weight"]) * (N - 1)
    sent, _ = sent_by_ranks(gpt_under("zero=3,least=1024"))
    large = {name: size for name, size in parameters().items() if size >= 4 * 1024}
    small = sum(parameters().values()) - sum(large.values())
    again = sum(size for name, size in large.items() if name not in ("words", "positions"))
    assert sent == (2 * sum(large.values()) + again) * (N - 1) + all_reduce(small)


def test_tensor_parallel() -> None:
    """Two sums of the stream per block, forward and backward, and one for the head; three numbers per row for the loss."""
    sent, kinds = sent_by_ranks(gpt_under("tp"))
    assert kinds == {"all_reduce"}
    assert sent == all_reduce((4 * SIZE.blocks + 1) * STREAM + 3 * ROWS)
    sent, kinds = sent_by_ranks(mlp_under(st.tensor_parallel(large=1)))
    narrow, rows = trained.BATCH * 48 * 8, trained.BATCH * 8  # the sums behind the pair of layers and, backward, behind the head
    assert kinds == {"all_reduce"} and sent == all_reduce(2 * narrow + 3 * rows)


def test_pipeline() -> None:
    sent, kinds = sent_by_ranks(gpt_under("pp"))
    assert kinds == {"transfer"}
    assert sent == 2 * (N - 1) * STREAM
    sent, kinds = sent_by_ranks(mlp_under(st.combine(st.pipeline(2, cuts="head-weight"), st.data_parallel(2))))
    assert kinds == {"transfer", "all_reduce"}
    head = [size for name, size in parameters().items() if name.startswith("head")]
    rest = [size for name, size in parameters().items() if not name.startswith("head")]
    assert sent == 2 * trained.BATCH * 48 * 8 + all_reduce(together(head), 2) + all_reduce(together(rest), 2)


@pytest.mark.parametrize("microbatches", [2, 4])
def test_pipeline_of_microbatches(microbatches: int) -> None:
    sent, kinds = sent_by_ranks(gpt_under(f"pipeline=4,microbatches={microbatches}"))
    assert kinds == {"transfer"} and sent == 2 * (N - 1) * STREAM


def test_data_and_tensor_parallel() -> None:
    """Pairs of ranks sum their half of the batch; the other pairs sum gradients of their half of the split parameters."""
    sent, kinds = sent_by_ranks(gpt_under("2x2"))
    assert kinds == {"all_reduce"}
    variables = current_session().variables
    held = [size // (1 if str(variables[name].sbp[1]) == "B" else 2) for name, size in parameters().items()]
    assert together(held) == sum(held)
    activations = (4 * SIZE.blocks + 1) * STREAM // 2 + 3 * ROWS // 2
    assert sent == 2 * all_reduce(activations, 2) + 2 * all_reduce(sum(held), 2)


def test_data_parallel_pipelines() -> None:
    """Half the batch crosses the cut of each of two pipelines; every stage sums its gradients over two ranks."""
    sent, kinds = sent_by_ranks(gpt_under("pipeline=2,data=2"))
    assert kinds == {"transfer", "all_reduce"}
    assert sent == 2 * STREAM + all_reduce(sum(parameters().values()), 2)


def test_variables_that_are_stored_once_need_no_gathering(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ranks receive their shards of the sum of the gradients: half of an all_reduce."""
    begin = trained.begin

    def begin_together(devices: int) -> None:
        begin(devices)
        flow.config.share_variables(True)

    monkeypatch.setattr(trained, "begin", begin_together)
    sent, kinds = sent_by_ranks(gpt_under("dp"))
    assert kinds == {"reduce_scatter"} and sent == all_reduce(sum(parameters().values())) // 2
