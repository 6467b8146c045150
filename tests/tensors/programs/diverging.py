"""Two ranks that diverge, in one case after another: `diverging.py`, under mpiexec.

Each rank prints for each case, as a Python literal: the case, its rank, the time until the error, and its message.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import jobflow as flow
from jobflow import nn, scope
from jobflow.core.errors import DivergedError
from jobflow.tensors.state import EagerState, state

ME = state().rank.index
P = flow.placement("cpu", [0, 1])
B, S0, S1, SUM = flow.sbp.broadcast, flow.sbp.split(0), flow.sbp.split(1), flow.sbp.partial_sum


def ones(sbp: Any = S0, *shape: int) -> Any:
    return flow.ones(*(shape or (4, 4)), placement=P, sbp=sbp)


def numpy_on_one_rank() -> None:
    x = ones()
    if ME == 0:
        x.numpy()
    x.sum().to_global(sbp=B)


def item_on_one_rank() -> None:
    x = ones().sum()
    if ME == 1:
        x.item()
    ones(S1).numpy()


def print_on_one_rank() -> None:
    x = ones(B)
    if ME == 0:
        print(x)
    (x + ones()).numpy()


def other_order_of_to_global() -> None:
    x, y = ones(), ones() * 2
    first, second = (x, y) if ME == 0 else (y, x)
    first.to_global(sbp=B)
    second.to_global(sbp=B)


def other_order_of_ops() -> None:
    x, y = ones(), ones() * 2
    first, second = (x, y) if ME == 0 else (y, x)
    (first.exp() - second).numpy()


def other_order_of_what_was_converted() -> None:
    x, y = ones().to_global(sbp=B), (ones() * 2).to_global(sbp=B)
    (x if ME == 0 else y).to_global(sbp=S1).numpy()


def other_sbp() -> None:
    x = ones().to_global(sbp=S1 if ME == 0 else B)
    x.numpy()


def other_sbp_without_communication() -> None:
    x = ones(B).to_global(sbp=S1 if ME == 0 else S0)
    (x + 1).numpy()


def other_shape() -> None:
    flow.zeros(4, 2 + 2 * ME, placement=P, sbp=S0).numpy()


def other_sbp_of_a_factory() -> None:
    flow.ones(4, 4, placement=P, sbp=(S0, S1)[ME]).numpy()


def other_dtype() -> None:
    flow.ones(4, 4, dtype=(flow.float32, flow.int32)[ME], placement=P, sbp=S0).numpy()


def other_fill_value() -> None:
    flow.full((4,), ME + 1.0, placement=P, sbp=S0).numpy()


def other_data() -> None:
    flow.tensor([1.0, 2.0 + ME], placement=P, sbp=B)


def other_placement() -> None:
    flow.ones(4, placement=flow.placement("cpu", [ME]), sbp=B).numpy()


def other_op() -> None:
    x = ones()
    (x.sum() if ME == 0 else x.relu()).numpy()


def other_op_of_the_same_type() -> None:
    x = ones()
    (x.abs() if ME == 0 else x.relu()).numpy()


def other_op_before_a_move() -> None:
    x = ones()
    (x.abs() if ME == 0 else x.relu()).to_global(flow.placement("cpu", [1]), B)


def other_order_of_moves() -> None:
    first, last = flow.placement("cpu", [0]), flow.placement("cpu", [1])
    x, y = flow.ones(3, placement=first, sbp=B), flow.zeros(3, placement=first, sbp=B) + 2
    (x if ME == 0 else y).to_global(last, B)


def other_number() -> None:
    (ones() * (ME + 2)).numpy()


def other_write() -> None:
    x = ones()
    x[0, ME] = 5.0
    x.numpy()


def a_draw_on_one_rank() -> None:
    if ME == 0:
        flow.rand(3, placement=P, sbp=B)
    flow.rand(3, placement=P, sbp=B).numpy()


def other_seed() -> None:
    flow.manual_seed(ME)
    flow.rand(3, placement=P, sbp=S0).numpy()


def created_on_one_rank() -> None:
    x = flow.ones(3, placement=flow.placement("cpu", [1]), sbp=B) if ME == 1 else None
    if ME == 1:
        x.numpy()
    ones().numpy()


def local_tensors_become_global_otherwise() -> None:
    flow.ones(2, 2).to_global(P, S0 if ME == 0 else S1)


def local_tensors_unchecked() -> None:
    flow.ones(2, 2 + ME).to_global(P, S0, check_meta=False).numpy()


def to_global_on_one_rank() -> None:
    x = flow.ones(2, 2)
    if ME == 0:
        x.to_global(P, S0)
    ones().numpy()


class Double(nn.Graph):
    def __init__(self, factor: int = 2) -> None:
        super().__init__()
        self.factor = factor

    def build(self, x: Any) -> Any:
        return (x * self.factor).sum().to_global(sbp=B)


def another_graph() -> None:
    Double(2 + ME)(ones())


def other_order_of_graphs() -> None:
    first, second = Double(2), Double(3)
    x = ones()
    first(x), second(x)
    if ME == 1:
        first, second = second, first
    first(x)
    second(x)


def a_graph_on_one_rank() -> None:
    graph, x = Double(), ones()
    graph(x)
    if ME == 0:
        graph(x)
    x.numpy()


def other_inputs_of_a_graph() -> None:
    graph, x, y = Double(), ones(), ones() * 2
    graph(x)
    graph(x if ME == 0 else y)


def backward_on_one_rank() -> None:
    w = ones(B).requires_grad_()
    loss = (ones() * w).sum()
    if ME == 0:
        loss.backward()
    loss.numpy()


def other_learning_rate() -> None:
    w = ones(B).requires_grad_()
    optimizer = flow.optim.SGD([w], lr=0.1 * (1 + ME))
    (ones(B) * w).sum().backward()
    optimizer.step()
    w.numpy()


def other_learning_rate_of_a_graph() -> None:
    class Training(nn.Graph):
        def __init__(self) -> None:
            super().__init__()
            self.model = nn.Linear(4, 1).to_global(P, B)
            self.add_optimizer(flow.optim.SGD(self.model.parameters(), lr=0.1 * (1 + ME)))

        def build(self, x: Any) -> Any:
            loss = self.model(x).sum()
            loss.backward()
            return loss

    Training()(ones())


def other_values_of_a_local_tensor() -> None:
    flow.tensor([1.0 + ME]).to(ones().device)


def other_data_on_a_device() -> None:
    flow.tensor([1.0 + ME], device=ones().device)


def to_a_device_on_one_rank() -> None:
    x = ones()
    if ME == 0:
        flow.ones(2).to(x.device)
    x.numpy()


def other_data_on_a_device_in_a_graph() -> None:
    class Shift(nn.Graph):
        def build(self, x: Any) -> Any:
            return x + flow.full((4,), 1.0 + ME).to(x.device)

    Shift()(ones())


def other_data_on_a_device_in_a_compiled_function() -> None:
    flow.compile(lambda x: x + flow.tensor([1.0 + ME]).to(x.device))(ones())


CASES: list[Callable[[], None]] = [
    other_values_of_a_local_tensor,
    other_data_on_a_device,
    to_a_device_on_one_rank,
    other_data_on_a_device_in_a_graph,
    other_data_on_a_device_in_a_compiled_function,
    numpy_on_one_rank,
    item_on_one_rank,
    print_on_one_rank,
    other_order_of_to_global,
    other_order_of_ops,
    other_order_of_what_was_converted,
    other_sbp,
    other_sbp_without_communication,
    other_shape,
    other_sbp_of_a_factory,
    other_dtype,
    other_fill_value,
    other_data,
    other_placement,
    other_op,
    other_op_of_the_same_type,
    other_op_before_a_move,
    other_order_of_moves,
    other_number,
    other_write,
    a_draw_on_one_rank,
    other_seed,
    created_on_one_rank,
    local_tensors_become_global_otherwise,
    local_tensors_unchecked,
    to_global_on_one_rank,
    another_graph,
    other_order_of_graphs,
    a_graph_on_one_rank,
    other_inputs_of_a_graph,
    backward_on_one_rank,
    other_learning_rate,
    other_learning_rate_of_a_graph,
]


def main() -> None:
    rank = state().rank
    for case in CASES:
        scope.current().root.eager = EagerState(rank)  # whose history is the same on both ranks again
        began, reports = time.monotonic(), ""
        try:
            case()
        except DivergedError as error:
            reports = str(error)
        print((case.__name__, ME, time.monotonic() - began, reports), flush=True)


main()
