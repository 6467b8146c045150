"""A language model like GPT-2 (Radford et al. 2019), as a plain module to copy and change.

Features: learned positions, pre-norm blocks, causal attention, GELU, embeddings shared with the output layer, dropout, a key-value cache.

    model: {builder: "jobflow.models:GPT", arguments: {words: 256, length: 128, width: 128, heads: 4, blocks: 4}}

GPT-2 itself has words=50257, length=1024, width=768, heads=12, blocks=12. `start_from: {path: model.safetensors, rename: gpt2}` loads its weights.
"""

from __future__ import annotations

from math import sqrt
from typing import Any

import jobflow.functional as flow
import jobflow.nn as nn
import jobflow.nn.functional as F
from jobflow.core.errors import ArgumentError, user_line
from jobflow.models.generation.key_value_cache import attention


class GPTAttention(nn.Module):
    """Causal attention of several heads."""

    def __init__(self, width: int, heads: int, dropout: float) -> None:
        super().__init__()
        self.heads, self.dropout = heads, dropout
        self.qkv = nn.Linear(width, 3 * width)
        self.out = nn.Linear(width, width)

    def forward(self, x: Any, cache: Any = None) -> Any:
        n, t, width = x.shape
        q, k, v = self.qkv(x).split(width, dim=-1)  # [n, t, width] each
        q, k, v = (part.reshape(n, t, self.heads, -1).transpose(1, 2) for part in (q, k, v))  # [n, heads, t, size]
        y = attention(q, k, v, cache, dropout_p=self.dropout if self.training else 0.0)  # [n, heads, t, size]
        return self.out(y.transpose(1, 2).reshape(n, t, width))  # [n, t, width]


class GPTBlock(nn.Module):
    """Attention and a feed-forward network, each after a norm and added to its input."""

    def __init__(self, width: int, heads: int, dropout: float) -> None:
        super().__init__()
        self.norm1, self.attention = nn.LayerNorm(width), GPTAttention(width, heads, dropout)
        self.norm2 = nn.LayerNorm(width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)
        self.dropout = nn.Dropout(dropout)

    def forward(self, x: Any, cache: Any = None) -> Any:
        x = x + self.dropout(self.attention(self.norm1(x), cache))  # [n, t, width]
        wide = F.gelu(self.up(self.norm2(x)), approximate="tanh")  # [n, t, 4 width]
        return x + self.dropout(self.down(wide))  # [n, t, width]


class GPT(nn.Module):
    """A GPT: tokens [n, t] -> scores of the next tokens [n, t, words]; with `targets` [n, t], a dict with one loss per sequence [n]."""

    def __init__(self, words: int = 256, length: int = 128, width: int = 128, heads: int = 4, blocks: int = 4, dropout: float = 0.0) -> None:
        super().__init__()
        if heads < 1 or width % heads:
            raise ArgumentError(f"GPT at {user_line()}: width {width} must be divisible by heads {heads}")
        self.length = length
        self.token_embedding, self.position_embedding = nn.Embedding(words, width), nn.Embedding(length, width)
        self.dropout = nn.Dropout(dropout)
        self.blocks = nn.ModuleList([GPTBlock(width, heads, dropout) for _ in range(blocks)])
        self.norm = nn.LayerNorm(width)
        self.apply(self._initialize)
        for block in self.blocks:  # branches add up to twice the variance of the embeddings
            for layer in (block.attention.out, block.down):
                nn.init.normal_(layer.weight, std=0.02 / sqrt(2 * blocks))

    def _initialize(self, module: nn.Module) -> None:
        if isinstance(module, nn.Linear | nn.Embedding):
            nn.init.normal_(module.weight, std=0.02)
        if isinstance(module, nn.Linear):
            nn.init.zeros_(module.bias)

    def forward(self, tokens: Any, targets: Any = None, cache: Any = None) -> Any:
        t = tokens.shape[1]
        if cache is None and t > self.length:
            raise ArgumentError(f"GPT at {user_line()}: {t} tokens exceed length {self.length}; pass fewer tokens, or increase length")
        at = flow.arange(t, device=tokens.device) if cache is None else cache.extend(t)  # [t] or [n, t]
        x = self.dropout(self.token_embedding(tokens) + self.position_embedding(at))  # [n, t, width]
        for index, block in enumerate(self.blocks):
            x = block(x, None if cache is None else cache[index])  # [n, t, width]
        scores = F.linear(self.norm(x), self.token_embedding.weight)  # [n, t, words]
        if targets is None:
            return scores
        losses = F.cross_entropy(scores.transpose(1, 2), targets.long(), reduction="none")  # [n, t]
        return {"loss": losses.mean(dim=1)}  # [n]
