"""Quantization-aware training of products and convolutions: `function_config.enable_qat`.

Products and convolutions use 8-bit values of their inputs (`quantization.fake_quantization`). Gradients ignore the rounding.

    variables       the scale and the zero point are computed from the minimum and maximum, with `per_channel_weight_quantization` per index of axis 0
    other inputs    the scale and the zero point are computed from moving averages, in the variables `<weight>-quantization_0-moving_max` and
                    `<weight>-quantization_0-moving_min`. `<weight>` is the first weight that multiplies the input, or `fake`. The number
                    after `quantization_` counts the inputs that multiply this weight, in the order of the body. Therefore a predict job with the
                    same layers shares the variables of the train job
"""

from __future__ import annotations

import functools
from collections import Counter
from collections.abc import Sequence

import jobflow.core.scope as scope
from jobflow.core.types import Tensor, int64
from jobflow.engine.body import JobBody
from jobflow.engine.job_config import FunctionConfig
from jobflow.engine.job_tensor import JobTensor
from jobflow.graph.ir import Value
from jobflow.legacy.extras.quantization import fake_quantization, min_max_observer, observed
from jobflow.legacy.initializers import constant_initializer
from jobflow.legacy.variables import assign, get_variable, variable_of
from jobflow.ops.conv import Conv
from jobflow.ops.matmul import BroadcastMatMul, Product
from jobflow.ops.op import Op
from jobflow.ops.scalar import shift


class Quantization:
    """A callable that replaces the inputs of products and convolutions by their 8-bit values, computed once per tensor."""

    def __init__(self, config: FunctionConfig, job: JobBody) -> None:
        self.job, self.root = job, scope.current().root
        options = {name.removeprefix("qat."): value for name, value in config.options.items() if name.startswith("qat.")}
        formula = "cambricon" if options.get("target_backend") == "cambricon" else "google"
        self.how = 8, "symmetric" if options.get("symmetric", True) else "affine", formula
        self.by_row = options.get("per_channel_weight_quantization", False)
        self.momentum = float(options.get("moving_min_max_momentum", 0.95))
        self.until = options.get("moving_min_max_stop_update_after_iters")
        self._made: dict[tuple[Value, bool], Tensor] = {}
        self._observers = Counter[str]()

    def __call__(self, op: Op, inputs: Sequence[Tensor]) -> Sequence[Tensor]:
        if not scope.current().quantized or not isinstance(op, Product | BroadcastMatMul | Conv):
            return inputs
        with scope.using(interpreter=self.job, root=self.root):
            layer = next(filter(None, map(variable_of, inputs)), "fake")
            return [self._of(x, layer) if isinstance(x, JobTensor) and x.tensor_type.dtype.is_float else x for x in inputs]

    def _of(self, x: JobTensor, layer: str) -> Tensor:
        key = x.value, scope.current().view == "mirrored"
        if key not in self._made:
            weight = variable_of(x) is not None
            scale, zero = min_max_observer(x, *self.how, per_layer_quantization=not self.by_row) if weight else self._observed(x, layer)
            self._made[key] = fake_quantization(x, scale, zero, *self.how)
        return self._made[key]

    def _observed(self, x: JobTensor, layer: str) -> tuple[Tensor, Tensor]:
        name = f"{layer}-quantization_{self._observers[layer]}"
        self._observers[layer] += 1
        with scope.using(namespace=()):
            variable = functools.partial(get_variable, shape=(1,), initializer=constant_initializer(0), trainable=False)
            top, bottom = (variable(f"{name}-{word}", dtype=x.tensor_type.dtype) for word in ("moving_max", "moving_min"))
            step = variable(f"{name}-current_train_step", dtype=int64)
            if self.job.trainable:
                assign(step, shift(step, 1))
            return observed(x, top, bottom, step, *self.how, self.momentum, self.job.trainable, self.until)
