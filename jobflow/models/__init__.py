"""Models for `jobflow train` and for programs: modules, builders, and what transformers need to generate text.

    model: {builder: "jobflow.models:ResNet", arguments: {classes: 10}}         a class of modules
    model: {builder: "jobflow.models:lenet", arguments: {classes: 10}}          a builder

A builder is a function of a batch's fields that is called while a job is traced.  It accepts the fields by name and returns
{"loss": [n], metric: [n] ...}, one number per sample.  Without the target fields, which predict jobs lack, it returns {"scores": ...}.
A builder does not depend on the batch size.  Only `wide_deep`, and `mlp` with `split`, split variables over devices.
"""

from jobflow.models.convolutional import lenet as lenet
from jobflow.models.convolutional import resnet as resnet
from jobflow.models.generation.generate import generate as generate
from jobflow.models.generation.key_value_cache import KeyValueCache as KeyValueCache
from jobflow.models.generation.key_value_cache import attention as attention
from jobflow.models.generation.rotary import rotary_embedding as rotary_embedding
from jobflow.models.gpt2 import GPT as GPT
from jobflow.models.llama import Llama as Llama
from jobflow.models.perceptron import mlp as mlp
from jobflow.models.residual_network import ResNet as ResNet
from jobflow.models.transformer import gpt as gpt
from jobflow.models.unet import UNet as UNet
from jobflow.models.vision_transformer import ViT as ViT
from jobflow.models.weight_names import renamed_weights as renamed_weights
from jobflow.models.wide_deep import wide_deep as wide_deep
