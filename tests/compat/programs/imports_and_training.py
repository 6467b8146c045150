"""The forms in which programs of OneFlow 0.2 to 0.4 import it, and a train job in their style; it is run as it is."""

import sys
from typing import Tuple

import numpy as np

import oneflow
import oneflow as flow
import oneflow.core.common.data_type_pb2 as data_type
import oneflow.core.job.initializer_conf_pb2 as initializer_conf_util
import oneflow.core.operator.op_conf_pb2 as op_conf_util
import oneflow.core.record.record_pb2 as ofrecord
import oneflow.nn as nn
import oneflow.python.framework.distribute as distribute_util
import oneflow.typing as oft
import oneflow.typing as tp
from oneflow import typing
from oneflow.compatible import single_client
from oneflow.compatible.single_client import typing as other

assert flow.__version__.count(".") == 2
assert flow is oneflow is single_client and tp is oft is typing is other
assert distribute_util.broadcast() is flow.distribute.broadcast() and nn.relu is flow.math.relu
assert len({op_conf_util.kNone, op_conf_util.kRelu, op_conf_util.kSigmoid}) == 3 and data_type.kFloat == 2


def bias() -> initializer_conf_util.InitializerConf:
    return flow.zeros_initializer()


assert sys.argv[1:] == ["--batch", "4"]
record = ofrecord.OFRecord(feature={"label": ofrecord.Feature(int32_list=ofrecord.Int32List(value=[7]))})
record.feature["images"].float_list.value.extend(np.arange(4, dtype=np.float) / 2)
text = record.SerializeToString()
back = ofrecord.OFRecord.FromString(text)
assert list(back.feature["images"].float_list.value) == [0, 0.5, 1, 1.5] and len(text) == record.ByteSize()
assert back.feature["label"].WhichOneof("kind") == "int32_list"


@flow.global_function(type="train")
def train_job(x: tp.Numpy.Placeholder((4, 3))) -> Tuple[tp.Numpy, tp.Numpy]:
    y = flow.layers.dense(x, 2, kernel_initializer=flow.ones_initializer(), bias_initializer=bias(), name="dense")
    loss = flow.math.reduce_mean(y)
    flow.optimizer.SGD(flow.optimizer.PiecewiseConstantScheduler([], [0.1]), momentum=0).minimize(loss)
    return y, loss


check_point = flow.train.CheckPoint()
check_point.init()
y, loss = train_job(np.ones((4, 3), np.float32))
print(y.dtype == np.float32, loss)
assert float(loss) == loss.item() and "%.1f %r" % (loss, loss) == "3.0 array([3.], dtype=float32)"
assert [int(row) for row in y[:, :1]] == [3, 3, 3, 3] and float(loss * 2) == 6 and type((y + 1).sum()) is np.float32
assert np.array([[1, 2], [3]]).dtype == np.object and np.asarray([np.zeros(2), np.zeros(3)]).shape == (2,)
