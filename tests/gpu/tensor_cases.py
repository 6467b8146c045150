"""Cases of the tensor API on a device: each returns tensors, whose values must not depend on the device.

A case is a function of a device, such as "cuda".  `LAUNCHES` are cases of a single operation, which needs one kernel on a GPU.
"""

from __future__ import annotations

import copy
import io
import pickle
from collections.abc import Callable
from typing import Any

import numpy as np

import jobflow as flow
import jobflow.nn.functional as F
from jobflow import nn

Case = Callable[[str], Any]
#: by name
CASES: dict[str, Case] = {}
#: an operation of tensors, by name -> its tensors on a device, and a function of them
LAUNCHES: dict[str, tuple[Callable[[str], tuple[Any, ...]], Callable[..., Any]]] = {}


def case(function: Case) -> Case:
    CASES[function.__name__] = function
    return function


def data(*shape: int, seed: int = 0) -> Any:
    return np.random.default_rng(seed).uniform(0.2, 1.8, shape).astype(np.float32)


def on(device: str, *shapes: tuple[int, ...], grad: bool = False) -> tuple[Any, ...]:
    """Return tensors of positive numbers."""
    return tuple(flow.tensor(data(*shape, seed=k), device=device, requires_grad=grad) for k, shape in enumerate(shapes))


# -------------------------------------------------------------------- creation


@case
def creation(device: str) -> Any:
    flow.manual_seed(3)
    filled = [flow.zeros(2, 3, device=device), flow.ones(4, device=device), flow.full((2, 2), 7, device=device), flow.empty(0, 3, device=device)]
    ranges = [flow.arange(5, device=device), flow.linspace(0, 1, 5, device=device), flow.eye(3, device=device), flow.logspace(0, 2, 3, device=device)]
    random = [flow.rand(3, 2, device=device), flow.randn(5, device=device), flow.randint(0, 9, (4,), device=device), flow.randperm(6, device=device)]
    passed = [flow.tensor([[1, 2], [3, 4]], device=device), flow.tensor(2.5, device=device), flow.as_tensor(data(2, 2), device=device)]
    return [*filled, *ranges, *random, *passed]


@case
def creation_like(device: str) -> Any:
    flow.manual_seed(3)
    (x,) = on(device, (2, 3))
    like = [flow.zeros_like(x), flow.ones_like(x), flow.full_like(x, 3), flow.rand_like(x), x.new_zeros(4), x.new_tensor([1.0, 2.0]), flow.tensor(x)]
    return [*like, x.clone(), x.detach(), x.to(flow.float64), x.half(), x.bfloat16(), x.int()]


# -------------------------------------------------------------------- functions


@case
def arithmetic(device: str) -> Any:
    x, y = on(device, (3, 4), (3, 4))
    return [x + y, x - 2, 3 / x, x * y, x // 2, x % y, x**2, -x, abs(x), x @ y.T, x > y, x == x, (x > 1) & (y > 1), flow.where(x > y, x, y)]


@case
def elementary_functions(device: str) -> Any:
    (x,) = on(device, (3, 5))
    return [getattr(flow, name)(x) for name in ("exp", "log", "sqrt", "sin", "cos", "tanh", "sigmoid", "floor", "sign", "square", "rsqrt", "erf")]


@case
def reductions(device: str) -> Any:
    (x,) = on(device, (3, 4, 5))
    sums = [x.sum(), x.sum(1), x.mean((0, 2)), x.max(), x.min(2)[0], x.prod(0), x.std(), x.var(1), x.norm(), x.argmax(1), x.any(), (x > 0).all()]
    return [*sums, x.cumsum(1), x.sort(1)[0], x.topk(2, 2)[0], x.amax(0), flow.logsumexp(x, 1)]


@case
def shapes_and_views(device: str) -> Any:
    (x,) = on(device, (2, 3, 4))
    views = [x.reshape(6, 4), x.view(-1), x.transpose(0, 1), x.permute(2, 0, 1), x[0], x[:, 1:, ::2], x.unsqueeze(1), x.flatten(1), x.expand(2, 3, 4)]
    joined = [flow.cat([x, x]), flow.stack([x, x], 1), *x.split(2, 2), *x.chunk(3, 1), x.repeat(1, 2, 1), x.flip(0), x.roll(1, 1), x.tril(), x.T]
    return [*views, *joined, x.transpose(0, 1).reshape(-1)]


@case
def indexing(device: str) -> Any:
    (x,) = on(device, (4, 5))
    rows = flow.tensor([3, 0, -1], device=device)
    read = [x[rows], x[x > 1], x[[0, 2]], x[1, 3], x[..., None], x.index_select(1, rows.abs()), x.gather(1, rows.abs().reshape(1, 3))]
    chosen = [flow.nonzero(x > 1), x.masked_fill(x > 1, 0.0), flow.take(x, rows.abs()), x.masked_select(x < 1)]
    y = x.clone()
    y[1] = 0
    y[:, 2] = flow.ones(4, device=device)
    y[rows.abs(), 0] = 5.0
    return [*read, *chosen, y, x.scatter(1, rows.abs().reshape(3, 1), 9.0)]


@case
def in_place(device: str) -> Any:
    x, y = on(device, (3, 4), (3, 4))
    x.add_(y).mul_(2)
    x += 1
    x[0].zero_()
    x[1].copy_(y[0])
    y.clamp_(0.5, 1.0)
    y.fill_(3)
    z = flow.zeros(2, 2, device=device)
    z.copy_(np.ones((2, 2), np.float32))
    return [x, y, z]


@case
def scalars_of_the_host(device: str) -> Any:
    """Combine tensors on a GPU with numbers, and with tensors of one element on the host."""
    (x,) = on(device, (3,))
    return [x + flow.tensor(2.0), flow.tensor(3.0) * x, x + np.float32(1), flow.maximum(x, flow.tensor(1.0)), x.clamp(max=1.0)]


@case
def host_values(device: str) -> Any:
    x = flow.tensor([[1.5, 2.5]], device=device)
    assert x.tolist() == [[1.5, 2.5]] and x.sum().item() == 4 and float(x[0, 0]) == 1.5 and len(x) == 1 and bool((x > 1).all())
    assert isinstance(x.numpy(), np.ndarray) and np.asarray(x).sum() == 4 and int(flow.tensor(3, device=device)) == 3
    assert "1.5000, 2.5000" in repr(x) and f"{x.sum():.1f}" == "4.0"
    return [x]


@case
def losses(device: str) -> Any:
    x, y = on(device, (4, 3), (4, 3))
    labels = flow.tensor([0, 2, 1, 1], device=device)
    return [
        F.cross_entropy(x, labels),
        F.mse_loss(x, y),
        F.l1_loss(x, y),
        F.nll_loss(F.log_softmax(x, 1), labels),
        F.binary_cross_entropy_with_logits(x, y),
    ]


@case
def functions_of_layers(device: str) -> Any:
    (x,) = on(device, (2, 3, 8, 8))
    (w,) = on(device, (4, 3, 3, 3))
    flow.manual_seed(1)
    pooled = [F.max_pool2d(x, 2), F.avg_pool2d(x, 2), F.adaptive_avg_pool2d(x, 1), F.pad(x, (1, 1)), F.interpolate(x, scale_factor=2)]
    normed = [F.layer_norm(x, (8,)), F.group_norm(x, 3), F.softmax(x, 1), F.gelu(x), F.relu(x), F.silu(x), F.dropout(x, 0.5), F.normalize(x)]
    return [F.conv2d(x, w, padding=1), *pooled, *normed, F.one_hot(flow.tensor([0, 2], device=device), 3), flow.einsum("nchw,nchw->nc", x, x)]


@case
def noise(device: str) -> Any:
    flow.manual_seed(2)
    (x,) = on(device, (4, 6), grad=True)
    samples = [F.gumbel_softmax(x), F.gumbel_softmax(x, hard=True), F.rrelu(-x, training=True), F.alpha_dropout(x, 0.5, training=True)]
    samples += [F.rrelu(-x.detach(), training=True, inplace=True), nn.RReLU()(-x), F.feature_alpha_dropout(x, 0.5, training=True)]
    sum((y * y).sum() for y in samples).backward()
    return [*(y.detach() for y in samples), x.grad]


@case
def packed_sequences(device: str) -> Any:
    """Compute recurrent layers of sorted and unsorted sequences; their indices are on the device of the data."""
    flow.manual_seed(4)
    (x,) = on(device, (4, 3, 5), grad=True)
    results = []
    for module in (nn.LSTM(5, 4, proj_size=2), nn.GRU(5, 4, bidirectional=True)):
        layer = module.to(device)
        for lengths, ordered in (([4, 2, 1], True), (flow.tensor([1, 4, 3]), False)):
            packed = nn.utils.rnn.pack_padded_sequence(x, lengths, enforce_sorted=ordered)
            start = on(device, *[(1, 3, layer.proj_size or 4), (1, 3, 4)]) if isinstance(layer, nn.LSTM) else None
            y, final = layer(packed, start)
            back, lengths_again = nn.utils.rnn.pad_packed_sequence(y)
            results += [back, lengths_again.to(device), *(final if isinstance(final, tuple) else (final,))]
            if not ordered:
                assert str(y.sorted_indices.device) == str(y.unsorted_indices.device) == str(x.device) and y.batch_sizes.device.type == "cpu"
                assert not y.cpu().sorted_indices.is_cuda and nn.utils.rnn.unpack_sequence(y)[1].device == x.device
    sum(y.sum() for y in results if y.requires_grad).backward()
    return [*(y.detach() for y in results), x.grad]


@case
def initial_values(device: str) -> Any:
    flow.manual_seed(8)
    names = ("orthogonal_", "sparse_", "eye_", "xavier_uniform_", "kaiming_normal_", "trunc_normal_", "zeros_")
    filled = [getattr(nn.init, name)(flow.empty(4, 3, device=device), *([0.5] if name == "sparse_" else [])) for name in names]
    return [*filled, nn.init.dirac_(flow.empty(3, 3, 2, device=device))]


@case
def normalized_weights(device: str) -> Any:
    flow.manual_seed(9)
    layers = [nn.Linear(4, 3).to(device) for _ in range(3)]
    parametrizations = (nn.utils.parametrizations.spectral_norm, nn.utils.spectral_norm, nn.utils.parametrizations.weight_norm)
    (x,) = on(device, (2, 4))
    return [normalize(layer)(x).detach() for normalize, layer in zip(parametrizations, layers, strict=True)]


@case
def lazy_modules(device: str) -> Any:
    flow.manual_seed(6)
    model = nn.Sequential(nn.LazyConv2d(4, 3), nn.LazyBatchNorm2d(), nn.Flatten(), nn.LazyLinear(2)).to(device)
    y = model(on(device, (2, 3, 6, 6))[0])
    y.sum().backward()
    return [y.detach(), *(p.detach() for p in model.parameters()), *model.buffers(), model[0].weight.grad]


# -------------------------------------------------------------------- gradients


@case
def differences(device: str) -> Any:
    x = flow.tensor(data(2, 3).astype(np.float64), device=device, requires_grad=True)
    assert flow.autograd.gradcheck(lambda x: (x * x).tanh(), (x,)) and flow.autograd.gradgradcheck(lambda x: x**3, (x,), fast_mode=True)
    return [x.detach()]


@case
def gradients(device: str) -> Any:
    x, w = on(device, (4, 3), (3, 2), grad=True)
    loss = ((x @ w).tanh() * 2 + x.sum(1, keepdim=True)).pow(2).mean()
    loss.backward()
    ((x * x).sum() + x[1].exp().sum()).backward()
    return [loss.detach(), x.grad, w.grad]


@case
def gradients_of_gradients(device: str) -> Any:
    (x,) = on(device, (3,), grad=True)
    (first,) = flow.autograd.grad((x**3).sum(), [x], create_graph=True)
    first.sum().backward()
    return [first.detach(), x.grad]


@case
def gradients_through_devices(device: str) -> Any:
    """Compute gradients of a leaf on the host, on the host."""
    x = flow.tensor(data(3), requires_grad=True)
    y = (x.to(device) * 2).sum()
    y.backward()
    assert x.grad.device.type == "cpu" and y.device.type == flow.device(device).type
    z = (x.to(device).exp().cpu() * 3).sum()
    z.backward()
    assert z.device.type == "cpu"
    return [x.grad.to(device)]


@case
def functions_of_the_user(device: str) -> Any:
    class Cube(flow.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Any) -> Any:
            ctx.save_for_backward(x)
            return x * x * x

        @staticmethod
        def backward(ctx: Any, gradient: Any) -> Any:
            (x,) = ctx.saved_tensors
            return gradient * 3 * x * x

    (x,) = on(device, (3,), grad=True)
    x.register_hook(lambda gradient: gradient * 2)
    Cube.apply(x).sum().backward()
    return [x.grad]


@case
def clipping(device: str) -> Any:
    x, y = on(device, (3,), (2, 2), grad=True)
    ((x * 5).sum() + (y * y).sum()).backward()
    norm = nn.utils.clip_grad_norm_([x, y], 1.0)
    nn.utils.clip_grad_value_([y], 0.1)
    return [norm, x.grad, y.grad]


# -------------------------------------------------------------------- modules and optimizers


def network() -> Any:
    flow.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.LayerNorm(8), nn.Linear(8, 3))


def attended(q: Any, k: Any, v: Any, **options: Any) -> Any:
    """Return attention, and the gradients of a weighted sum."""
    y = F.scaled_dot_product_attention(q, k, v, **options)
    weights = flow.tensor(np.random.default_rng(8).choice([-1.0, 2.0], tuple(y.shape)).astype(np.float32), device=y.device)
    return [y.detach(), *flow.autograd.grad((y.float() * weights).sum(), (q, k, v))]


@case
def attention_of_tensors(device: str) -> Any:
    flow.manual_seed(5)
    q, k, v = on(device, (2, 4, 5, 8), (2, 2, 7, 8), (2, 2, 7, 8), grad=True)
    mask = flow.tensor(data(5, 7) > 0.7, device=device)
    results = attended(q, k, v, enable_gqa=True) + attended(q, k, v, enable_gqa=True, attn_mask=mask, dropout_p=0.25)
    half = [x.detach().bfloat16().requires_grad_() for x in (q, q, q)]
    y, _, _, dv = attended(*half, is_causal=True)  # in half precision, differences of rounded products make up the other gradients
    return [*results, y, dv]


@case
def modules(device: str) -> Any:
    flow.manual_seed(0)
    images = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(36, 2)).to(device)
    words = nn.Sequential(nn.Embedding(10, 6, padding_idx=0)).to(device)
    attention = nn.MultiheadAttention(6, 2, batch_first=True).to(device)
    recurrent = nn.LSTM(6, 5, batch_first=True).to(device)
    tokens = words(flow.tensor([[1, 2, 0], [4, 9, 3]], device=device))
    x = on(device, (2, 3, 8, 8))[0]
    results = [images(x), tokens, attention(tokens, tokens, tokens)[0], recurrent(tokens)[0]]
    sum(y.sum() for y in results).backward()
    return [*(y.detach() for y in results), images[0].weight.grad, images[1].running_mean, words[0].weight.grad, recurrent.weight_ih_l0.grad]


def trained(device: str, optimizer: Callable[[Any], Any], steps: int = 3) -> Any:
    model = network().to(device)
    opt = optimizer(model.parameters())
    (x,) = on(device, (5, 4))
    labels = flow.tensor([0, 1, 2, 1, 0], device=device)
    losses = []
    for _ in range(steps):
        loss = F.cross_entropy(model(x), labels)
        opt.zero_grad()
        loss.backward()
        opt.step()
        losses.append(loss.detach())
    return [flow.stack(losses), *(p.detach() for p in model.parameters())]


@case
def optimizers(device: str) -> Any:
    optim = flow.optim
    return [
        *trained(device, lambda p: optim.SGD(p, lr=0.1, momentum=0.9)),
        *trained(device, lambda p: optim.AdamW(p, lr=0.01)),
        *trained(device, lambda p: optim.RMSprop(p, lr=0.01)),
        *trained(device, lambda p: optim.LAMB(p, lr=0.01)),
    ]


@case
def states(device: str) -> Any:
    """Save and load modules, optimizers and tensors in both directions."""
    model, other = network().to(device), network()
    with flow.no_grad():
        for p in model.parameters():
            p.mul_(1.5)
    other.load_state_dict(model.state_dict())
    back = network().to(device)
    back.load_state_dict(other.state_dict())
    file = io.BytesIO(pickle.dumps(dict(model.state_dict().items())))
    loaded = pickle.loads(file.getvalue())
    deep = copy.deepcopy(model)
    opt = flow.optim.Adam(model.parameters(), lr=0.1)
    model(on(device, (2, 4))[0]).sum().backward()
    opt.step()
    again = flow.optim.Adam(back.parameters(), lr=0.1)
    again.load_state_dict(opt.state_dict())
    slots = [again.state[p]["exp_avg"] for p in back.parameters()]
    assert all(p.device.type == "cpu" for p in other.parameters())
    return [*back.state_dict().values(), *loaded.values(), *(p.detach() for p in deep.parameters()), *slots]


class Trained(nn.Graph):
    def __init__(self, model: Any) -> None:
        super().__init__()
        self.model = model
        self.add_optimizer(flow.optim.SGD(model.parameters(), lr=0.1, momentum=0.9))

    def build(self, x: Any, labels: Any) -> Any:
        loss = F.cross_entropy(self.model(x), labels)
        loss.backward()
        return loss


@case
def graphs(device: str) -> Any:
    model = network().to(device)
    graph = Trained(model)
    (x,) = on(device, (5, 4))
    labels = flow.tensor([0, 1, 2, 1, 0], device=device)
    losses = [graph(x, labels) for _ in range(3)]
    with flow.no_grad():
        model[0].bias.add_(1.0)
    losses.append(graph(x, labels))
    return [*losses, *(p.detach() for p in model.parameters()), *(x for x in graph.state_dict()["model"].values())]


@case
def autocast(device: str) -> Any:
    x, w = on(device, (4, 8), (8, 3), grad=True)
    with flow.autocast(device, dtype=flow.bfloat16):
        y = x @ w
        loss = y.square().mean()
    loss.backward()
    assert y.dtype is flow.bfloat16
    return [y.detach(), x.grad, w.grad]


# -------------------------------------------------------------------- global tensors


@case
def global_tensors(device: str) -> Any:
    P, host = flow.placement(device, [0]), flow.placement("cpu", [0])
    x = flow.tensor(data(4, 3), placement=P, sbp=flow.sbp.split(0))
    y = flow.ones(4, 3, placement=P, sbp=flow.sbp.broadcast)
    w = flow.tensor(data(3, 2), placement=P, sbp=flow.sbp.broadcast).requires_grad_()
    z = ((x + y) @ w).sum()
    z.backward()
    moved = [
        x.to_global(host, flow.sbp.broadcast),
        x.to("cpu"),
        x.to_global(sbp=flow.sbp.split(1)),
        x.to_local(),
        flow.tensor(data(4, 3)).to_global(P, flow.sbp.split(0)),
    ]
    assert [each.placement.type for each in moved[:2]] == ["cpu", "cpu"] and x.is_cuda == (device == "cuda")
    back = moved[0].to_global(P, flow.sbp.split(0)) * 2
    return [z.detach(), w.grad, back, x, *(each.to(device) if each.is_global else each for each in moved)]


@case
def global_modules(device: str) -> Any:
    P = flow.placement(device, [0])
    model = network().to_global(P, flow.sbp.broadcast)
    opt = flow.optim.Adam(model.parameters(), lr=0.1)
    x = flow.tensor(data(5, 4), placement=P, sbp=flow.sbp.split(0))
    loss = model(x).square().mean()
    loss.backward()
    opt.step()
    graph = Trained(network().to_global(P, flow.sbp.broadcast))
    labels = flow.tensor([0, 1, 2, 1, 0], placement=P, sbp=flow.sbp.split(0))
    return [loss.detach(), *(p.detach() for p in model.parameters()), graph(x, labels), graph(x, labels)]


# -------------------------------------------------------------------- single operations


def launch(name: str, function: Callable[..., Any], *shapes: tuple[int, ...]) -> None:
    LAUNCHES[name] = (lambda device: on(device, *shapes)), function


launch("add", lambda x, y: x + y, (64, 32), (64, 32))
launch("add a number", lambda x: x + 2.0, (64, 32))
launch("broadcast multiply", lambda x, y: x * y, (64, 32), (32,))
launch("exp", lambda x: x.exp(), (64, 32))
launch("where", lambda x, y: flow.where(x > 1, x, y), (64, 32), (64, 32))
launch("cast", lambda x: x.half(), (64, 32))
launch("clone", lambda x: x.clone(), (64, 32))
launch("sum", lambda x: x.sum(), (64, 32))
launch("sum of rows", lambda x: x.sum(1), (64, 32))
launch("sum of columns", lambda x: x.sum(0), (64, 32))
launch("mean", lambda x: x.mean(), (64, 32))
launch("softmax", lambda x: F.softmax(x, 1), (64, 32))
launch("layer norm", lambda x: F.layer_norm(x, (32,)), (64, 32))
launch("gelu", lambda x: F.gelu(x), (64, 32))
launch("attention", lambda q, k, v: F.scaled_dot_product_attention(q, k, v, is_causal=True), *[(2, 4, 64, 32)] * 3)
launch("product", lambda x, y: x @ y, (64, 32), (32, 16))
launch("batched product", lambda x, y: x @ y, (4, 64, 32), (4, 32, 16))
launch("linear", lambda x, w, b: F.linear(x, w, b), (64, 32), (16, 32), (16,))
launch("transpose", lambda x: x.T, (64, 32))
launch("reshape of a transpose", lambda x: x.T.reshape(-1), (64, 32))
launch("slice", lambda x: x[:, 4:20], (64, 32))
launch("concatenate", lambda x, y: flow.cat([x, y]), (64, 32), (64, 32))
launch("add in place", lambda x, y: x.add_(y), (64, 32), (64, 32))
launch("fill in place", lambda x: x.fill_(1.0), (64, 32))
launch("gather", lambda x: x[flow.tensor([3, 1, -1], device=x.device)], (64, 32))
launch("cross entropy", lambda x: F.cross_entropy(x, flow.zeros(64, dtype=flow.int64, device=x.device)), (64, 32))
launch("zeros", lambda x: flow.zeros_like(x), (64, 32))
launch("uniform numbers", lambda x: flow.rand_like(x), (64, 32))
