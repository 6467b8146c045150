"""Small convolutional nets of the common kinds."""

from __future__ import annotations

from typing import Any

from models.library import F, flow, nn


def unit(inputs: int, outputs: int, kernel: int = 3, stride: int = 1, groups: int = 1, activation: Any = nn.ReLU) -> Any:
    """Convolution, batch norm, activation."""
    convolution = nn.Conv2d(inputs, outputs, kernel, stride, kernel // 2, groups=groups, bias=False)
    return nn.Sequential(convolution, nn.BatchNorm2d(outputs), activation())


class ResidualBlock(nn.Module):
    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.first, self.second = unit(inputs, outputs, 3, stride), unit(outputs, outputs, activation=nn.Identity)
        self.short = unit(inputs, outputs, 1, stride, activation=nn.Identity) if stride > 1 else nn.Identity()

    def forward(self, x: Any) -> Any:
        return F.relu(self.second(self.first(x)) + self.short(x))


class Residual(nn.Module):
    """Residual net with batch norm."""

    def __init__(self) -> None:
        super().__init__()
        sizes = [(16, 16, 1), (16, 32, 2), (32, 32, 1), (32, 64, 2)]
        self.features = nn.Sequential(unit(3, 16), *(ResidualBlock(*size) for size in sizes))
        self.head = nn.Linear(64, 10)

    def forward(self, images: Any, labels: Any) -> Any:
        return F.cross_entropy(self.head(self.features(images).mean((2, 3))), labels)


class InvertedResidual(nn.Module):
    def __init__(self, inputs: int, outputs: int, stride: int, activation: Any) -> None:
        super().__init__()
        wide = 4 * inputs
        narrow = unit(wide, outputs, 1, activation=nn.Identity)
        self.body = nn.Sequential(unit(inputs, wide, 1, activation=activation), unit(wide, wide, 3, stride, wide, activation), narrow)
        self.same_shape = stride == 1 and inputs == outputs

    def forward(self, x: Any) -> Any:
        return x + self.body(x) if self.same_shape else self.body(x)


class Depthwise(nn.Module):
    """Depthwise separable convolutions, as in MobileNet, with ReLU6 and hard swish."""

    def __init__(self) -> None:
        super().__init__()
        sizes = [(16, 16, 1, nn.ReLU6), (16, 24, 2, nn.ReLU6), (24, 24, 1, nn.Hardswish), (24, 40, 2, nn.Hardswish)]
        self.features = nn.Sequential(unit(3, 16, 3, 2, activation=nn.Hardswish), *(InvertedResidual(*size) for size in sizes))
        self.head = nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(40, 10))

    def forward(self, images: Any, labels: Any) -> Any:
        return F.cross_entropy(self.head(self.features(images)), labels)


class UShaped(nn.Module):
    """Segmentation net: down by max pooling, up by bilinear interpolation and by a transposed convolution, joined at each level."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second, self.lowest = unit(3, 12), unit(12, 24), unit(24, 48)
        self.raised = nn.ConvTranspose2d(24, 24, 2, stride=2)
        self.up_second, self.up_first = unit(48 + 24, 24), unit(24 + 12, 12)
        self.head = nn.Conv2d(12, 4, 1)

    def forward(self, images: Any, labels: Any) -> Any:
        first = self.first(images)
        second = self.second(F.max_pool2d(first, 2))
        lowest = self.lowest(F.max_pool2d(second, 2))
        up = F.interpolate(lowest, scale_factor=2, mode="bilinear", align_corners=False)
        up = self.up_second(flow.cat([up, second], 1))
        up = self.up_first(flow.cat([self.raised(up), first], 1))
        scores = self.head(up).permute(0, 2, 3, 1).reshape(-1, 4)
        return F.cross_entropy(scores, labels.reshape(-1))


class Autoencoder(nn.Module):
    """Strided convolutions down, transposed ones up."""

    def __init__(self) -> None:
        super().__init__()
        self.encoder = nn.Sequential(nn.Conv2d(1, 16, 3, 2, 1), nn.ReLU(), nn.Conv2d(16, 32, 3, 2, 1), nn.ReLU(), nn.Flatten(), nn.Linear(1568, 32))
        self.widened = nn.Linear(32, 1568)
        self.decoder = nn.Sequential(nn.ConvTranspose2d(32, 16, 4, 2, 1), nn.ReLU(), nn.ConvTranspose2d(16, 1, 4, 2, 1), nn.Sigmoid())

    def forward(self, images: Any) -> Any:
        code = F.relu(self.widened(self.encoder(images)))
        return F.mse_loss(self.decoder(code.reshape(-1, 32, 7, 7)), images)


class SuperResolution(nn.Module):
    """Convolutions at full size, PReLU, and pixels shuffled from channels."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(1, 24, 5, padding=2), nn.PReLU(), nn.Conv2d(24, 24, 3, padding=1), nn.PReLU(), nn.Conv2d(24, 4, 3, padding=1)
        )
        self.shuffle = nn.PixelShuffle(2)

    def forward(self, images: Any, larger: Any) -> Any:
        return F.l1_loss(self.shuffle(self.body(images)), larger)


class Critic(nn.Module):
    """The discriminator of a GAN: its loss on images and on what the generator makes."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Conv2d(1, 16, 4, 2, 1), nn.LeakyReLU(0.2), nn.Conv2d(16, 32, 4, 2, 1), nn.LeakyReLU(0.2), nn.Flatten())
        self.head = nn.Linear(32 * 7 * 7, 1)

    def forward(self, images: Any) -> Any:
        return self.head(self.layers(images))


class Generator(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.widened = nn.Linear(32, 32 * 7 * 7)
        self.layers = nn.Sequential(
            nn.BatchNorm2d(32),
            nn.ReLU(),
            nn.ConvTranspose2d(32, 16, 4, 2, 1),
            nn.BatchNorm2d(16),
            nn.ReLU(),
            nn.ConvTranspose2d(16, 1, 4, 2, 1),
            nn.Tanh(),
        )

    def forward(self, noise: Any) -> Any:
        return self.layers(self.widened(noise).reshape(-1, 32, 7, 7))


class Pair(nn.Module):
    """A generator and its critic; each has a loss, and an optimizer, of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.generator, self.critic = Generator(), Critic()

    def judging(self, images: Any, noise: Any) -> Any:
        """Return the loss of the critic."""
        real, generated = self.critic(images), self.critic(self.generator(noise).detach())
        return F.softplus(-real).mean() + F.softplus(generated).mean()

    def making(self, images: Any, noise: Any) -> Any:
        """Return the loss of the generator."""
        return F.softplus(-self.critic(self.generator(noise))).mean()


class Joined(nn.Module):
    """Densely connected layers (DenseNet) with group norms, and gates by channel (squeeze and excitation)."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Conv2d(3, 16, 3, padding=1)
        self.norms = nn.ModuleList([nn.GroupNorm(4, 16 + 12 * i) for i in range(4)])
        self.layers = nn.ModuleList([nn.Conv2d(16 + 12 * i, 12, 3, padding=1) for i in range(4)])
        self.narrow, self.last = nn.Conv2d(64, 32, 1), nn.Conv2d(32, 48, 3, padding=1)
        self.squeeze, self.excite, self.head = nn.Linear(48, 12), nn.Linear(12, 48), nn.Linear(48, 10)

    def forward(self, images: Any, labels: Any) -> Any:
        x = self.first(images)
        for norm, layer in zip(self.norms, self.layers, strict=True):
            x = flow.cat([x, layer(F.silu(norm(x)))], 1)
        x = F.silu(self.last(F.avg_pool2d(self.narrow(x), 2)))
        gates = flow.sigmoid(self.excite(F.relu(self.squeeze(x.mean((2, 3))))))
        return F.cross_entropy(self.head((x * gates.unsqueeze(2).unsqueeze(3)).amax((2, 3))), labels)
