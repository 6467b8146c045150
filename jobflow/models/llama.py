"""A language model like Llama (Touvron et al. 2023), as a plain module to copy and change.

Features: rotary positions (RoPE), grouped-query attention, RMSNorm, SwiGLU, no biases, a key-value cache, optionally shared embeddings (`tied`).

    model: {builder: "jobflow.models:Llama", arguments: {words: 256, length: 128, width: 128, heads: 4, groups: 2, blocks: 4, hidden: 344}}

`start_from: {path: model.safetensors, rename: llama}` loads the weights of a Hugging Face checkpoint.
"""

from __future__ import annotations

from typing import Any

import jobflow.functional as flow
import jobflow.nn as nn
import jobflow.nn.functional as F
from jobflow.core.errors import ArgumentError, user_line
from jobflow.models.generation.key_value_cache import attention
from jobflow.models.generation.rotary import rotary_embedding


class LlamaAttention(nn.Module):
    """Causal attention, in which several heads share one group of keys and values."""

    def __init__(self, width: int, heads: int, groups: int, base: float) -> None:
        super().__init__()
        self.heads, self.groups, self.size, self.base = heads, groups, width // heads, base
        self.q = nn.Linear(width, heads * self.size, bias=False)
        self.k = nn.Linear(width, groups * self.size, bias=False)
        self.v = nn.Linear(width, groups * self.size, bias=False)
        self.out = nn.Linear(heads * self.size, width, bias=False)

    def forward(self, x: Any, at: Any, cache: Any = None) -> Any:
        n, t, _ = x.shape
        q = self.q(x).reshape(n, t, self.heads, self.size).transpose(1, 2)  # [n, heads, t, size]
        k = self.k(x).reshape(n, t, self.groups, self.size).transpose(1, 2)  # [n, groups, t, size]
        v = self.v(x).reshape(n, t, self.groups, self.size).transpose(1, 2)  # [n, groups, t, size]
        q, k = rotary_embedding(q, at, self.base), rotary_embedding(k, at, self.base)
        y = attention(q, k, v, cache)  # [n, heads, t, size]
        return self.out(y.transpose(1, 2).reshape(n, t, self.heads * self.size))  # [n, t, width]


class LlamaFeedForward(nn.Module):
    """SwiGLU: down(silu(gate(x)) * up(x))."""

    def __init__(self, width: int, hidden: int) -> None:
        super().__init__()
        self.gate, self.up = nn.Linear(width, hidden, bias=False), nn.Linear(width, hidden, bias=False)
        self.down = nn.Linear(hidden, width, bias=False)

    def forward(self, x: Any) -> Any:
        return self.down(F.silu(self.gate(x)) * self.up(x))  # [n, t, width]


class LlamaBlock(nn.Module):
    """Attention and a feed-forward network, each after a norm and added to its input."""

    def __init__(self, width: int, heads: int, groups: int, hidden: int, base: float, eps: float) -> None:
        super().__init__()
        self.norm1, self.attention = nn.RMSNorm(width, eps=eps), LlamaAttention(width, heads, groups, base)
        self.norm2, self.feed_forward = nn.RMSNorm(width, eps=eps), LlamaFeedForward(width, hidden)

    def forward(self, x: Any, at: Any, cache: Any = None) -> Any:
        x = x + self.attention(self.norm1(x), at, cache)  # [n, t, width]
        return x + self.feed_forward(self.norm2(x))  # [n, t, width]


class Llama(nn.Module):
    """A Llama: tokens [n, t] -> scores of the next tokens [n, t, words]; with `targets` [n, t], a dict with one loss per sequence [n].

    `groups` is the number of heads of keys and values, `hidden` the width of the feed-forward network, and `base` the base of the rotary angles.
    """

    def __init__(
        self,
        words: int = 256,
        length: int = 128,
        width: int = 128,
        heads: int = 4,
        groups: int = 2,
        blocks: int = 4,
        hidden: int = 344,
        base: float = 10000.0,
        eps: float = 1e-5,
        tied: bool = False,
    ) -> None:
        super().__init__()
        if min(heads, groups) < 1 or width % heads or heads % groups or width // heads % 2:
            sizes = f"width {width}, heads {heads}, groups {groups}"
            raise ArgumentError(f"Llama at {user_line()}: {sizes}: groups must divide heads, and heads must divide width into even sizes")
        self.length = length
        self.token_embedding = nn.Embedding(words, width)
        self.blocks = nn.ModuleList([LlamaBlock(width, heads, groups, hidden, base, eps) for _ in range(blocks)])
        self.norm = nn.RMSNorm(width, eps=eps)
        self.head = None if tied else nn.Linear(width, words, bias=False)
        self.apply(self._initialize)

    def _initialize(self, module: nn.Module) -> None:
        if isinstance(module, nn.Linear | nn.Embedding):
            nn.init.normal_(module.weight, std=0.02)

    def forward(self, tokens: Any, targets: Any = None, cache: Any = None) -> Any:
        t = tokens.shape[1]
        if cache is None and t > self.length:
            raise ArgumentError(f"Llama at {user_line()}: {t} tokens exceed length {self.length}; pass fewer tokens, or increase length")
        at = flow.arange(t, device=tokens.device) if cache is None else cache.extend(t)  # [t] or [n, t]
        x = self.token_embedding(tokens)  # [n, t, width]
        for index, block in enumerate(self.blocks):
            x = block(x, at, None if cache is None else cache[index])  # [n, t, width]
        x = self.norm(x)
        scores = F.linear(x, self.token_embedding.weight) if self.head is None else self.head(x)  # [n, t, words]
        if targets is None:
            return scores
        losses = F.cross_entropy(scores.transpose(1, 2), targets.long(), reduction="none")  # [n, t]
        return {"loss": losses.mean(dim=1)}  # [n]
