"""nn.Graph: outputs equal eager outputs, tensors share memory with the modules, and wrong calls raise errors."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest
from graphs import Forward, Model, Trained, as_graph, batches, graph_of, tensor_of, usual, weights
from ranks import agree, on_ranks, with_ranks

from jobflow.core.errors import DivergedError, JobError, PlacementError, RankError
from jobflow.engine.placements import placement, sbp
from jobflow.functional.binary_functions import matmul
from jobflow.functional.creation import tensor
from jobflow.functional.global_tensors import to_local
from jobflow.functional.gradients import no_grad
from jobflow.functional.reductions import mean
from jobflow.functional.sampling import randn
from jobflow.functional.tensor_class import Tensor
from jobflow.nn.graph import Graph, GraphModule
from jobflow.nn.modules.activation_layers import ReLU
from jobflow.nn.modules.container import Sequential
from jobflow.nn.modules.conv_layers import Conv2d
from jobflow.nn.modules.linear_layers import Dropout, Flatten, Linear
from jobflow.nn.modules.loss_layers import CrossEntropyLoss
from jobflow.nn.modules.module import Module
from jobflow.nn.modules.norm_layers import BatchNorm2d
from jobflow.nn.parameter import Parameter
from jobflow.optim.optimizers import SGD, Adam
from jobflow.tensors.state import state

S0, S1, B = sbp.split(0), sbp.split(1), sbp.broadcast


# -------------------------------------------------------------------- numbers


def test_stages_that_form_a_cycle() -> None:
    class Train(Graph):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.second = Linear(3, 3), Linear(3, 3)
            self.first.to(GraphModule).set_stage(1)
            self.second.to(GraphModule).set_stage(0)
            self.config.set_gradient_accumulation_steps(2)
            self.add_optimizer(SGD([*self.first.parameters(), *self.second.parameters()], lr=0.1))

        def build(self, x: Tensor) -> Tensor:
            loss = self.second(self.first(x)).sum()
            loss.backward()
            return loss

    with pytest.raises(PlacementError) as error:
        Train()(randn(4, 3))
    text = str(error.value)
    assert re.match(r"graph Train_\d+: matmul at ", text) and "call set_stage(1) or a higher stage for the module of the matmul" in text


@pytest.mark.parametrize("n", [1, 2, 3, 4])
def test_the_model_of_two_stages_equals_eager_execution(n: int) -> None:
    def program(rank: int) -> Any:
        model = Model(n)
        graph = Forward(model)
        graph.model.m_stage0.to(GraphModule).set_stage(stage_id=0, placement=model.places[0])
        graph.model.m_stage1.to(GraphModule).set_stage(stage_id=1, placement=model.places[1])
        pairs = []
        for x, _ in batches(2):
            batch = tensor_of(x, model.places[0], S0)
            pairs += [(a.numpy(), b.numpy(), a.layout == b.layout) for a, b in zip(graph(batch), model(batch), strict=True)]
        return pairs

    for pairs in on_ranks(n, program):
        for a, b, alike in pairs:
            np.testing.assert_allclose(a, b, rtol=1e-6, atol=1e-7)  # loops of a graph may have another tanh than single operations
            assert alike


def network() -> Module:
    return Sequential(Conv2d(1, 4, 3, padding=1), BatchNorm2d(4), ReLU(), Flatten(), Dropout(0.3), Linear(64, 10))


class Training(Graph):
    def __init__(self, model: Module, optimizer: Any) -> None:
        super().__init__()
        self.model, self.loss = model, CrossEntropyLoss()
        self.add_optimizer(optimizer)

    def build(self, x: Tensor, y: Tensor) -> Any:
        loss = self.loss(self.model(x), y)
        loss.backward()
        return loss


@pytest.mark.parametrize("n", [0, 1, 2, 3])
def test_batch_statistics_and_dropout_equal_eager_training(n: int) -> None:
    """The case n = 0 has local tensors."""

    def program(rank: int, graph: bool) -> Any:
        state().manual_seed(5)
        model, rng = network(), np.random.default_rng(0)
        if n:
            model.to_global(placement=placement("cpu", range(n)), sbp=B)
        optimizer = SGD(model.parameters(), 0.05, momentum=0.9)
        step = Training(model, optimizer) if graph else None
        losses = []
        for _ in range(3):
            lies: Any = {"placement": placement("cpu", range(n)), "sbp": S0} if n else {}
            x = tensor(rng.standard_normal((6, 1, 4, 4)).astype(np.float32), **lies)
            y = tensor(rng.integers(0, 10, 6), **lies)
            if step is not None:
                losses.append(step(x, y).item())
            else:
                optimizer.zero_grad()
                loss = CrossEntropyLoss()(model(x), y)
                loss.backward()
                optimizer.step()
                losses.append(loss.item())
        return losses, [np.array(b.numpy()) for b in model.buffers()]

    for (losses, buffers), (others, more) in zip(on_ranks(n or 1, program, True), on_ranks(n or 1, program, False), strict=True):
        np.testing.assert_allclose(losses, others, rtol=1e-5)
        for a, b in zip(buffers, more, strict=True):
            np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6)


def test_random_numbers_differ_at_every_call_and_equal_eager_execution() -> None:
    def program(rank: int) -> Any:
        here = placement("cpu", [0, 1])
        graph = graph_of(lambda x: x + randn(4, 3, placement=here, sbp=S0))
        zeros = tensor_of(np.zeros((4, 3)), here, S0)
        state().manual_seed(9)
        first = [graph(zeros).numpy() for _ in range(2)]
        state().manual_seed(9)
        return first, [randn(4, 3, placement=here, sbp=S0).numpy() for _ in range(2)]

    for first, second in on_ranks(2, program):
        np.testing.assert_array_equal(first, second)
        assert not np.array_equal(*first)


def test_no_grad_and_detach_stop_gradients() -> None:
    def program(rank: int, cut: str) -> Any:
        model = Model(1)
        optimizer = SGD(model.parameters(), 0.1)

        class Cut(Trained):
            def build(self, x: Tensor, y: Tensor) -> Tensor:
                if cut == "no_grad":
                    with no_grad():
                        a = self.model.m_stage0(x)
                    assert not a.requires_grad
                else:
                    a = self.model.m_stage0(x).detach()
                loss = mean((self.model.m_stage1(a) - y) * (self.model.m_stage1(a) - y))
                loss.backward()
                return loss

        before = weights(model)
        as_graph(Cut(model, [optimizer], None, usual), model.places, (B, B), 1)
        return [np.array_equal(a, b) for a, b in zip(before, weights(model), strict=True)]

    assert on_ranks(1, program, "no_grad") == on_ranks(1, program, "detach") == [[True, False]]


# -------------------------------------------------------------------- memory


@pytest.mark.parametrize("n", [1, 4])
def test_modules_and_graphs_share_their_writes(n: int) -> None:
    def program(rank: int) -> Any:
        model = Model(n)
        train, evaluate = Trained(model, [SGD(model.parameters(), 0.1)], None, usual), Forward(model)
        (x, _), *_ = batches(1)
        batch = tensor_of(x, model.places[0], S0)
        evaluate(batch)
        results = []
        for step in range(3):
            as_graph(train, model.places, (S0, B), 1)
            results.append((evaluate(batch)[1].numpy(), model(batch)[1].numpy()))
            with no_grad():
                if step == 1:
                    model.m_stage0.w.mul_(0.5)
                    model.m_stage1.w.copy_(tensor_of(np.ones((8, 3)), model.places[1], B))
            results.append((evaluate(batch)[1].numpy(), model(batch)[1].numpy()))
        return results

    for results in on_ranks(n, program):
        for a, b in results:
            np.testing.assert_allclose(a, b, rtol=1e-6, atol=1e-7)
        assert not any(np.array_equal(results[i][0], results[i + 1][0]) for i in (1, 2, 3))


@with_ranks(1)
def test_backward_raises_if_a_graph_overwrote_saved_tensors() -> None:
    model = Model(1)
    train = Trained(model, [SGD(model.parameters(), 0.1)], None, usual)
    ((x, _),) = batches(1)
    as_graph(train, model.places, (B, B), 1)
    loss = mean(model(tensor_of(x, model.places[0], B))[1])
    as_graph(train, model.places, (B, B), 1)
    with pytest.raises(JobError, match="overwritten"):
        loss.backward()


def test_a_buffer_keeps_the_value_that_build_writes() -> None:
    def program(rank: int) -> Any:
        here = placement("cpu", [0, 1])
        count = tensor_of([1.0, 2.0, 3.0], here, S0)

        def build(x: Tensor) -> Tensor:
            before = count + 0.0
            count.mul_(2.0)
            count.add_(x)
            return before + count

        graph = graph_of(build)
        lists = [graph(tensor_of([1.0, 1.0, 1.0], here, B)).tolist() for _ in range(2)]
        return lists, count.tolist()

    assert agree(2, program) == ([[4.0, 7.0, 10.0], [10.0, 16.0, 22.0]], [7.0, 11.0, 15.0])


def test_ranks_outside_of_a_graph_have_empty_pieces() -> None:
    def program(rank: int) -> Any:
        here = placement("cpu", [2, 1])
        w = tensor_of(np.arange(6.0).reshape(3, 2), here, S0)
        y = graph_of(lambda x: x * w)(tensor_of(np.ones((3, 2)), here, S0))
        return to_local(y).shape, y.numpy().tolist()

    pieces = on_ranks(4, program)
    assert [shape for shape, _ in pieces] == [(0, 0), (1, 2), (2, 2), (0, 0)]
    assert all(values == np.arange(6.0).reshape(3, 2).tolist() for _, values in pieces)


# -------------------------------------------------------------------- what goes in and comes out


def test_arguments_and_results_may_be_nested() -> None:
    def build(a: Any, b: Any, *, c: Any) -> Any:
        return {"sum": a[0] + b["x"], "none": a[1], "all": [c, (a[0],)]}

    def program(rank: int) -> Any:
        here = placement("cpu", [0])
        one, two, three = (tensor_of([float(i)], here, B) for i in (1, 2, 3))
        graph = graph_of(build)
        graph((one, None), {"x": two}, c=three)
        result = graph((two, None), {"x": two}, c=one)
        with pytest.raises(JobError, match="must have the structure of the first call"):
            graph((two, one), {"x": two}, c=one)
        return result["sum"].item(), result["none"], result["all"][0].item(), type(result["all"][1]), result["all"][1][0].item()

    assert on_ranks(1, program) == [(4.0, None, 1.0, tuple, 2.0)]


def test_values_from_outside_are_formatted_in_build() -> None:
    outside, texts = tensor(3.0), []
    graph_of(lambda x: texts.append(f"{outside:.2f}") or x * 2.0)(tensor([1.0]))
    assert texts == ["3.00"]


@with_ranks(2)
def test_other_argument_types_raise_with_the_expected_ones() -> None:
    here = placement("cpu", [0, 1])
    graph = graph_of(lambda x: x * 2.0)
    graph(tensor_of(np.zeros((4, 3)), here, S0))
    for other in (tensor_of(np.zeros((4, 3)), here, B), tensor(np.zeros((4, 3), np.float32))):
        with pytest.raises(JobError, match=re.escape("input0 must be float32[4,3] cpu[0-1]:S(0), but is float32[")):
            graph(other)


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda x: x.numpy(), "no values while nn.Graph.build runs"),
        (lambda x: x if (x > 0).all() else -x, "not known while nn.Graph.build runs"),
        (lambda x: f"{x.sum().item()}", "no values while nn.Graph.build runs"),
        (lambda x: 3, "tensors and None"),
        (lambda x: x.to_local(), "call to_local"),
        (lambda x: x.sum().backward(), "add_optimizer"),
        (lambda x: x + tensor(np.ones(3, np.float32)), "the inputs are local and global tensors"),
    ],
)
@with_ranks(1)
def test_unsupported_operations_in_build_raise(build: Any, message: str) -> None:
    with pytest.raises(JobError if "local and global" not in message else ValueError, match=message):
        graph_of(build)(tensor_of(np.ones((1, 3)), placement("cpu", [0]), B))
    assert state().building is None


def test_a_build_that_raises_on_one_rank_raises_on_all_ranks() -> None:
    def program(rank: int) -> None:
        def build(x: Tensor) -> Tensor:
            if rank == 1:
                raise ValueError("only here")
            return x * 2.0

        graph_of(build)(tensor_of(np.ones((4, 3)), placement("cpu", [0, 1]), S0)).numpy()

    with pytest.raises(RankError, match="only here"):
        on_ranks(2, program)


def test_ranks_that_build_different_programs_raise() -> None:
    def program(rank: int) -> None:
        graph_of(lambda x: x * (2.0 + rank))(tensor_of(np.ones((4, 3)), placement("cpu", [0, 1]), S0))

    message = r"the first call of Plain_0\(.*(?s:.*)rank 0: .*Scale\(.*2\.0.*\n.*rank 1: .*Scale\(.*3\.0"
    with pytest.raises(DivergedError, match=message):
        on_ranks(2, program)


@with_ranks(2)
def test_a_parameter_may_change_its_storage_but_not_its_layout() -> None:
    model = Model(2)
    graph = Forward(model)
    batch = tensor_of(np.ones((4, 5)), model.places[0], S0)
    graph(batch)
    model.m_stage0.w.array = model.m_stage0.w.array * 2
    np.testing.assert_array_equal(graph(batch)[1].numpy(), model(batch)[1].numpy())
    model.to_global(placement=placement("cpu", [0, 1]), sbp=S0)
    with pytest.raises(JobError, match="when the graph was compiled and is"):
        graph(batch)


def test_each_rank_has_its_own_local_graph() -> None:
    def program(rank: int) -> Any:
        graph = graph_of(lambda x: x * float(rank + 1))
        result = [graph(tensor(np.full(rank + 1, 2.0, np.float32))) for _ in range(2)][-1]
        whole = tensor_of(np.ones((4, 3)), placement("cpu", [0, 1]), S0)
        return result.is_local, result.tolist(), graph_of(lambda x: x.sum())(whole).item()

    assert on_ranks(2, program) == [(True, [2.0], 12.0), (True, [4.0, 4.0], 12.0)]


@pytest.mark.parametrize("x_lies", [[S0, B], [S0, S0], [B, sbp.partial_sum], [sbp.partial_sum, S0], [S1, B]])
@pytest.mark.parametrize("k", [1, 2])
def test_a_mesh_of_two_dimensions(x_lies: Any, k: int) -> None:
    def program(rank: int, ranks: Any, lies: Any, weight: Any, zero: bool) -> Any:
        here = placement("cpu", ranks)

        class Layer(Module):
            def __init__(self) -> None:
                super().__init__()
                self.w = Parameter(tensor_of(np.random.RandomState(0).standard_normal((6, 4)), here, weight))

            def forward(self, x: Tensor) -> Tensor:
                return matmul(x, self.w)

        class Train(Graph):
            def __init__(self) -> None:
                super().__init__()
                self.layer = Layer()
                self.add_optimizer(Adam(self.layer.parameters(), 0.1))
                self.config.set_gradient_accumulation_steps(k)
                self.config.enable_zero(zero, stage=2, shard_min_size=1)

            def build(self, x: Tensor) -> Any:
                y = self.layer(x)
                loss = mean(y * y)
                loss.backward()
                return loss, y

        train, draw = Train(), np.random.RandomState(1).standard_normal
        steps = [train(tensor_of(draw((8, 6)), here, lies)) for _ in range(3)]
        return [(float(loss.numpy().mean()), y.numpy()) for loss, y in steps]

    (expected,) = on_ranks(1, program, [0], B, B, False)
    for results in on_ranks(4, program, [[0, 1], [2, 3]], x_lies, [B, S1], True):
        for (loss, y), (loss_expected, y_expected) in zip(results, expected, strict=True):
            assert loss == pytest.approx(loss_expected, rel=1e-5)
            np.testing.assert_allclose(y, y_expected, rtol=1e-4, atol=1e-5)


def test_graphs_are_built_with_gradients_in_every_mode_and_on_every_device_type() -> None:
    def program(rank: int) -> Any:
        model, here = Model(2), placement("cuda", [0, 1])
        before = weights(model)
        with no_grad():
            as_graph(Trained(model, [SGD(model.parameters(), 0.1)], None, usual), model.places, (S0, B), 1)
        result = graph_of(lambda x: x * 2.0)(tensor_of(np.ones((4, 3)), here, S0))
        return any(np.array_equal(a, b) for a, b in zip(before, weights(model), strict=True)), result.placement == here, result.sum().item()

    assert on_ranks(2, program) == [(False, True, 24.0)] * 2


def test_a_graph_without_arguments_and_results_runs() -> None:
    def program(rank: int) -> Any:
        here = placement("cpu", [0, 1])
        total = tensor_of(np.zeros(3), here, S0)
        drawn = graph_of(lambda: randn(4, 3, placement=here, sbp=S0))()
        counted = graph_of(lambda: [total.add_(1.0), None][1])
        return drawn.is_global, drawn.numpy().std() > 0, counted(), counted(), total.tolist()

    assert on_ranks(2, program) == [(True, True, None, None, [2.0, 2.0, 2.0])] * 2


class Counting(Module):
    """A module that assigns a buffer."""

    def __init__(self, where: placement) -> None:
        super().__init__()
        self.register_buffer("total", tensor([0.0, 0.0], placement=where, sbp=sbp.broadcast))

    def forward(self, x: Any) -> Any:
        self.total = self.total + x.sum(0)
        return x + self.total


def test_a_buffer_assigned_in_build_keeps_its_identity() -> None:
    def program(rank: int) -> Any:
        where = placement("cpu", range(2))
        x = tensor(np.arange(8, dtype=np.float32).reshape(4, 2), placement=where, sbp=sbp.split(0))
        model, other = Counting(where), Counting(where)
        graph, total = graph_of(model), model.total
        equal = [np.array_equal(graph(x).numpy(), other(x).numpy()) for _ in range(3)]
        return equal, np.array_equal(model.total.numpy(), other.total.numpy()), model.total is total

    assert agree(2, program) == ([True] * 3, True, True)
