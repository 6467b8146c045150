"""Small models of sequences and sets: convolutions in time, attention, mixing, experts."""

from __future__ import annotations

from typing import Any

from models.library import F, flow, nn


class DilatedBlock(nn.Module):
    """Two causal convolutions, and what goes past them."""

    def __init__(self, width: int, dilation: int) -> None:
        super().__init__()
        self.before = 2 * dilation
        self.first, self.second = (nn.Conv1d(width, width, 3, dilation=dilation) for _ in range(2))

    def forward(self, x: Any) -> Any:
        y = F.leaky_relu(self.first(F.pad(x, (self.before, 0))), 0.01)
        return F.leaky_relu(x + self.second(F.pad(y, (self.before, 0))), 0.01)


class Dilated(nn.Module):
    """Dilated convolutions over a sequence (TCN) that foretell its next value."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Conv1d(4, 32, 1)
        self.blocks = nn.Sequential(*(DilatedBlock(32, 2**i) for i in range(5)))
        self.head = nn.Conv1d(32, 4, 1)

    def forward(self, x: Any, y: Any) -> Any:
        return F.smooth_l1_loss(self.head(self.blocks(self.first(x))), y)


class Attention(nn.Module):
    """Attention of several heads, of positions to themselves."""

    def __init__(self, width: int, heads: int, causal: bool = False, turn: Any = None) -> None:
        super().__init__()
        self.heads, self.causal, self.turn = heads, causal, turn
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)

    def forward(self, x: Any) -> Any:
        b, t, d = x.shape
        q, k, v = (part.reshape(b, t, self.heads, d // self.heads).transpose(1, 2) for part in self.qkv(x).chunk(3, 2))
        if self.turn is not None:
            q, k = self.turn(q), self.turn(k)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=self.causal)
        return self.out(y.transpose(1, 2).reshape(b, t, d))


class EncoderBlock(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.attention, self.norm1, self.norm2 = Attention(width, 4), nn.LayerNorm(width), nn.LayerNorm(width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: Any) -> Any:
        x = self.norm1(x + self.attention(x))
        return self.norm2(x + self.down(F.relu(self.up(x))))


class Encoder(nn.Module):
    """Words to a class, with the norms after the sums."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.places = nn.Embedding(5000, 96), nn.Embedding(64, 96)
        self.blocks = nn.Sequential(*(EncoderBlock(96) for _ in range(2)))
        self.head = nn.Linear(96, 5)

    def forward(self, words: Any, labels: Any) -> Any:
        x = self.words(words) + self.places(flow.arange(64))
        return F.cross_entropy(self.head(self.blocks(x).mean(1)), labels)


class Rotary(nn.Module):
    """Pairs of numbers turned by an angle that grows with the position."""

    def __init__(self, length: int, width: int) -> None:
        super().__init__()
        angles = flow.arange(length).reshape(length, 1) * 10000.0 ** (-flow.arange(width // 2).reshape(1, width // 2) * 2.0 / width)
        self.register_buffer("cos", flow.cat([flow.cos(angles)] * 2, 1), persistent=False)
        self.register_buffer("sin", flow.cat([flow.sin(angles)] * 2, 1), persistent=False)

    def forward(self, x: Any) -> Any:
        one, two = x.chunk(2, 3)
        return x * self.cos + flow.cat([-two, one], 3) * self.sin


class DecoderBlock(nn.Module):
    def __init__(self, width: int, turn: Any) -> None:
        super().__init__()
        self.attention, self.norm1, self.norm2 = Attention(width, 4, True, turn), nn.RMSNorm(width), nn.RMSNorm(width)
        self.gate, self.up, self.down = nn.Linear(width, 2 * width, False), nn.Linear(width, 2 * width, False), nn.Linear(2 * width, width, False)

    def forward(self, x: Any) -> Any:
        x = x + self.attention(self.norm1(x))
        y = self.norm2(x)
        return x + self.down(F.silu(self.gate(y)) * self.up(y))


class Decoder(nn.Module):
    """Words to the next words: rotary positions, RMS norms, gates of SiLU, and the table as the last layer too."""

    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(1000, 128)
        turn = Rotary(64, 32)
        self.blocks = nn.Sequential(*(DecoderBlock(128, turn) for _ in range(2)))
        self.norm, self.head = nn.RMSNorm(128), nn.Linear(128, 1000, bias=False)

    def forward(self, words: Any, after: Any) -> Any:
        y = self.head(self.norm(self.blocks(self.words(words))))
        return F.cross_entropy(y.reshape(-1, 1000), after.reshape(-1))


class MixerBlock(nn.Module):
    def __init__(self, places: int, width: int) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.among = nn.Sequential(nn.Linear(places, 61), nn.GELU(), nn.Linear(61, places))
        self.within = nn.Sequential(nn.Linear(width, 203), nn.GELU(), nn.Linear(203, width))

    def forward(self, x: Any) -> Any:
        x = x + self.among(self.norm1(x).transpose(1, 2)).transpose(1, 2)
        return x + self.within(self.norm2(x))


class Mixer(nn.Module):
    """Patches of images, mixed among places and within each, at sizes that nothing divides."""

    def __init__(self) -> None:
        super().__init__()
        self.patches = nn.Conv2d(3, 97, 5, 5)
        self.blocks = nn.Sequential(*(MixerBlock(49, 97) for _ in range(3)))
        self.norm, self.head = nn.LayerNorm(97), nn.Linear(97, 11)

    def forward(self, images: Any, labels: Any) -> Any:
        x = self.patches(images).flatten(2).transpose(1, 2)
        return F.cross_entropy(self.head(self.norm(self.blocks(x)).mean(1)), labels)


class Expert(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(width, 2 * width), nn.Linear(2 * width, width)

    def forward(self, x: Any) -> Any:
        return self.down(F.silu(self.up(x)))


class Experts(nn.Module):
    """A mixture of experts: the two best of four by the gate, each weighted."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.norm, self.gate = nn.Linear(40, 64), nn.LayerNorm(64), nn.Linear(64, 4)
        self.experts = nn.ModuleList([Expert(64) for _ in range(4)])
        self.head = nn.Linear(64, 8)

    def forward(self, x: Any, labels: Any) -> Any:
        x = self.norm(F.relu(self.first(x)))
        scores, chosen = flow.topk(self.gate(x), 2, 1)
        weights = F.softmax(scores, 1)
        share = (F.one_hot(chosen, 4) * weights.unsqueeze(2)).sum(1)
        outputs = flow.stack([expert(x) for expert in self.experts], 1)
        return F.cross_entropy(self.head(x + (outputs * share.unsqueeze(2)).sum(1)), labels)


class TextConvolution(nn.Module):
    """Words of a sentence, windows of three of them, the largest of each feature."""

    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(20000, 64)
        self.windows, self.head = nn.Conv1d(64, 64, 3, padding=1), nn.Linear(64, 2)

    def forward(self, words: Any, labels: Any) -> Any:
        x = F.relu(self.windows(self.words(words).transpose(1, 2)))
        return F.cross_entropy(self.head(x.amax(2)), labels)


class CrossAttention(nn.Module):
    """Attention of several heads, of positions to those of another sequence."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.q, self.kv, self.out = nn.Linear(width, width), nn.Linear(width, 2 * width), nn.Linear(width, width)

    def forward(self, x: Any, memory: Any) -> Any:
        b, t, d = x.shape
        q = self.q(x).reshape(b, t, self.heads, d // self.heads).transpose(1, 2)
        k, v = (part.reshape(b, -1, self.heads, d // self.heads).transpose(1, 2) for part in self.kv(memory).chunk(2, 2))
        return self.out(F.scaled_dot_product_attention(q, k, v).transpose(1, 2).reshape(b, t, d))


class TranslatorBlock(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.norms = nn.ModuleList([nn.LayerNorm(width) for _ in range(3)])
        self.within, self.across = Attention(width, 4, True), CrossAttention(width, 4)
        self.feed = nn.Sequential(nn.Linear(width, 3 * width), nn.GELU(), nn.Linear(3 * width, width))

    def forward(self, x: Any, memory: Any) -> Any:
        x = x + self.within(self.norms[0](x))
        x = x + self.across(self.norms[1](x), memory)
        return x + self.feed(self.norms[2](x))


class Translator(nn.Module):
    """A sentence read by an encoder, and another that a decoder foretells word by word while it looks at the first."""

    def __init__(self) -> None:
        super().__init__()
        self.read, self.written = nn.Embedding(2000, 80), nn.Embedding(1500, 80)
        self.encoder, self.decoder = EncoderBlock(80), TranslatorBlock(80)
        self.head = nn.Linear(80, 1500)

    def forward(self, read: Any, words: Any, after: Any) -> Any:
        y = self.decoder(self.written(words), self.encoder(self.read(read)))
        return F.cross_entropy(self.head(y).reshape(-1, 1500), after.reshape(-1))
