"""Layers of a plain net, as a configuration lists them: `- dense: {units: 128, activation: relu}`."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field, model_serializer, model_validator

from jobflow.trainer.config.section import Section

Activation = Literal["relu", "gelu", "tanh", "sigmoid", "elu", "leaky_relu", "swish", "softmax", "softplus"]
Count = Annotated[int, Field(ge=1)]
#: one number for both axes, or height and width
Sizes = Count | tuple[Count, Count]
Padding = Literal["same", "valid"]
Share = Annotated[float, Field(ge=0, lt=1)]


class Dense(Section):
    """y = activation(x w + b), over the last axis."""

    units: Annotated[int, Field(ge=1, description="outputs")]
    activation: Annotated[Activation | None, Field(description="what follows; null for nothing")] = None
    use_bias: Annotated[bool, Field(description="whether there is a b")] = True


class Conv2d(Section):
    """A convolution of images, with channels first."""

    filters: Annotated[int, Field(ge=1, description="channels of the output")]
    kernel_size: Annotated[Sizes, Field(description="pixels, one number or [height, width]")] = 3
    strides: Annotated[Sizes, Field(description="pixels, one number or [height, width]")] = 1
    padding: Annotated[Padding, Field(description="same: the output is as large as the input, by strides; valid: no padding")] = "same"
    groups: Annotated[int, Field(ge=1, description="groups of channels that do not see each other")] = 1
    activation: Annotated[Activation | None, Field(description="what follows; null for nothing")] = None
    use_bias: Annotated[bool, Field(description="whether a bias is added")] = True


class Pool2d(Section):
    """The largest, or the mean, of each window of an image."""

    size: Annotated[Sizes, Field(description="of the window in pixels, one number or [height, width]")] = 2
    strides: Annotated[Sizes | None, Field(description="pixels; null: those of size")] = None
    padding: Annotated[Padding, Field(description="same or valid")] = "valid"


class Flatten(Section):
    """All axes but the first as one."""


class GlobalPool2d(Section):
    """The mean of each channel of an image."""


class Dropout(Section):
    """Values become 0 at random while training."""

    rate: Annotated[Share, Field(description="the share that becomes 0")]


class BatchNorm(Section):
    """Channels with mean 0 and variance 1 over the batch."""

    axis: Annotated[int, Field(description="of the channels")] = 1
    momentum: Annotated[Share, Field(description="of the moving mean and variance")] = 0.9
    epsilon: Annotated[float, Field(gt=0, description="added to the variance")] = 1e-5


class LayerNorm(Section):
    """Rows with mean 0 and variance 1 over the last axis."""

    epsilon: Annotated[float, Field(gt=0, description="added to the variance")] = 1e-5


class ActivationLayer(Section):
    """A function of each value."""

    function: Annotated[Activation, Field(description="which")]


class Embedding(Section):
    """Whole numbers -> rows of a table that is learned."""

    rows: Annotated[int, Field(ge=1, description="how many numbers there are")]
    units: Annotated[int, Field(ge=1, description="length of a row")]


class Reshape(Section):
    """The same values in another shape."""

    shape: Annotated[tuple[Annotated[int, Field(ge=-1)], ...], Field(min_length=1, description="without the batch; one length may be -1")]


class Layer(Section):
    """One layer: a map with its kind as the only key, or its kind alone if it needs no arguments."""

    dense: Annotated[Dense | None, Field(description="fully connected")] = None
    conv2d: Annotated[Conv2d | None, Field(description="convolution")] = None
    max_pool2d: Annotated[Pool2d | None, Field(description="largest of each window")] = None
    avg_pool2d: Annotated[Pool2d | None, Field(description="mean of each window")] = None
    global_avg_pool2d: Annotated[GlobalPool2d | None, Field(description="mean of each channel")] = None
    flatten: Annotated[Flatten | None, Field(description="all axes but the first as one")] = None
    dropout: Annotated[Dropout | None, Field(description="zeros at random while training")] = None
    batch_norm: Annotated[BatchNorm | None, Field(description="batch normalisation")] = None
    layer_norm: Annotated[LayerNorm | None, Field(description="layer normalisation")] = None
    activation: Annotated[ActivationLayer | None, Field(description="an activation as a layer of its own")] = None
    embedding: Annotated[Embedding | None, Field(description="table look-up")] = None
    reshape: Annotated[Reshape | None, Field(description="another shape")] = None

    @model_validator(mode="after")
    def _is_one(self) -> Layer:
        given = [name for name in type(self).model_fields if getattr(self, name) is not None]
        if len(given) != 1:
            raise ValueError(f"one layer, such as dense: {{units: 10}}; got {' and '.join(given) or 'none'}, each begins with a - of its own")
        return self

    @property
    def kind(self) -> str:
        """Its only key, such as "dense"."""
        return next(name for name in type(self).model_fields if getattr(self, name) is not None)

    @property
    def arguments(self) -> Section:
        """What stands under its key, such as a `Dense`."""
        found: Section = getattr(self, self.kind)
        return found

    @model_serializer
    def _written(self) -> dict[str, Any]:
        return {self.kind: self.arguments.model_dump()}
