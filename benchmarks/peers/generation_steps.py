"""Generation of tokens with a cache, timed on order, with either library: `python generation_steps.py jobflow|torch`.

Orders of the protocol in worker.py:

    tokens    the first tokens
    whole N   seconds per token of a generation up to N tokens
    at P      seconds of single tokens from position P on
"""

from __future__ import annotations

import argparse
import importlib
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[1]))
import worker

#: the sizes of examples/gpt.py, and a longer window
SIZES = {"words": 256, "width": 256, "heads": 4, "blocks": 4, "length": 1024}
PROMPT = [int(token) for token in np.random.default_rng(1).integers(0, 256, 16)]


def weights(names: dict[str, Any]) -> dict[str, Any]:
    """Return the same weights for both libraries, by name."""
    random = np.random.default_rng(0)
    drawn = {name: random.standard_normal(tuple(value.shape)) * 0.05 for name, value in sorted(names.items())}
    return {name: (1 + array if "norm" in name and name.endswith("weight") else array).astype(np.float32) for name, array in drawn.items()}


def jobflow_side() -> tuple[Callable[[int], list[int]], Callable[[int, int], Any]]:
    import jobflow as flow
    from jobflow.models import GPT, KeyValueCache, generate

    model = GPT(**SIZES).eval()
    model.load_state_dict({name: flow.tensor(array) for name, array in weights(model.state_dict()).items()})
    cache = KeyValueCache(1, SIZES["length"])

    @flow.compile
    def scores(tokens: Any) -> Any:
        return model(tokens, cache=cache)[0, -1]

    def step(token: int, position: int) -> int:
        with flow.no_grad():
            return int(scores(flow.tensor(np.array([[token]], np.int32))).numpy().argmax())

    generate(model, PROMPT, 1, temperature=0, cache=cache)

    def at(position: int, count: int) -> Callable[[], Any]:
        generate(model, (PROMPT * SIZES["length"])[:position], 1, temperature=0, cache=cache)
        cache.rewind(position)
        return stepping(step, position)

    return lambda count: generate(model, PROMPT, count, temperature=0, cache=cache), at


def stepping(step: Callable[[int, int], int], position: int) -> Callable[[], None]:
    """Return a function that generates the next token of a sequence at each call."""
    now = [7, position]

    def call() -> None:
        now[:] = [step(*now), now[1] + 1]

    return call


def torch_side() -> tuple[Callable[[int], list[int]], Callable[[int, int], Any]]:
    import torch
    from torch import nn
    from torch.nn import functional as F

    width, heads, length = SIZES["width"], SIZES["heads"], SIZES["length"]

    class Attention(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
            self.keys, self.values = (torch.zeros(1, heads, length, width // heads) for _ in range(2))

        def forward(self, x: Any, position: int) -> Any:
            n, t, _ = x.shape
            q, k, v = (part.reshape(n, t, heads, -1).transpose(1, 2) for part in self.qkv(x).split(width, dim=-1))
            stop = position + t
            self.keys[:, :, position:stop], self.values[:, :, position:stop] = k, v
            y = F.scaled_dot_product_attention(q, self.keys[:, :, :stop], self.values[:, :, :stop], is_causal=t > 1)
            return self.out(y.transpose(1, 2).reshape(n, t, width))

    class Block(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.norm1, self.attention, self.norm2 = nn.LayerNorm(width), Attention(), nn.LayerNorm(width)
            self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

        def forward(self, x: Any, position: int) -> Any:
            x = x + self.attention(self.norm1(x), position)
            return x + self.down(F.gelu(self.up(self.norm2(x)), approximate="tanh"))

    class GPT(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.token_embedding, self.position_embedding = nn.Embedding(SIZES["words"], width), nn.Embedding(length, width)
            self.blocks, self.norm = nn.ModuleList([Block() for _ in range(SIZES["blocks"])]), nn.LayerNorm(width)

        def forward(self, tokens: Any, position: int) -> Any:
            x = self.token_embedding(tokens) + self.position_embedding(torch.arange(position, position + tokens.shape[1]))
            for block in self.blocks:
                x = block(x, position)
            return F.linear(self.norm(x), self.token_embedding.weight)

    torch.set_num_threads(1)
    model = GPT().eval()
    model.load_state_dict({name: torch.tensor(array) for name, array in weights(model.state_dict()).items()})

    def step(token: int, position: int) -> int:
        with torch.no_grad():
            return int(model(torch.tensor([[token]]), position)[0, -1].argmax())

    def whole(count: int) -> list[int]:
        with torch.no_grad():
            tokens = [int(model(torch.tensor([PROMPT]), 0)[0, -1].argmax())]
        for position in range(len(PROMPT), len(PROMPT) + count - 1):
            tokens.append(step(tokens[-1], position))
        return tokens

    return whole, lambda position, count: stepping(step, position)


class Orders(dict[str, Callable[[int], dict[str, Any]]]):
    """The orders of a side."""

    def __init__(self, whole: Callable[[int], list[int]], at: Callable[[int, int], Any]) -> None:
        super().__init__({"tokens": lambda count: {"tokens": whole(count)}})
        self.whole, self.at = whole, at

    def __missing__(self, order: str) -> Callable[[int], dict[str, Any]]:
        kind, number = order.split()
        if kind == "at":
            return lambda count: {"seconds": worker.timed(self.at(int(number), count), count)}
        count = int(number) - len(PROMPT)
        return lambda times: {"seconds": [seconds / count for seconds in worker.timed(lambda: self.whole(count), times)]}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("library", choices=("jobflow", "torch"))
    options = parser.parse_args()
    importlib.import_module(options.library)
    worker.obey(Orders(*(jobflow_side() if options.library == "jobflow" else torch_side())))


if __name__ == "__main__":
    main()
