"""Models for `jobflow train`: functions of a batch's fields that are called while a job is traced.

    model: {builder: "jobflow.models:lenet", arguments: {classes: 10}}

A builder accepts the fields by name and returns {"loss": [n], metric: [n] ...}, one number per sample.  Without the target fields, which
predict jobs lack, it returns {"scores": ...}.  A builder does not depend on the batch size.  Only `wide_deep`, and `mlp` with `split`, split
variables over devices.
"""

from jobflow.models.convolutional import lenet as lenet
from jobflow.models.convolutional import resnet as resnet
from jobflow.models.perceptron import mlp as mlp
from jobflow.models.transformer import gpt as gpt
from jobflow.models.wide_deep import wide_deep as wide_deep
