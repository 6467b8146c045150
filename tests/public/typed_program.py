"""A user's program for type checkers.

mypy checks the program with the package; an unneeded `ignore` is an error.
"""

from typing import assert_type

import jobflow as flow
from jobflow import nn


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(3, 2)

    def forward(self, x: flow.Tensor) -> flow.Tensor:
        return flow.relu(self.layer(x)).clamp(max=1.0)


def program() -> flow.Tensor:
    x: flow.Tensor = flow.Tensor(4, 3)
    assert_type(x.fill_(0.5), flow.Tensor)
    assert_type(x.sort().values, flow.Tensor)
    assert_type(x + 1, flow.Tensor)
    assert_type(flow.exp(x), flow.Tensor)
    assert_type(x.T.shape[0], int)
    if x.ndim > 2:
        x.no_such_method()  # type: ignore[attr-defined]
        flow.no_such_name  # type: ignore[attr-defined]  # noqa: B018
        nn.NoSuchModule(3)  # type: ignore[attr-defined]
        x.sort(downwards=True)  # type: ignore[call-arg]
    y: flow.Tensor = Net()(x)
    y.sum().backward()
    return y
