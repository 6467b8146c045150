"""Generation with global models on all ranks: broadcast, and with linear layers split over the ranks; rank 0 compares with a local model."""

from __future__ import annotations

from typing import Any

import jobflow as flow
from jobflow.models import GPT, KeyValueCache, Llama, generate

HERE = flow.placement.all("cpu")
B, S0, S1 = flow.sbp.broadcast, flow.sbp.split(0), flow.sbp.split(1)
PROMPTS = [[1, 2, 3], [4, 5, 6, 7, 8] * 3]


def model_of(kind: Any) -> Any:
    flow.manual_seed(0)
    return kind(words=50, length=40, width=32, heads=4, blocks=2).double()


def tokens_of(model: Any, **options: Any) -> Any:
    return generate(model, PROMPTS, 12, seed=1, **options)


def main() -> None:
    for kind in (GPT, Llama):
        expected = tokens_of(model_of(kind))
        model = model_of(kind).to_global(HERE, B)
        same = tokens_of(model) == expected
        for name, parameter in model.named_parameters():  # the layers of attention and feed-forward networks by columns, then by rows
            if parameter.ndim == 2:
                parameter.data = parameter.data.to_global(HERE, S1 if "out" in name or "down" in name else S0)
        cache = KeyValueCache(2, 40, next(model.parameters()).device)
        split = tokens_of(model, cache=cache) == expected
        if flow.env.get_rank() == 0:
            print(kind.__name__, same, split)


if __name__ == "__main__":
    main()
