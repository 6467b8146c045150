"""PyTorch's module paths below `jobflow`, so that programs only replace `torch` by `jobflow` in their imports.

    from jobflow.nn.modules.linear import Linear          the names of jobflow.nn.modules
    from jobflow.utils.data.dataloader import DataLoader  the names of jobflow.utils.data

The import hook of `jobflow.core.lazy_imports` reads the table.
"""

from __future__ import annotations

#: one line per module of jobflow: its path, and paths that are aliases of it, all below `jobflow`
_TABLE = """
compat.torch_types         types
distributions              distributions.normal distributions.categorical distributions.bernoulli distributions.beta distributions.dirichlet
distributions              distributions.uniform distributions.laplace distributions.gamma distributions.exponential distributions.kl
distributions              distributions.one_hot_categorical distributions.log_normal distributions.geometric distributions.binomial
distributions              distributions.multinomial distributions.chi2 distributions.multivariate_normal
functional.autograd        autograd.function autograd.functional autograd.gradcheck autograd.grad_mode autograd.variable autograd.anomaly_mode
core.compiler_hints        _dynamo
functional.dlpack          utils.dlpack
functional.hub             utils.model_zoo
functional.cuda            cuda.random cuda.memory cuda.streams
functional.profiling       autograd.profiler profiler.profiler
functional.mps             xpu
nn.amp                     amp.autocast_mode amp.grad_scaler cuda.amp cuda.amp.autocast_mode cuda.amp.grad_scaler
nn.modules                 nn.modules.activation nn.modules.adaptive nn.modules.batchnorm nn.modules.channelshuffle nn.modules.conv
nn.modules                 nn.modules.distance nn.modules.dropout nn.modules.flatten nn.modules.fold nn.modules.instancenorm nn.modules.linear
nn.modules                 nn.modules.loss nn.modules.normalization nn.modules.padding nn.modules.pixelshuffle nn.modules.pooling nn.modules.rnn
nn.modules                 nn.modules.sparse nn.modules.transformer nn.modules.upsampling
nn.swa_utils               optim.swa_utils
nn.parallel                nn.parallel.distributed nn.parallel.data_parallel
nn.utils                   nn.utils.clip_grad nn.utils.convert_parameters
optim                      optim.adadelta optim.adagrad optim.adam optim.adamax optim.adamw optim.asgd optim.lbfgs optim.nadam optim.radam
optim                      optim.rmsprop optim.rprop optim.sgd optim.sparse_adam
utils.data                 utils.data.dataloader utils.data.distributed utils.data._utils
"""

#: alias, below `jobflow` -> module of jobflow
PATHS = {alias: f"jobflow.{module}" for module, *aliases in map(str.split, _TABLE.strip().splitlines()) for alias in aliases}
