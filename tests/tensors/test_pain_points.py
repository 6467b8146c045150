"""Cases in which ranks of the measured system abort, hang or compute wrong values, and their results here.

The whole list, with the tests of other files, is docs/internals/decisions/0021-when-ranks-diverge.md.
"""

from __future__ import annotations

import ast
import re
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import processes
import pytest
from ranks import on_ranks, with_ranks

import jobflow as flow
from jobflow import nn
from jobflow.core import notices
from jobflow.core.errors import ArgumentError, CheckpointError, DivergedError, JobError, JobflowError, PlacementError, SbpError, ShapeError

PROGRAMS = Path(__file__).parent / "programs"
mpi = pytest.mark.mpi
#: seconds from an accident to the end of all ranks
PROMPT = 3.0

S0, S1, B, SUM = flow.sbp.split(0), flow.sbp.split(1), flow.sbp.broadcast, flow.sbp.partial_sum
LAYOUTS = [S0, S1, B, SUM]


def ran(*words: str) -> processes.Exited:
    """Run a program of this folder on two ranks under mpiexec; assert that no process remains."""
    with processes.crowd() as jobs:
        jobs.start([processes.MPIEXEC, "-n", "2", sys.executable, str(PROGRAMS / words[0]), *words[1:]])
        return jobs.wait()[0]


@pytest.fixture(scope="module")
def reports() -> dict[str, dict[int, tuple[float, str]]]:
    """Return, by case and rank, the time until the error and its message."""
    ended = ran("diverging.py")
    assert (ended.code, ended.err) == (0, "")
    results: dict[str, dict[int, tuple[float, str]]] = {}
    for case, rank, took, text in map(ast.literal_eval, ended.lines):
        results.setdefault(case, {})[rank] = took, text
    return results


class TestRanksThatDoDifferentThings:
    """Diverged ranks: both raise soon, with the operation of each rank."""

    pytestmark = mpi

    @pytest.mark.parametrize("case", re.findall(r"^def (?!main|ones)(\w+)\(", (PROGRAMS / "diverging.py").read_text(), re.MULTILINE))
    def test_both_ranks_raise_the_same_error(self, reports: dict[str, dict[int, tuple[float, str]]], case: str) -> None:
        (first, text), (second, other) = reports[case][0], reports[case][1]
        assert text == other
        results = re.search(
            r"ranks 0 and 1 (run different operations at collective \d+|have built different graphs).*?\n *rank 0: (.*)\n *rank 1: (.*)",
            text,
            re.DOTALL,
        )
        assert results, text
        assert results[2] != results[3] and all(re.search(r"diverging\.py:\d+", one) for one in results.groups()[1:]), text
        assert max(first, second) < PROMPT

    def test_descriptions_name_the_op_its_tensor_and_its_line(self, reports: dict[str, dict[int, tuple[float, str]]]) -> None:
        text = reports["other_op"][0][1]
        assert re.search(r"rank 0: numpy\(\) of float32\[\] #\d{4} cpu\[0-1\]:P -> cpu\[0-1\]:B at diverging\.py:\d+\n    after\n", text)
        assert "ReduceSum(axes=(0, 1)) of float32[4,4] cpu[0-1]:S(0)" in text
        assert re.search(r"rank 1: numpy\(\) of float32\[4,4\] .*\n    after\n.*\n      Relu\(\) of float32\[4,4\] cpu\[0-1\]:S\(0\)$", text)


class TestEnds:
    """Ends of ranks: all ranks end soon, with a nonzero exit code, and the original error is printed last."""

    pytestmark = mpi

    @pytest.mark.parametrize(
        ("case", "last"),
        [
            ("error", r"rank 1: Traceback.*ValueError: no luck with 41"),
            ("build", r"rank 1: Traceback.*ValueError: no luck with 41"),
            ("exits", r"rank 0: Traceback.*RankError: rank 1: ended its script while rank 0 waited for it in collective 2 .* numpy\(\) of float32"),
            ("item_alone", r"rank 0: Traceback.*RankError: rank 1: ended its script while rank 0 waited for it in .* item\(\) of float32\[\]"),
            ("print_alone", r"rank 1: Traceback.*RankError: rank 0: ended its script while rank 1 waited for it in .* print of float32\[4,4\]"),
            ("numpy_alone", r"rank [01]: Traceback.*DivergedError: ranks 0 and 1 run different .* rank 0: numpy\(\) of .* rank 1: to_global of "),
            ("kill", r"accident .*"),
        ],
    )
    def test_all_end(self, case: str, last: str) -> None:
        ended = ran("ending.py", case)
        assert ended.code != 0
        assert 0 <= processes.late([ended]) < PROMPT
        assert re.search(last, ended.err, re.DOTALL), ended.err
        assert ended.err.count("Traceback (most recent") == (case != "kill"), ended.err
        assert ended.err.count("ending.py") >= (case != "kill")

    @pytest.mark.parametrize("way", ["launcher", "by hand"])
    def test_all_end_however_they_were_started(self, way: str) -> None:
        code, _, output_text = processes.started(way, 2, str(PROGRAMS / "ending.py"), "error")
        begun = max(float(line.split()[-1]) for line in output_text.splitlines() if "accident" in line)
        assert code == 1 and time.time() - begun < PROMPT
        last = output_text[output_text.rindex("Traceback (most recent") :]
        assert re.search(r"ValueError: no luck with 41\n(jobflow launch: .* all others were ended\n)?$", last), output_text

    def test_a_slow_rank_is_announced_and_waited_for(self) -> None:
        ended = ran("ending.py", "slow")
        assert (ended.code, ended.lines) == (0, ["16.0", "16.0"])
        output_text = (
            r"jobflow: rank 0 has waited 0\.3 s in collective 2 of ranks \[0, 1\]: float\(\) of float32\[\] .* at ending\.py:\d+ for ranks \[1\]\n"
        )
        assert re.match(output_text, ended.err), ended.err
        others = ended.err.splitlines()[1:]  # a busy machine is slow too
        assert all(re.match(r"jobflow: rank [01] has waited 0\.3 s in ", line) for line in others), ended.err

    def test_what_kills_processes_elsewhere_does_no_harm(self) -> None:
        ended = ran("harmless.py")
        assert (ended.code, ended.lines) == (0, ["rank 0 came through", "rank 1 came through"]), ended.err
        assert [line for line in ended.err.splitlines() if "there is no GPU" not in line] == []


# -------------------------------------------------------------------- errors instead of aborts


class Double(nn.Graph):
    def build(self, x: Any) -> Any:
        return x * 2


class Returning(nn.Graph):
    """A graph whose build calls a function."""

    def __init__(self, function: Callable[[Any], Any]) -> None:
        super().__init__()
        self.function = function

    def build(self, x: Any) -> Any:
        return self.function(x)


def pair() -> Any:
    return flow.placement("cpu", [0, 1])


def ones(sbp: Any = S0, *shape: int, **options: Any) -> Any:
    return flow.ones(*(shape or (4, 4)), placement=pair(), sbp=sbp, **options)


def me() -> int:
    return flow.env.get_rank()


def other_meta() -> None:
    graph = Double()
    graph(ones())
    graph(ones(S1))


def loaded(model: Any, state: Any) -> None:
    model.load_state_dict(state)


MISTAKES: list[tuple[str, Callable[[], Any], type[Exception], str]] = [
    ("a rank named twice", lambda: flow.placement("cpu", [0, 0]), PlacementError, r"rank 0 occurs twice in \[0, 0\]"),
    ("an unknown rank", lambda: flow.placement("cpu", [0, 5]), PlacementError, r"rank 5 of \[0, 5\] does not exist; there are the ranks 0 to 1"),
    ("no rank", lambda: flow.placement("cpu", [-1]), PlacementError, "rank -1"),
    (
        "too many sbp",
        lambda: ones([S0, B]),
        SbpError,
        r"ones at test_pain_points\.py:\d+: 2 entries .* for .* whose mesh has 1 dimensions; pass one per dimension",
    ),
    ("too few sbp", lambda: ones([]), SbpError, "0 entries .* for .* whose mesh has 1 dimensions"),
    ("too many sbp in to_global", lambda: ones().to_global(sbp=[S0, S1]), SbpError, "to_global at .*: 2 entries .* whose mesh has 1 dimensions"),
    ("an axis that is not there", lambda: ones(flow.sbp.split(2)), SbpError, r"split\(dim=2\) names axis 2, but the tensor has the axes 0 to 1"),
    ("the same in to_global", lambda: ones().to_global(sbp=flow.sbp.split(2)), SbpError, r"split\(dim=2\) names axis 2, but .* the axes 0 to 1"),
    ("a negative axis", lambda: flow.sbp.split(-1), SbpError, "got dim=-1, axis=None; pass one of them, from 0 to 31"),
    (
        "an array",
        lambda: ones() + np.ones((4, 4)),
        PlacementError,
        r"add at .*: a NumPy array of shape \[4, 4\] cannot be combined with a global tensor",
    ),
    (
        "an array first",
        lambda: np.ones((4, 4), np.float32) * ones(),
        PlacementError,
        r"a NumPy array of shape \[4, 4\] cannot be combined with a global tensor",
    ),
    ("a local tensor", lambda: ones() + flow.ones(4, 4), PlacementError, "add at .*: the inputs are local and global tensors .* with to_global"),
    ("a local number", lambda: ones() + flow.tensor(1.0), PlacementError, r"the inputs are local and global tensors .*float32\[\] local"),
    (
        "ranks in another order",
        lambda: ones() + ones().to_global(flow.placement("cpu", [1, 0])),
        PlacementError,
        r"different placements .*cpu\[1,0\]",
    ),
    ("a mesh", lambda: ones() + ones().to_global(flow.placement("cpu", [[0, 1]]), [B, S0]), PlacementError, "the inputs have different placements"),
    (
        "summed axes",
        lambda: ones() @ ones(B, 3, 4),
        ShapeError,
        r"matmul at .*: the summed axis has size 4 in a float32\[4,4\], but 3 in b float32\[3,4\]",
    ),
    ("shapes", lambda: ones() + ones(B, 3, 4), ShapeError, r"add at .*: float32\[4,4\] and float32\[3,4\] do not broadcast together"),
    ("a placement alone", lambda: flow.ones(3, placement=pair()), JobError, "ones at .*: a global tensor needs both placement= and sbp="),
    ("an sbp alone", lambda: flow.ones(3, sbp=B), JobError, "a global tensor needs both placement= and sbp="),
    ("partial random numbers", lambda: flow.randn(3, placement=pair(), sbp=SUM), SbpError, "random values cannot be partial"),
    ("a device of one rank", lambda: ones().to("cpu:1"), PlacementError, "a global tensor cannot move to 'cpu:1'"),
    ("item() of many", lambda: ones().item(), ShapeError, r"item\(\) at .*: the tensor float32\[4,4\] has 16 elements, not one"),
    ("backward of many", lambda: ones(requires_grad=True).relu().backward(), JobError, "a tensor of 16 elements needs an explicit gradient"),
    (
        "other inputs of a graph",
        other_meta,
        JobError,
        r"input0 must be float32\[4,4\] cpu\[0-1\]:S\(0\), but is float32\[4,4\] cpu\[0-1\]:S\(1\)",
    ),
    ("numbers in build", lambda: Returning(lambda x: x.numpy())(ones()), JobError, r"a tensor has no values while nn\.Graph\.build runs"),
    ("if in build", lambda: Returning(lambda x: x if x.sum() > 0 else None)(ones()), JobError, "the truth value of a tensor is not known while"),
    ("no tensor from build", lambda: Returning(lambda x: 3)(ones()), JobError, r"what Returning_0\.build returns is 3"),
    (
        "local into global in build",
        lambda: Returning(lambda x: flow.ones(3).to_global(pair(), B))(ones()),
        JobError,
        r"a local tensor float32\[.*\] cannot become global in nn.Graph.build",
    ),
    ("saving without a rank", lambda: flow.save({"w": ones()}, "nowhere"), JobError, "the tensor w is global .*; name the rank that writes it"),
    ("saving by an unknown rank", lambda: flow.save({"w": ones()}, "nowhere", global_dst_rank=7), ArgumentError, "rank 7 does not exist"),
    (
        "a local state",
        lambda: loaded(nn.Linear(2, 2).to_global(pair(), B), nn.Linear(2, 2).state_dict()),
        CheckpointError,
        r"load_state_dict of Linear at .*\n    local and global: weight is global, the state has a local tensor",
    ),
    ("missing tensors", lambda: loaded(nn.Linear(2, 2), {}), CheckpointError, "the state does not fit:\n    missing: weight\n    missing: bias"),
    (
        "sizes of a state",
        lambda: loaded(nn.Linear(2, 2), nn.Linear(2, 3).state_dict()),
        CheckpointError,
        r"size: weight is float32\[2,2\], the state",
    ),
    (
        "pieces 2 + 3",
        lambda: flow.ones(2 + me(), 2).to_global(pair(), S0),
        ShapeError,
        r"rank 0 has shape \[3, 2\], but the local tensor has \[2, 2\]; balance the pieces",
    ),
    ("pieces 4 + 2", lambda: flow.ones(4 - 2 * me(), 2).to_global(pair(), S0), ShapeError, r"rank 0 has shape \[3, 2\], but .* has \[4, 2\]"),
    ("copies of two shapes", lambda: flow.ones(2 + me(), 2).to_global(pair(), B), ShapeError, r"rank 1 has shape \[2, 2\], but .* has \[3, 2\]"),
    (
        "pieces of two types",
        lambda: flow.ones(2, dtype=(flow.float32, flow.int32)[me()]).to_global(pair(), S0),
        ShapeError,
        r"rank 0 has float32\[2\] and rank 1 has int32\[2\]; pass local tensors with the same dtype",
    ),
    (
        "pieces of two ranks",
        lambda: flow.ones(*(2,) * (1 + me())).to_global(pair(), S0),
        ShapeError,
        r"rank 0 has float32\[2\] and rank 1 has float32\[2,2\]",
    ),
]


@pytest.mark.parametrize(("make", "kind", "text"), [one[1:] for one in MISTAKES], ids=[one[0] for one in MISTAKES])
def test_mistakes_are_errors_on_every_rank(make: Callable[[], Any], kind: type[Exception], text: str) -> None:
    """The errors are jobflow's, with the user's line and without colours, and the ranks can continue."""

    def program(rank: int) -> str:
        with pytest.raises(kind) as caught:
            make()
        assert (ones() * 3).sum().item() == 48
        return str(caught.value)

    first, second = on_ranks(2, program)
    assert re.search(text, first, re.DOTALL), first
    assert first == second
    assert issubclass(kind, JobflowError)
    assert "test_pain_points.py:" in first and "\x1b" not in first


# -------------------------------------------------------------------- right numbers


@with_ranks(2)
def test_axes_shorter_than_the_ranks(rank: int) -> None:
    x = np.arange(4, dtype=np.float32).reshape(1, 4)
    for lies in LAYOUTS:
        y = flow.tensor(x, placement=pair(), sbp=lies).to_global(sbp=S0)
        assert y.to_local().shape == (1 - rank, 4)
        np.testing.assert_array_equal(y.numpy(), x)
        np.testing.assert_array_equal((y.relu() @ flow.ones(4, 2, placement=pair(), sbp=B)).numpy(), [[6, 6]])
    assert flow.zeros(0, 3, placement=pair(), sbp=S0).sum().item() == 0


@pytest.mark.parametrize("dtype", [flow.float16, flow.bfloat16, flow.uint8, flow.int8, flow.float64])
@with_ranks(2)
def test_every_type_converts_between_layouts(dtype: Any) -> None:
    x = np.arange(15).reshape(5, 3)
    for source in LAYOUTS:
        for target in LAYOUTS:
            source_tensor = flow.tensor(x, dtype=dtype, placement=pair(), sbp=source)
            np.testing.assert_array_equal(source_tensor.to_global(sbp=target).numpy().astype(np.float64), x)


@with_ranks(2)
def test_casts_to_integers_truncate_the_sum(rank: int) -> None:
    x = flow.full((3,), 0.5 + rank).to_global(pair(), SUM)
    for output in (x.to(flow.int32), x.int(), x.to(flow.float64).long()):
        assert output.tolist() == [2, 2, 2]
    assert (x > 1.5).tolist() == [True] * 3


def test_gather_from_everywhere() -> None:
    generator = np.random.default_rng(0)
    x, index = generator.normal(size=(4, 6)), generator.integers(0, 4, (3, 4))

    def program(rank: int) -> None:
        for lies in LAYOUTS:
            for other in LAYOUTS:
                output = flow.gather(flow.tensor(x, placement=pair(), sbp=lies), 0, flow.tensor(index, placement=pair(), sbp=other))
                np.testing.assert_array_equal(output.numpy(), np.take_along_axis(x[:, :4], index, 0))

    on_ranks(2, program)


def test_batch_statistics_equal_those_of_the_whole_batch_on_all_ranks() -> None:
    x = np.random.default_rng(0).normal(size=(6, 3, 2, 2))

    def program(rank: int) -> None:
        results = []
        for lies in [None, *LAYOUTS]:
            placement_options = {} if lies is None else {"placement": pair(), "sbp": lies}
            model = nn.BatchNorm2d(3).to(flow.float64)
            if lies is not None:
                model.to_global(pair(), B)
            y = model(flow.tensor(x, **placement_options))
            (y * y * y).sum().backward()
            held = [model.running_mean, model.running_var, model.weight.grad]
            results.append([one.numpy() for one in (y.detach(), *held)] + [(one if lies is None else one.to_local()).numpy() for one in held])
        for other in results[1:]:
            for a, b in zip(results[0], other, strict=True):
                np.testing.assert_allclose(b, a, rtol=1e-9, atol=1e-9)

    on_ranks(2, program)


def test_lamb_uses_norms_of_whole_parameters() -> None:
    generator = np.random.default_rng(0)
    w, x = generator.normal(size=(4, 6)), generator.normal(size=(3, 4))

    def program(rank: int) -> None:
        results = []
        for lies in (None, B, S0, S1):
            where = {} if lies is None else {"placement": pair(), "sbp": lies}
            weight = flow.tensor(w, **where, requires_grad=True)
            arguments = flow.tensor(x, **({} if lies is None else {"placement": pair(), "sbp": B}))
            optimizer = flow.optim.LAMB([weight], lr=0.1)
            for _ in range(3):
                optimizer.zero_grad()
                (arguments @ weight).square().sum().backward()
                optimizer.step()
            results.append(weight.detach().numpy())
        for other in results[1:]:
            np.testing.assert_allclose(other, results[0], rtol=1e-6)

    on_ranks(2, program)


@with_ranks(2)
def test_random_numbers_do_not_depend_on_the_layout() -> None:
    results = []
    for lies in (None, S0, S1, B):
        where = {} if lies is None else {"placement": pair(), "sbp": lies}
        flow.manual_seed(3)
        drawn = [flow.randn(5, 4, **where), nn.init.normal_(flow.empty(5, 4, **where)), nn.functional.dropout(flow.ones(5, 4, **where), 0.5)]
        results.append(np.stack([x.numpy() for x in drawn]))
    for other in results[1:]:
        np.testing.assert_array_equal(other, results[0])


def test_a_placement_preserves_its_order() -> None:
    def program(rank: int) -> list[int]:
        x = flow.arange(4, placement=flow.placement("cpu", [1, 0]), sbp=S0)
        assert repr(x.placement) == 'jobflow.placement(type="cpu", ranks=[1, 0])'
        assert x.tolist() == [0, 1, 2, 3]
        return x.to_local().tolist()

    assert on_ranks(2, program) == [[2, 3], [0, 1]]


@with_ranks(2)
def test_arrays_of_values_do_not_share_memory() -> None:
    x, y = ones(B), ones()
    x.numpy()[0] = 9
    before = y.numpy()
    (y * 2).numpy()
    assert x.sum().item() == before.sum() == 16


@with_ranks(2)
def test_a_tensor_of_one_rank_needs_no_other_rank(rank: int) -> None:
    if rank == 1:
        assert (flow.ones(3, placement=flow.placement("cpu", [1]), sbp=B) * 2).to_local().tolist() == [2, 2, 2]
    assert ones().sum().item() == 16


@with_ranks(2)
def test_graphs_may_be_temporary_and_local(rank: int) -> None:
    for _ in range(3):
        np.testing.assert_array_equal(Double()(ones()).numpy(), np.full((4, 4), 2))
        assert Double()(flow.full((2,), rank)).tolist() == [2 * rank] * 2


def test_cuda_without_a_gpu_is_the_host(capsys: pytest.CaptureFixture[str]) -> None:
    notices.forget()

    def program(rank: int) -> None:
        x = ones().cuda()
        assert repr(x.placement) == 'jobflow.placement(type="cuda", ranks=[0, 1])'
        assert x.sum().item() == flow.ones(16).cuda().sum().item() == 16
        assert flow.ones(2, placement=flow.placement("cuda", [0, 1]), sbp=B).cpu().placement.type == "cpu"

    on_ranks(2, program)
    assert capsys.readouterr().err.count("tensors on cuda devices use the memory of the host") == 1


class TrainingStep(nn.Graph):
    """A training step that may store parameters in parts."""

    def __init__(self, model: Any, zero: int) -> None:
        super().__init__()
        self.model = model
        self.add_optimizer(flow.optim.Adam(model.parameters(), lr=0.1))
        if zero:
            self.config.enable_zero(True, stage=zero, shard_min_size=1)

    def build(self, x: Any) -> Any:
        loss = self.model(x).square().sum()
        loss.backward()
        return loss


def test_ranks_outside_a_placement_run_the_same_lines() -> None:
    """In-place writes keep the provenance of tensors equal on all ranks, including those outside the placement."""

    def program(rank: int) -> list[float]:
        results: list[float] = []

        def record_sum(x: Any) -> None:
            results.append(float(x.detach().numpy().sum()))

        for zero in (0, 2):
            model = nn.Sequential(nn.Linear(4, 4), nn.Dropout(0.5), nn.Linear(4, 2)).to_global(pair(), B)
            graph, x = TrainingStep(model, zero), ones()
            for _ in range(2):
                record_sum(graph(x))
                record_sum(model[0].weight)
            model(x).sum().backward()
            record_sum(model[2].weight.grad)
            optimizer = flow.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
            nn.utils.clip_grad_norm_(model.parameters(), 0.1)
            optimizer.step()
            record_sum(model[2].weight.detach().to_global(flow.placement("cpu", [2]), B))
            model.load_state_dict(model.state_dict())
            x[0] = 2.0
            x.add_(1)
            model[0].weight.data = model[0].weight.data * 2
            record_sum(x)
            record_sum(model[0].weight)
        return results

    first, second, outside = on_ranks(3, program)
    assert first == second == outside


@with_ranks(2)
def test_ranks_continue_after_a_diverged_error(rank: int) -> None:
    """As in an interactive session, after a statement was typed in one terminal only."""
    x, y = ones(), ones(S1)
    assert x.sum().item() == y.sum().item() == 16
    for _ in range(2):
        with pytest.raises(DivergedError):
            (x if rank == 0 else y).numpy()
        if rank == 1:
            x.relu().abs()
        with pytest.raises(DivergedError):
            x.numpy()
        for z in (x, y, x * 2):
            assert z.numpy().shape == (4, 4)
        assert flow.ones(2).to_global(pair(), S0).sum().item() == 4
