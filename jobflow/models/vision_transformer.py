"""A vision transformer (Dosovitskiy et al. 2021), as a plain module to copy and change.

Features: patches by a convolution, a class token, learned positions, pre-norm blocks, GELU, dropout.

    model: {builder: "jobflow.models:ViT", arguments: {channels: 1, size: 28, patch: 7, width: 64, heads: 4, blocks: 4}}
"""

from __future__ import annotations

from typing import Any

import jobflow.functional as flow
import jobflow.nn as nn
import jobflow.nn.functional as F
from jobflow.core.errors import ArgumentError, user_line


class ViTAttention(nn.Module):
    """Attention of several heads to all patches."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.qkv = nn.Linear(width, 3 * width)
        self.out = nn.Linear(width, width)

    def forward(self, x: Any) -> Any:
        n, t, width = x.shape
        q, k, v = self.qkv(x).split(width, dim=-1)  # [n, t, width] each
        q, k, v = (part.reshape(n, t, self.heads, -1).transpose(1, 2) for part in (q, k, v))  # [n, heads, t, size]
        y = F.scaled_dot_product_attention(q, k, v)  # [n, heads, t, size]
        return self.out(y.transpose(1, 2).reshape(n, t, width))  # [n, t, width]


class ViTBlock(nn.Module):
    """Attention and a feed-forward network, each after a norm and added to its input."""

    def __init__(self, width: int, heads: int, dropout: float) -> None:
        super().__init__()
        self.norm1, self.attention = nn.LayerNorm(width), ViTAttention(width, heads)
        self.norm2 = nn.LayerNorm(width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)
        self.dropout = nn.Dropout(dropout)

    def forward(self, x: Any) -> Any:
        x = x + self.dropout(self.attention(self.norm1(x)))  # [n, t, width]
        return x + self.dropout(self.down(F.gelu(self.up(self.norm2(x)))))  # [n, t, width]


class ViT(nn.Module):
    """A vision transformer: images [n, channels, size, size] -> scores [n, classes]."""

    def __init__(
        self,
        channels: int = 3,
        classes: int = 10,
        size: int = 32,
        patch: int = 4,
        width: int = 128,
        heads: int = 4,
        blocks: int = 6,
        dropout: float = 0.0,
    ) -> None:
        super().__init__()
        if min(patch, heads) < 1 or size % patch or width % heads:
            raise ArgumentError(f"ViT at {user_line()}: patch {patch} must divide size {size}, and heads {heads} must divide width {width}")
        self.patches = nn.Conv2d(channels, width, patch, patch)
        self.class_token = nn.Parameter(flow.zeros(1, 1, width))
        self.position_embedding = nn.Parameter(flow.zeros(1, (size // patch) ** 2 + 1, width))
        self.dropout = nn.Dropout(dropout)
        self.blocks = nn.Sequential(*[ViTBlock(width, heads, dropout) for _ in range(blocks)])
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, classes)
        for parameter in (self.class_token, self.position_embedding):
            nn.init.normal_(parameter, std=0.02)

    def forward(self, images: Any) -> Any:
        x = images if images.ndim == 4 else flow.unsqueeze(images, 1)  # [n, channels, size, size]
        x = self.patches(x).flatten(2).transpose(1, 2)  # [n, patches, width]
        x = flow.cat([self.class_token.expand(x.shape[0], -1, -1), x], dim=1)  # [n, 1 + patches, width]
        x = self.blocks(self.dropout(x + self.position_embedding))  # [n, 1 + patches, width]
        return self.head(self.norm(x)[:, 0])  # [n, classes]
