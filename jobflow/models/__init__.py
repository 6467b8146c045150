"""Models for `jobflow train`: functions of a batch's fields, which are called while a job is traced.

    model: {builder: "jobflow.models:lenet", arguments: {classes: 10}}

A builder takes the fields by name and returns {"loss": [n], metric: [n] ...}, one number for each sample; without the fields that
predict jobs lack, {"scores": ...}.  It never speaks of the batch size, nor - with two exceptions, which say so - of devices.
"""

from jobflow.models.convolutional import lenet as lenet
from jobflow.models.convolutional import resnet as resnet
from jobflow.models.perceptron import mlp as mlp
from jobflow.models.transformer import gpt as gpt
from jobflow.models.wide_deep import wide_deep as wide_deep
