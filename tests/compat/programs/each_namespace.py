"""Small programs in the documented style of each namespace, one after another; each prints its name when it has what it expects."""

import os
import tempfile
from typing import Tuple

import numpy as np
import oneflow as flow
import oneflow.core.job.job_set_pb2 as job_set_pb  # noqa: F401
import oneflow.core.operator.op_conf_pb2 as op_conf_util
import oneflow.layers as layers
import oneflow.optimizer
import oneflow.python.framework.id_util as id_util
import oneflow.typing as tp
from oneflow.python.ops.array_ops import ones_like
from oneflow_onnx.oneflow2onnx.util import convert_to_onnx_and_check

X = np.arange(12, dtype=np.float32).reshape(4, 3)
PROGRAMS = []


def program(function):
    PROGRAMS.append(function)
    return function


def rate(lr=0.1):
    return flow.optimizer.PiecewiseConstantScheduler([], [lr])


@program
def old_configuration():
    config = flow.FunctionConfig()
    config.default_data_type(flow.float)
    config.default_distribute_strategy(flow.scope.consistent_view())
    config.train.primary_lr(0.1)
    config.train.model_update_conf(dict(momentum_conf={"beta": 0.9}))

    @flow.global_function(config)
    def job(x=flow.FixedTensorDef((4, 3), dtype=flow.float)):
        y = flow.layers.dense(x, 1, kernel_initializer=flow.ones_initializer(), name="dense")
        loss = flow.math.reduce_mean(y)
        flow.losses.add_loss(loss)
        return loss

    np.testing.assert_allclose([job(X).get().ndarray().item() for _ in range(2)], [16.5, 7.125], rtol=1e-6)


@program
def math_and_arrays():
    @flow.global_function()
    def job(x: tp.Numpy.Placeholder((4, 3))) -> Tuple[tp.Numpy, tp.Numpy, tp.Numpy]:
        total = flow.math.reduce_sum(x, axis=[1], keepdims=True)
        parts = flow.concat([flow.slice(x, begin=[None, 0], size=[None, 2]), total * ones_like(total)], axis=1)
        top = flow.math.top_k(x, k=2)
        return flow.reshape(parts, (-1,)), top, flow.cast(flow.math.greater(x, flow.constant(4, dtype=flow.float)), flow.int32)

    parts, top, larger = job(X)
    assert parts.shape == (12,) and parts[2] == 3 and top.tolist() == [[2, 1]] * 4 and larger.sum() == 7


@program
def variables_and_scopes():
    flow.config.enable_debug_mode(False)
    with flow.scope.placement("cpu", "0:0"):
        config = flow.function_config()

    @flow.global_function(function_config=config)
    def job(x: tp.Numpy.Placeholder((4, 3))) -> tp.Numpy:
        assert flow.current_scope().device_parallel_desc_symbol.parallel_num == 1
        with flow.scope.namespace("net"), flow.scope.placement("cpu", "0:0"):
            w = flow.get_variable(
                "w", shape=(3, 2), initializer=flow.truncated_normal(0.1), regularizer=flow.regularizers.l2(0.1), distribute=flow.distribute.broadcast()
            )
            return flow.matmul(x, w, name=id_util.UniqueStr("product"))

    job(X)
    assert list(flow.get_all_variables()) == ["net-w"]
    flow.load_variables({"net-w": np.ones((3, 2), np.float32)})
    assert job(X)[0].tolist() == [3, 3]


@program
def layers_nn_and_schedules():
    @flow.global_function(type="train")
    def job(images: tp.Numpy.Placeholder((2, 1, 8, 8)), labels: tp.Numpy.Placeholder((2,), dtype=flow.int32)) -> tp.Numpy:
        net = layers.conv2d(images, 4, 3, padding="SAME", activation=flow.nn.relu, kernel_initializer=flow.xavier_uniform_initializer(), name="conv")
        net = flow.nn.max_pool2d(flow.layers.batch_normalization(net, axis=1), 2, 2, "VALID")
        net = flow.layers.dense(flow.flatten(net, start_dim=1), 3, kernel_initializer=flow.random_normal_initializer(stddev=0.1), name="out")
        net = flow.nn.dropout(net, rate=0.2, name="drop")
        loss = flow.nn.sparse_softmax_cross_entropy_with_logits(labels, net, name="loss")
        schedule = oneflow.optimizer.CosineScheduler(0.1, 10, warmup=flow.optimizer.warmup.linear(2, 0.1))
        flow.optimizer.AdamW(schedule, weight_decay=0.01, grad_clipping=flow.optimizer.grad_clipping.by_global_norm(1.0)).minimize(loss)
        return loss

    flow.train.CheckPoint().init()
    assert all(np.isfinite(job(np.ones((2, 1, 8, 8), np.float), np.array([0, 2]))).all() for _ in range(2))


@program
def callbacks_and_watches():
    seen = []

    def show(x: tp.Numpy):
        seen.append(x)

    @flow.global_function(type="train")
    def job(x: tp.Numpy.Placeholder((4, 3))) -> tp.Callback[tp.Numpy]:
        y = flow.layers.dense(x, 2, kernel_initializer=flow.ones_initializer(), name="dense")
        flow.watch(y, show)
        flow.watch_diff(y, show)
        loss = flow.math.reduce_mean(y)
        flow.optimizer.SGD(rate(), momentum=0).minimize(loss)
        return loss

    job(X)(lambda loss: seen.append(loss.item()))
    assert seen[2] == 16.5 and seen[0].shape == seen[1].shape == (4, 2) and seen[1][0, 0] == 0.125


@program
def devices():
    flow.config.cpu_device_num(2)
    config = flow.function_config()
    config.default_logical_view(flow.scope.mirrored_view())

    @flow.global_function("predict", config)
    def job(x: tp.ListNumpy.Placeholder((2, 3))) -> tp.ListNumpy:
        return flow.math.add(x, 1)

    assert [part.shape for part in job([X[:2], X[2:3]])] == [(2, 3), (1, 3)]


@program
def checkpoints():
    @flow.global_function(type="train")
    def job(x: tp.Numpy.Placeholder((4, 3))) -> tp.Numpy:
        loss = flow.math.reduce_mean(flow.layers.dense(x, 2, kernel_initializer=flow.ones_initializer(), name="dense"))
        flow.optimizer.SGD(rate(), momentum=0.9).minimize(loss)
        return loss

    job(X)
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "snapshot")
        flow.checkpoint.save(path)
        assert os.path.exists(os.path.join(path, "snapshot_done"))
        weight = np.fromfile(os.path.join(path, "dense-weight", "out"), np.float32).reshape(2, 3)
        found = flow.checkpoint.get(path)
        assert np.array_equal(found["dense-weight"].numpy(), weight) and "dense-weight-momentum" in found
        manager = flow.train.SimpleCheckPointManager(os.path.join(folder, "snapshots"))
        manager.initialize_or_restore()
        assert manager.latest_checkpoint().startswith("snapshot_")


@program
def eager():
    flow.enable_eager_execution()

    @flow.global_function()
    def job(x: tp.Numpy.Placeholder((4, 3))) -> tp.Numpy:
        return x if flow.math.reduce_sum(x).numpy() > 3 else x * 2

    assert job(X)[0, 1] == 1 and job(X / 100)[0, 1] == np.float32(0.02)


@program
def data_and_random():
    @flow.global_function()
    def job() -> Tuple[tp.Numpy, tp.Numpy]:
        images = flow.data.decode_random(shape=(3,), dtype=flow.float, batch_size=4, initializer=flow.random_uniform_initializer(0, 1))
        return images, flow.random.CoinFlip(batch_size=4)

    images, coins = job()
    assert images.shape == (4, 3) and coins.dtype == np.int8


@program
def summaries_and_models():
    with tempfile.TemporaryDirectory() as folder:

        @flow.global_function()
        def note(x: tp.Numpy.Placeholder((1,)), step: tp.Numpy.Placeholder((1,), flow.int64), tag: tp.Numpy.Placeholder((4,), flow.int8)) -> None:
            flow.summary.create_summary_writer(folder)
            flow.summary.scalar(x, step, tag)
            flow.summary.flush_summary_writer()

        note(np.ones(1, np.float32), np.array([3]), np.fromstring("loss", dtype=np.int8))
        assert any("tfevents" in name for name in os.listdir(folder))

    class Batches(flow.model.NumpyDataModule):
        def forward(self, step_idx=0, optimizer_idx=0):
            return (X,)

    class Net(flow.model.Model):
        def training_step(self, batch):
            return flow.math.reduce_mean(flow.layers.dense(batch[0], 2, kernel_initializer=flow.ones_initializer(), name="dense"))

        def configure_optimizers(self):
            return flow.optimizer.SGD(rate(), momentum=0)

    training = flow.model.TrainingConfig()
    training.config_data(Batches())
    Net().fit(training_config=training, max_steps=2)


@program
def other_tools():
    assert op_conf_util.kRelu != op_conf_util.kNone and flow.sysconfig.get_compile_flags() == []
    assert flow.util.unique_str("a") != flow.util.unique_str("a") and flow.env.current_resource().machine_num == 1
    flow.profiler.range_push("x")
    assert flow.convert_oneflow_dtype_to_numpy_dtype(flow.float32) is np.float32 and flow.unittest.env.device_num() == 1


@program
def tools_for_onnx():
    @flow.global_function()
    def job(x: tp.Numpy.Placeholder((4, 3))) -> tp.Numpy:
        return layers.dense(x, 2, flow.math.tanh, kernel_initializer=flow.ones_initializer())

    with tempfile.TemporaryDirectory() as folder:
        convert_to_onnx_and_check(job, opset=11, onnx_model_path=folder)


@program
def missing_names():
    for module, name in ((flow, "global_functoin"), (flow.layers, "dens"), (layers, "conv2"), (tp, "Numpi"), (op_conf_util, "kRelo")):
        try:
            getattr(module, name)
        except AttributeError as error:
            print(f"    {error}")
    try:
        import oneflow.python.test  # noqa: F401
    except ImportError as error:
        print(f"    {error}")


for each in PROGRAMS:
    flow.clear_default_session()
    each()
    print(each.__name__)
