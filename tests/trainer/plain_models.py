"""Twelve models as a user of PyTorch writes them; only the imports name jobflow."""

from __future__ import annotations

import math
from typing import Any

import jobflow as torch
import jobflow.nn.functional as F
from jobflow import nn

# -------------------------------------------------------------------- tables


class TableRegressor(nn.Module):
    """A perceptron for columns of numbers."""

    def __init__(self, inputs: int, hidden: int = 16, drop: float = 0.1) -> None:
        super().__init__()
        self.net = nn.Sequential(
            nn.Linear(inputs, hidden),
            nn.LayerNorm(hidden),
            nn.ReLU(),
            nn.Dropout(drop),
            nn.Linear(hidden, hidden),
            nn.SiLU(),
            nn.Linear(hidden, 1),
        )

    def forward(self, features: torch.Tensor) -> torch.Tensor:
        return self.net(features).squeeze(-1)


class Recommender(nn.Module):
    """Matrix factorisation with biases."""

    def __init__(self, users: int, items: int, factors: int = 4) -> None:
        super().__init__()
        self.user_factors = nn.Embedding(users, factors)
        self.item_factors = nn.Embedding(items, factors)
        self.user_bias = nn.Embedding(users, 1)
        self.item_bias = nn.Embedding(items, 1)
        self.mean = nn.Parameter(torch.zeros(1))
        for table in (self.user_factors, self.item_factors):
            nn.init.normal_(table.weight, std=0.1)
        nn.init.zeros_(self.user_bias.weight)
        nn.init.zeros_(self.item_bias.weight)

    def forward(self, user: torch.Tensor, item: torch.Tensor) -> torch.Tensor:
        match = (self.user_factors(user) * self.item_factors(item)).sum(dim=-1)
        return match + self.user_bias(user)[:, 0] + self.item_bias(item)[:, 0] + self.mean


class TwoHeads(nn.Module):
    """A shared trunk with a class and an amount, and a weighted sum of two losses."""

    def __init__(self, inputs: int, classes: int, weight: float = 0.5) -> None:
        super().__init__()
        self.weight = weight
        self.trunk = nn.Sequential(nn.Linear(inputs, 16), nn.Tanh())
        self.kind = nn.Linear(16, classes)
        self.amount = nn.Linear(16, 1)

    def forward(self, features: torch.Tensor, labels: Any = None, amounts: Any = None) -> dict[str, torch.Tensor]:
        hidden = self.trunk(features)
        scores, amount = self.kind(hidden), self.amount(hidden).squeeze(1)
        if labels is None or amounts is None:
            return {"scores": scores, "amount": amount}
        kind_loss = F.cross_entropy(scores, labels)
        amount_loss = F.smooth_l1_loss(amount, amounts)
        return {"loss": kind_loss + self.weight * amount_loss, "kind_loss": kind_loss, "amount_loss": amount_loss}


# -------------------------------------------------------------------- images


class ConvNet(nn.Module):
    """Convolutions with pooling."""

    def __init__(self, classes: int, width: int = 4) -> None:
        super().__init__()
        self.features = nn.Sequential(
            nn.Conv2d(3, width, 3, padding=1),
            nn.ReLU(inplace=True),
            nn.MaxPool2d(2),
            nn.Conv2d(width, 2 * width, 3, padding=1, bias=False),
            nn.ReLU(inplace=True),
            nn.AvgPool2d(2),
        )
        self.classifier = nn.Linear(2 * width * 2 * 2, classes)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        x = self.features(images)
        x = torch.flatten(x, 1)
        return self.classifier(x)


class BasicBlock(nn.Module):
    """Two convolutions and a shortcut."""

    def __init__(self, inputs: int, outputs: int, stride: int = 1) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(outputs)
        self.conv2 = nn.Conv2d(outputs, outputs, 3, 1, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(outputs)
        self.shortcut = nn.Identity()
        if stride != 1 or inputs != outputs:
            self.shortcut = nn.Sequential(nn.Conv2d(inputs, outputs, 1, stride, bias=False), nn.BatchNorm2d(outputs))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out = F.relu(self.bn1(self.conv1(x)))
        out = self.bn2(self.conv2(out))
        out += self.shortcut(x)
        return F.relu(out)


class ResNet(nn.Module):
    """A residual network of three blocks."""

    def __init__(self, classes: int = 10, width: int = 4) -> None:
        super().__init__()
        self.stem = nn.Conv2d(1, width, 3, padding=1)
        self.blocks = nn.Sequential(BasicBlock(width, width), BasicBlock(width, 2 * width, 2), BasicBlock(2 * width, 2 * width))
        self.head = nn.Linear(2 * width, classes)
        for module in self.modules():
            if isinstance(module, nn.Conv2d):
                nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        x = self.blocks(self.stem(images))
        x = F.adaptive_avg_pool2d(x, 1).view(x.size(0), -1)
        return self.head(x)


class Autoencoder(nn.Module):
    """A bottleneck of fully connected layers, whose target is its input."""

    def __init__(self, inputs: int = 64, code: int = 8) -> None:
        super().__init__()
        self.encoder = nn.Sequential(nn.Flatten(), nn.Linear(inputs, 32), nn.LeakyReLU(0.1), nn.Linear(32, code))
        self.decoder = nn.Sequential(nn.Linear(code, 32), nn.LeakyReLU(0.1), nn.Linear(32, inputs), nn.Sigmoid())

    def forward(self, images: torch.Tensor) -> dict[str, torch.Tensor]:
        restored = self.decoder(self.encoder(images)).view_as(images)
        return {"loss": F.mse_loss(restored, images)}


class VAE(nn.Module):
    """A variational autoencoder with the evidence lower bound as its loss."""

    def __init__(self, inputs: int = 64, code: int = 4, beta: float = 0.5, sample: bool = True) -> None:
        super().__init__()
        self.beta, self.sample = beta, sample
        self.encoder = nn.Sequential(nn.Flatten(), nn.Linear(inputs, 32), nn.GELU())
        self.mean = nn.Linear(32, code)
        self.log_variance = nn.Linear(32, code)
        self.decoder = nn.Sequential(nn.Linear(code, 32), nn.GELU(), nn.Linear(32, inputs))

    def reparameterize(self, mean: torch.Tensor, log_variance: torch.Tensor) -> torch.Tensor:
        if not self.training or not self.sample:
            return mean
        deviation = torch.exp(0.5 * log_variance)
        return mean + deviation * torch.randn_like(deviation)

    def forward(self, images: torch.Tensor) -> dict[str, torch.Tensor]:
        hidden = self.encoder(images)
        mean, log_variance = self.mean(hidden), self.log_variance(hidden)
        logits = self.decoder(self.reparameterize(mean, log_variance))
        restored = F.binary_cross_entropy_with_logits(logits, images.flatten(1), reduction="none").sum(dim=1)
        divergence = -0.5 * torch.sum(1 + log_variance - mean.pow(2) - log_variance.exp(), dim=1)
        return {"loss": (restored + self.beta * divergence).mean(), "divergence": divergence.mean()}


class DoubleConv(nn.Module):
    """Two convolutions of a U-Net."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        self.conv = nn.Sequential(
            nn.Conv2d(inputs, outputs, 3, padding=1),
            nn.GroupNorm(2, outputs),
            nn.ReLU(),
            nn.Conv2d(outputs, outputs, 3, padding=1),
            nn.GroupNorm(2, outputs),
            nn.ReLU(),
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.conv(x)


class UNet(nn.Module):
    """Segmentation: one class per pixel, with skip connections."""

    def __init__(self, classes: int, width: int = 4) -> None:
        super().__init__()
        self.down1 = DoubleConv(1, width)
        self.down2 = DoubleConv(width, 2 * width)
        self.bottom = DoubleConv(2 * width, 4 * width)
        self.up2 = nn.ConvTranspose2d(4 * width, 2 * width, 2, stride=2)
        self.merge2 = DoubleConv(4 * width, 2 * width)
        self.up1 = nn.ConvTranspose2d(2 * width, width, 2, stride=2)
        self.merge1 = DoubleConv(2 * width, width)
        self.out = nn.Conv2d(width, classes, 1)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        first = self.down1(images)
        second = self.down2(F.max_pool2d(first, 2))
        x = self.bottom(F.max_pool2d(second, 2))
        x = self.merge2(torch.cat([self.up2(x), second], dim=1))
        x = self.merge1(torch.cat([self.up1(x), first], dim=1))
        return self.out(x)


# -------------------------------------------------------------------- sequences


class LSTMClassifier(nn.Module):
    """Embedding, LSTM, and the last hidden state."""

    def __init__(self, words: int, classes: int = 2, width: int = 8, drop: float = 0.1) -> None:
        super().__init__()
        self.embed = nn.Embedding(words, width, padding_idx=0)
        self.lstm = nn.LSTM(width, width, batch_first=True)
        self.drop = nn.Dropout(drop)
        self.fc = nn.Linear(width, classes)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        _, (hidden, _) = self.lstm(self.embed(tokens))
        return self.fc(self.drop(hidden[-1]))


class GRUForecaster(nn.Module):
    """A bidirectional GRU of two layers that predicts the next value of a series."""

    def __init__(self, width: int = 6) -> None:
        super().__init__()
        self.gru = nn.GRU(1, width, num_layers=2, bidirectional=True, batch_first=True)
        self.head = nn.Linear(2 * width, 1)

    def forward(self, series: torch.Tensor) -> torch.Tensor:
        output, _ = self.gru(series.unsqueeze(-1))
        return self.head(output.mean(dim=1)).reshape(-1)


class PositionalEncoding(nn.Module):
    """Sines and cosines that are added to embeddings."""

    def __init__(self, width: int, longest: int = 64) -> None:
        super().__init__()
        position = torch.arange(longest).unsqueeze(1)
        rates = torch.exp(torch.arange(0, width, 2) * (-math.log(10000.0) / width))
        table = torch.zeros(longest, width)
        table[:, 0::2] = torch.sin(position * rates)
        table[:, 1::2] = torch.cos(position * rates)
        self.register_buffer("table", table)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.table[: x.size(1)]


class EncoderClassifier(nn.Module):
    """A Transformer encoder over padded tokens, with the mean of the others."""

    def __init__(self, words: int, classes: int = 2, width: int = 8, heads: int = 2, layers: int = 2, drop: float = 0.1) -> None:
        super().__init__()
        self.embed = nn.Embedding(words, width, padding_idx=0)
        self.position = PositionalEncoding(width)
        layer = nn.TransformerEncoderLayer(width, heads, dim_feedforward=2 * width, dropout=drop, batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, num_layers=layers)
        self.fc = nn.Linear(width, classes)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        padding = tokens == 0
        x = self.position(self.embed(tokens) * math.sqrt(self.embed.embedding_dim))
        x = self.encoder(x, src_key_padding_mask=padding)
        mask = (~padding).unsqueeze(-1).float()
        return self.fc((x * mask).sum(dim=1) / mask.sum(dim=1).clamp(min=1))


class CausalSelfAttention(nn.Module):
    """Attention of each token to itself and the earlier ones."""

    def __init__(self, width: int, heads: int, drop: float) -> None:
        super().__init__()
        self.heads, self.drop = heads, drop
        self.qkv = nn.Linear(width, 3 * width)
        self.out = nn.Linear(width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        B, T, C = x.shape
        q, k, v = self.qkv(x).split(C, dim=2)
        q, k, v = (each.view(B, T, self.heads, C // self.heads).transpose(1, 2) for each in (q, k, v))
        y = F.scaled_dot_product_attention(q, k, v, dropout_p=self.drop if self.training else 0.0, is_causal=True)
        return self.out(y.transpose(1, 2).contiguous().view(B, T, C))


class Block(nn.Module):
    """A block of a GPT: attention and a perceptron, with normalisation before each."""

    def __init__(self, width: int, heads: int, drop: float) -> None:
        super().__init__()
        self.ln1, self.ln2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.attn = CausalSelfAttention(width, heads, drop)
        self.mlp = nn.ModuleDict({"up": nn.Linear(width, 4 * width), "down": nn.Linear(4 * width, width)})

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x + self.attn(self.ln1(x))
        return x + self.mlp["down"](F.gelu(self.mlp["up"](self.ln2(x)), approximate="tanh"))


class GPT(nn.Module):
    """A language model whose output layer shares the weights of its embedding."""

    def __init__(self, words: int, length: int, width: int = 8, heads: int = 2, layers: int = 2, drop: float = 0.1) -> None:
        super().__init__()
        self.embed = nn.Embedding(words, width)
        self.position = nn.Embedding(length, width)
        self.drop = nn.Dropout(drop)
        self.blocks = nn.ModuleList([Block(width, heads, drop) for _ in range(layers)])
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, words, bias=False)
        self.head.weight = self.embed.weight
        self.apply(self._init_weights)

    def _init_weights(self, module: nn.Module) -> None:
        if isinstance(module, nn.Linear | nn.Embedding):
            nn.init.normal_(module.weight, mean=0.0, std=0.1)
        if isinstance(module, nn.Linear) and module.bias is not None:
            nn.init.zeros_(module.bias)

    def forward(self, tokens: torch.Tensor, targets: Any = None) -> dict[str, torch.Tensor]:
        T = tokens.size(1)
        x = self.drop(self.embed(tokens) + self.position(torch.arange(T, device=tokens.device)))
        for block in self.blocks:
            x = block(x)
        logits = self.head(self.norm(x))
        if targets is None:
            return {"scores": logits}
        return {"loss": F.cross_entropy(logits.view(-1, logits.size(-1)), targets.view(-1))}
