"""Rows as in `shaped_calls` of modules with parameters, of random functions, and of methods that write into their tensor.

Modules have one initial value in every layout, and random functions follow a call of `manual_seed`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import shaped_calls
from shaped_calls import ELEMENTWISE, F, Row, of

import jobflow as flow

nn, prune = flow.nn, flow.nn.utils.prune
parametrizations = flow.nn.utils.parametrizations


def like(x: Any, tensor: Any) -> Any:
    """Return a local tensor on the placement of x."""
    return tensor.to_global(placement=x.placement, sbp=[flow.sbp.broadcast] * len(x.sbp)) if x.is_global else tensor


def seeded(name: str, tensors: str, function: Callable[..., Any]) -> Row:
    def call(*x: Any) -> Any:
        flow.manual_seed(3)
        return function(*x)

    return of(name, tensors, call)


def module(name: str, tensors: str, make: Callable[[], Any], call: Callable[..., Any] = lambda m, *x: m(*x), train: bool = True) -> Row:
    """Return the row of `call(module, *tensors)`, with the parameters on the placement of the first tensor."""

    def run(*x: Any) -> Any:
        flow.manual_seed(5)
        created = make().double().train(train)
        if x[0].is_global:
            created.to_global(placement=x[0].placement, sbp=[flow.sbp.broadcast] * len(x[0].sbp))
        flow.manual_seed(6)
        return call(created, *x)

    return of(name, tensors, run)


def changed(name: str, tensors: str, *more: Any, **options: Any) -> Row:
    """Return the row of a method that writes into a copy of the first tensor."""

    def call(x: Any, *others: Any) -> Any:
        copy = x.clone()
        result = getattr(copy, name)(*others, *more, **options)
        assert result is copy
        return copy

    return of(name, tensors, call)


def _of_tables() -> list[Row]:
    """Return the in-place methods of the rows whose result has the shape of the first tensor."""
    rows = []
    for each in ELEMENTWISE:
        name = each.name.split()[0].rpartition(".")[2]
        first = each.tensors[0][1]
        if (
            each.more is not None
            and hasattr(flow.Tensor, f"{name}_")
            and len(first) == max(len(axes) for _, axes in each.tensors)
            and "1" not in first
        ):

            def call(x: Any, *others: Any, method: str = f"{name}_", more: Any = each.more) -> Any:
                copy = x.clone()
                return getattr(copy, method)(*others, *more), copy

            rows.append(Row(f"{name}_ {each.name}", call, each.tensors, each.scale))
    return rows


_COMPARED = ("logical_and_", "logical_or_", "logical_xor_", "eq_", "ne_", "lt_", "le_", "gt_", "ge_", "less_", "greater_", "not_equal_")
IN_PLACE = (
    *_of_tables(),
    *(changed(name, tensors) for name in (*_COMPARED, "greater_equal_", "less_equal_") for tensors in ("z:ab z:b", "i:ab i:b")),
    changed("logical_not_", "z:ab"),
    changed("bitwise_not_", "i:ab"),
    *(changed(name, "i:ab k:b") for name in ("bitwise_left_shift_", "bitwise_right_shift_", "gcd_", "lcm_")),
    changed("addbmm_", "x:ab x:cad x:cdb"),
    changed("addmv_", "x:a x:ab x:b", beta=2),
    changed("addr_", "x:ab x:a x:b"),
    changed("polygamma_", "p:ab", 1),
    of("mvlgamma_", "p:ab", lambda x: (x + 3).mvlgamma_(2)),
    of("index_copy_", "x:3b @3:1 x:1b", lambda x, i, v: x.clone().index_copy_(0, i, v)),
    of("index_put_", "x:ab @a:c x:cb", lambda x, i, v: x.clone().index_put_((i,), v, True)),
    of("index_reduce_", "x:ab @a:c x:cb", lambda x, i, v: x.clone().index_reduce_(0, i, v, "mean")),
    of("scatter_reduce_", "x:ab @a:cb x:cb", lambda x, i, v: x.clone().scatter_reduce_(0, i, v, "amax")),
    changed("masked_scatter_", "x:ab b:ab x:cab"),
    of("t_ and mul_", "x:ab", lambda x: x.clone().t_().mul_(2)),
    of("unsqueeze_ and add_", "x:ab x:b", lambda x, v: x.clone().unsqueeze_(1).add_(v)),
    of("put_", "x:ab @a:c x:c", lambda x, i, v: x.clone().put_(i, v, True)),
    changed("renorm_", "x:ab", 2, 1, 0.5),
    of("map_", "n:ab z:ab", lambda x, y: x.clone().map_(y, lambda a, b: a - b)),
    of("apply_", "n:ab", lambda x: x.clone().apply_(lambda v: v + 1)),
)
SPARSE = (
    of("sparse + sparse", "z:ab z:ab", lambda a, b: (a.to_sparse() + b.to_sparse() * 2).to_dense()),
    of("sparse - sparse", "z:ab z:ab", lambda a, b: (a.to_sparse() - b.to_sparse()).to_dense()),
    of("to_sparse", "z:ab", lambda x: (x.to_sparse().to_dense(), x.to_sparse().values(), flow.sparse.sum(x.to_sparse()))),
    of("to_sparse_csr", "z:ab", lambda x: x.to_sparse_csr().to_dense()),
    of("sparse.mm", "z:ab x:bc", lambda a, x: flow.sparse.mm(a.to_sparse(), x)),
    of("sparse.addmm", "z:ab x:bc x:ac", lambda a, x, y: flow.sparse.addmm(y, a.to_sparse(), x, beta=2)),
    of("sparse_coo_tensor", "x:6 x:ab", lambda v, x: flow.sparse.mm(flow.sparse_coo_tensor([[0, 1, 2, 2, 0, 1], [0] * 6], v, (3, len(x))), x)),
)
RANDOM = (
    seeded("F.gumbel_softmax", "x:abc", lambda x: F.gumbel_softmax(x, 0.7, dim=1)),
    seeded("F.gumbel_softmax hard", "x:ab", lambda x: F.gumbel_softmax(x, hard=True)),
    seeded("F.rrelu", "x:ab", lambda x: F.rrelu(x, training=True)),
    seeded("F.rrelu_", "x:ab", lambda x: F.rrelu_(x.clone(), 0.2, 0.4, True)),
    of("RReLU", "x:ab", lambda x: nn.RReLU().eval()(x)),
    seeded("F.alpha_dropout", "x:abc", lambda x: F.alpha_dropout(x, 0.4, True)),
    seeded("F.feature_alpha_dropout", "x:abc", lambda x: F.feature_alpha_dropout(x, 0.4, True)),
    seeded("cauchy_", "n:ab", lambda x: x.clone().cauchy_(1, 2)),
    seeded("exponential_", "n:ab", lambda x: x.clone().exponential_(2)),
    seeded("geometric_", "n:ab", lambda x: x.clone().geometric_(0.3)),
    seeded("log_normal_", "n:ab", lambda x: x.clone().log_normal_(0, 1)),
)


def _after(change: Callable[[Any], Any]) -> Callable[..., Any]:
    """Return the call of a module that `change` changes on its placement."""
    return lambda m, x: change(m)(x)


_PRUNED: Mapping[str, Callable[[Any], Any]] = {
    "l1_unstructured": lambda m: prune.l1_unstructured(m, "weight", 0.4),
    "ln_structured": lambda m: prune.ln_structured(m, "weight", 0.4, 2, 0),
    "random_unstructured": lambda m: prune.random_unstructured(m, "weight", 3),
    "random_structured": lambda m: prune.random_structured(m, "weight", 1, 1),
}


def _linear() -> Any:
    return nn.Linear(4, 3)


LAZY = (
    module("LazyLinear", "x:abc", lambda: nn.LazyLinear(3)),
    module("LazyConv2d", "x:ad56", lambda: nn.LazyConv2d(3, 2)),
    module("LazyConvTranspose1d", "x:ad5", lambda: nn.LazyConvTranspose1d(3, 2)),
    module("LazyBatchNorm1d", "x:adc", lambda: nn.LazyBatchNorm1d()),
    module("LazyInstanceNorm2d", "x:ad56", lambda: nn.LazyInstanceNorm2d(affine=True)),
)
MODULES = (
    *(module(f"{name} before", "x:a4", lambda c=change: c(_linear())) for name, change in _PRUNED.items()),
    *(module(f"{name} after", "x:a4", _linear, _after(change)) for name, change in _PRUNED.items()),
    module("orthogonal", "x:a4", lambda: parametrizations.orthogonal(_linear())),
    module("orthogonal after", "x:a4", _linear, _after(parametrizations.orthogonal)),
    module("orthogonal householder", "x:a3", lambda: parametrizations.orthogonal(nn.Linear(3, 4), orthogonal_map="householder")),
    module("spectral_norm", "x:ad56", lambda: parametrizations.spectral_norm(nn.Conv2d(2, 3, 2))),
    module("spectral_norm after", "x:a4", _linear, _after(parametrizations.spectral_norm)),
    module("utils.spectral_norm after", "x:a4", _linear, _after(nn.utils.spectral_norm)),
    module("weight_norm after", "x:a4", _linear, _after(nn.utils.weight_norm)),
    module("remove_weight_norm", "x:a4", lambda: nn.utils.weight_norm(_linear()), _after(nn.utils.remove_weight_norm)),
    module(
        "fuse_conv_bn_eval",
        "x:ad56",
        lambda: nn.Sequential(nn.Conv2d(2, 3, 2), nn.BatchNorm2d(3)),
        lambda m, x: nn.utils.fuse_conv_bn_eval(*m)(x),
        False,
    ),
    module(
        "fuse_linear_bn_eval", "x:a4", lambda: nn.Sequential(_linear(), nn.BatchNorm1d(3)), lambda m, x: nn.utils.fuse_linear_bn_eval(*m)(x), False
    ),
    module("SyncBatchNorm", "x:ad5", lambda: nn.SyncBatchNorm.convert_sync_batchnorm(nn.BatchNorm1d(2))),
    module(
        "AdaptiveLogSoftmaxWithLoss",
        "x:a8 @9:a",
        lambda: nn.AdaptiveLogSoftmaxWithLoss(8, 9, [2, 5], 2.0),
        lambda m, x, t: (*m(x, t), m.log_prob(x), m.predict(x)),
    ),
    module("MultiheadAttention", "x:ab4 x:ac2 x:ac2", lambda: nn.MultiheadAttention(4, 2, kdim=2, vdim=2, add_bias_kv=True, batch_first=True)),
    module("TransformerDecoderLayer", "x:ab4 x:ac4", lambda: nn.TransformerDecoderLayer(4, 2, 6, 0.2, batch_first=True)),
    *(module(name, "x:5ad", lambda n=name: getattr(nn, n)(2, 3, num_layers=2, bidirectional=True, dropout=0.3)) for name in ("RNN", "LSTM", "GRU")),
    *(module(f"{name}Cell", "x:ad", lambda n=name: getattr(nn, f"{n}Cell")(2, 3)) for name in ("RNN", "LSTM", "GRU")),
    module("EmbeddingBag", "@9:ab", lambda: nn.EmbeddingBag(9, 4, mode="mean", padding_idx=2)),
    of("unpad_sequence", "x:6cb", lambda x: nn.utils.rnn.unpad_sequence(x, like(x, flow.arange(x.shape[1]) % 6 + 1))),
    of("NLLLoss2d", "x:ad34 @2:a34", lambda x, t: nn.NLLLoss2d()(x, t)),
    *(
        of(name, tensors, partial(lambda make, x: make()(x), make))
        for name, tensors, make in (
            ("CircularPad1d", "x:ad7", lambda: nn.CircularPad1d((2, 1))),
            ("ReplicationPad3d", "x:ad765", lambda: nn.ReplicationPad3d(1)),
            ("ZeroPad3d", "x:ad765", lambda: nn.ZeroPad3d((1, 0, 2, 0, 0, 1))),
        )
    ),
)
#: tables for the default suite, and tables for --full
CHEAP: Mapping[str, tuple[Row, ...]] = {"sparse": SPARSE, "random": RANDOM, "lazy": LAZY}
TABLES: Mapping[str, tuple[Row, ...]] = {**shaped_calls.TABLES, **CHEAP, "in place": IN_PLACE, "modules": MODULES}
