"""Tensors on "cuda": print the result of each way to create them."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable
from typing import Any

import jobflow as flow

x = flow.ones(2)
g = flow.ones(2, placement=flow.placement("cpu", [0]), sbp=flow.sbp.broadcast)
WAYS: dict[str, Callable[[], Any]] = {
    "cuda()": lambda: x.cuda(),
    "to": lambda: x.to("cuda:0"),
    "device=": lambda: flow.zeros(2, device="cuda") + 1,
    "placement": lambda: flow.ones(2, placement=flow.placement("cuda", [0]), sbp=flow.sbp.broadcast),
    "cuda() of a global tensor": lambda: g.cuda(),
    "module": lambda: flow.nn.Linear(2, 1).cuda().weight.detach() * 0 + 1,
    "copy": lambda: copy.deepcopy(x.cuda()),
    "pickle": lambda: pickle.loads(pickle.dumps(x.to("cuda"))),
}

for way, make in WAYS.items():
    tensor = make()
    print(way, tensor.is_cuda, tensor.numpy().ravel().tolist()[0])
print(flow.cuda.is_available(), (x + 1).tolist())
