"""A framework for distributed deep learning that one person can read.

    import jobflow as flow
    import jobflow.typing as tp

    @flow.global_function(type="train")
    def train_job(images: tp.Numpy.Placeholder((100, 784)), labels: tp.Numpy.Placeholder((100,), dtype=flow.int32)) -> tp.Numpy:
        hidden = flow.layers.dense(images, 512, activation=flow.nn.relu, kernel_initializer=flow.truncated_normal(0.1), name="hidden")
        logits = flow.layers.dense(hidden, 10, kernel_initializer=flow.truncated_normal(0.1), name="output")
        loss = flow.nn.sparse_softmax_cross_entropy_with_logits(labels, logits)
        flow.optimizer.SGD(flow.optimizer.PiecewiseConstantScheduler([], [0.1]), momentum=0).minimize(loss)
        return loss

`__init__.pyi` lists the public names and the modules that define them.  A name is imported at its first use.
"""

from jobflow.runtime import interrupts as _interrupts

_interrupts.install()  # before other imports, which take longer

from jobflow.compat.torch_paths import PATHS as _PATHS  # noqa: E402
from jobflow.core.lazy_imports import attach as _attach  # noqa: E402
from jobflow.core.version import __version__ as __version__  # noqa: E402
from jobflow.runtime.world.environment import launched as _launched  # noqa: E402

__getattr__, __dir__ = _attach(__name__, __file__, {"layout": "jobflow.core.layout", "session": "jobflow.engine.session", **_PATHS})

# A process of a launch with several processes must not exit, or fail, alone.
if _launched() is not None:
    from jobflow.runtime.world.mpi import guard as _guard

    _guard()
