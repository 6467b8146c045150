"""Weights of GPT-2 and Llama in the layout of Hugging Face files, compared with computations in NumPy."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import jobflow as flow
from jobflow import models
from jobflow.core.errors import ArgumentError

WORDS, WIDTH, HEADS, GROUPS, BLOCKS, HIDDEN, LENGTH = 13, 8, 4, 2, 2, 12, 6
TOKENS = np.array([[1, 5, 12, 0, 3], [7, 7, 2, 9, 11]])
Weights = Mapping[str, Any]


def random_weights(shapes: Mapping[str, tuple[int, ...]]) -> dict[str, Any]:
    random = np.random.default_rng(0)
    return {name: random.standard_normal(shape) * 0.5 for name, shape in shapes.items()}


def gpt2_weights() -> dict[str, Any]:
    """Random weights of `GPT2LMHeadModel`, whose matrices are [inputs, outputs]; `attn.bias` is its causal mask."""
    shapes: dict[str, tuple[int, ...]] = {"wte.weight": (WORDS, WIDTH), "wpe.weight": (LENGTH, WIDTH), "ln_f.weight": (WIDTH,), "ln_f.bias": (WIDTH,)}
    for i in range(BLOCKS):
        for norm in ("ln_1", "ln_2"):
            shapes |= {f"h.{i}.{norm}.weight": (WIDTH,), f"h.{i}.{norm}.bias": (WIDTH,)}
        for layer, size in {
            "attn.c_attn": (WIDTH, 3 * WIDTH),
            "attn.c_proj": (WIDTH, WIDTH),
            "mlp.c_fc": (WIDTH, 4 * WIDTH),
            "mlp.c_proj": (4 * WIDTH, WIDTH),
        }.items():
            shapes |= {f"h.{i}.{layer}.weight": size, f"h.{i}.{layer}.bias": size[1:]}
        shapes[f"h.{i}.attn.bias"] = (1, 1, LENGTH, LENGTH)
    return random_weights(shapes)


def llama_weights() -> dict[str, Any]:
    """Random weights of `LlamaForCausalLM`."""
    size = WIDTH // HEADS
    shapes: dict[str, tuple[int, ...]] = {
        "model.embed_tokens.weight": (WORDS, WIDTH),
        "model.norm.weight": (WIDTH,),
        "lm_head.weight": (WORDS, WIDTH),
    }
    for i in range(BLOCKS):
        layers = {
            "input_layernorm": (WIDTH,),
            "post_attention_layernorm": (WIDTH,),
            "self_attn.q_proj": (HEADS * size, WIDTH),
            "self_attn.k_proj": (GROUPS * size, WIDTH),
            "self_attn.v_proj": (GROUPS * size, WIDTH),
            "self_attn.o_proj": (WIDTH, HEADS * size),
            "mlp.gate_proj": (HIDDEN, WIDTH),
            "mlp.up_proj": (HIDDEN, WIDTH),
            "mlp.down_proj": (WIDTH, HIDDEN),
        }
        shapes |= {f"model.layers.{i}.{name}.weight": shape for name, shape in layers.items()}
    return random_weights(shapes)


def attended(q: Any, k: Any, v: Any) -> Any:
    """Causal attention of [tokens, heads, size], one query at a time."""
    rows = []
    for i in range(len(q)):
        scores = np.einsum("hd,jhd->hj", q[i], k[: i + 1]) / math.sqrt(q.shape[-1])
        weights = np.exp(scores - scores.max(1, keepdims=True))
        rows.append(np.einsum("hj,jhd->hd", weights / weights.sum(1, keepdims=True), v[: i + 1]).reshape(-1))
    return np.stack(rows)


def gpt2_scores(w: Weights, tokens: Any) -> Any:
    def norm(x: Any, name: str) -> Any:
        centred = x - x.mean(1, keepdims=True)
        return centred / np.sqrt((centred**2).mean(1, keepdims=True) + 1e-5) * w[f"{name}.weight"] + w[f"{name}.bias"]

    def layer(x: Any, name: str) -> Any:
        return x @ w[f"{name}.weight"] + w[f"{name}.bias"]

    x = w["wte.weight"][tokens] + w["wpe.weight"][: len(tokens)]
    for i in range(BLOCKS):
        q, k, v = (part.reshape(len(x), HEADS, -1) for part in np.split(layer(norm(x, f"h.{i}.ln_1"), f"h.{i}.attn.c_attn"), 3, axis=1))
        x = x + layer(attended(q, k, v), f"h.{i}.attn.c_proj")
        wide = layer(norm(x, f"h.{i}.ln_2"), f"h.{i}.mlp.c_fc")
        x = x + layer(0.5 * wide * (1 + np.tanh(math.sqrt(2 / math.pi) * (wide + 0.044715 * wide**3))), f"h.{i}.mlp.c_proj")
    return norm(x, "ln_f") @ w["wte.weight"].T


def llama_scores(w: Weights, tokens: Any) -> Any:
    def norm(x: Any, name: str) -> Any:
        return x / np.sqrt((x**2).mean(1, keepdims=True) + 1e-5) * w[f"{name}.weight"]

    def rotated(x: Any) -> Any:
        """Pairs of the first and the second half of a head as complex numbers."""
        half = x.shape[-1] // 2
        angles = np.arange(len(x))[:, None] * 10000.0 ** (-np.arange(half) / half)
        turned = (x[..., :half] + 1j * x[..., half:]) * np.exp(1j * angles)[:, None]
        return np.concatenate([turned.real, turned.imag], -1)

    x = w["model.embed_tokens.weight"][tokens]
    for i in range(BLOCKS):
        own = f"model.layers.{i}"
        y = norm(x, f"{own}.input_layernorm")
        q, k, v = ((y @ w[f"{own}.self_attn.{name}_proj.weight"].T).reshape(len(x), -1, WIDTH // HEADS) for name in "qkv")
        k, v = (np.repeat(part, HEADS // GROUPS, axis=1) for part in (rotated(k), v))
        x = x + attended(rotated(q), k, v) @ w[f"{own}.self_attn.o_proj.weight"].T
        y = norm(x, f"{own}.post_attention_layernorm")
        gate = y @ w[f"{own}.mlp.gate_proj.weight"].T
        x = x + (gate / (1 + np.exp(-gate)) * (y @ w[f"{own}.mlp.up_proj.weight"].T)) @ w[f"{own}.mlp.down_proj.weight"].T
    return norm(x, "model.norm") @ w["lm_head.weight"].T


ARGUMENTS: dict[str, dict[str, Any]] = {
    "gpt2": {"words": WORDS, "length": LENGTH, "width": WIDTH, "heads": HEADS, "blocks": BLOCKS},
    "llama": {"words": WORDS, "length": LENGTH, "width": WIDTH, "heads": HEADS, "groups": GROUPS, "blocks": BLOCKS, "hidden": HIDDEN},
}
FILES: dict[str, tuple[Any, Callable[[], dict[str, Any]], Callable[[Weights, Any], Any]]] = {
    "gpt2": (models.GPT, gpt2_weights, gpt2_scores),
    "llama": (models.Llama, llama_weights, llama_scores),
}


@pytest.mark.parametrize("names", FILES)
def test_files_give_the_scores_of_their_model(names: str, tmp_path: Path) -> None:
    kind, weights, scores = FILES[names]
    drawn = weights()
    with (tmp_path / "model.safetensors").open("wb") as file:
        flow.save({name: flow.tensor(array) for name, array in drawn.items()}, file)
    model = kind(**ARGUMENTS[names]).double()
    model.load_state_dict(models.renamed_weights(flow.load(tmp_path / "model.safetensors"), names))
    np.testing.assert_allclose(model(flow.tensor(TOKENS)).detach().numpy(), [scores(drawn, row) for row in TOKENS], rtol=1e-9, atol=1e-9)


def test_prefixes_and_tied_embeddings_are_loaded() -> None:
    drawn = gpt2_weights()
    plain, prefixed = (models.renamed_weights({f"{prefix}{name}": array for name, array in drawn.items()}, "gpt2") for prefix in ("", "transformer."))
    assert plain.keys() == prefixed.keys() == models.GPT(**ARGUMENTS["gpt2"]).state_dict().keys()
    tied = {name: array for name, array in llama_weights().items() if name != "lm_head.weight"}
    assert models.renamed_weights(tied, "llama").keys() == models.Llama(**ARGUMENTS["llama"], tied=True).state_dict().keys()


def test_unknown_names_are_named() -> None:
    with pytest.raises(ArgumentError, match='unknown names "gpt3"; did you mean "gpt2"'):
        models.renamed_weights({}, "gpt3")
