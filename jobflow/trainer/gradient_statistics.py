"""Statistics of the gradients: norms, largest absolute values and shares of zeros, computed by the ranks inside the train job."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from jobflow.core.filters import matches
from jobflow.core.layout import Placement
from jobflow.core.types import TensorType, float32
from jobflow.graph.ir import Value
from jobflow.graph.training import Parameter, Slots
from jobflow.ops import elementwise as ew
from jobflow.ops.axes import reshape
from jobflow.ops.compare import equal
from jobflow.ops.layout_ops import ToLayout
from jobflow.ops.op import apply
from jobflow.ops.reduce import SquareSum, reduce_max, reduce_sum
from jobflow.ops.slices import concat
from jobflow.trainer.callback_arguments import check_count, check_texts
from jobflow.trainer.step_extensions import PREFIX, StepExtension
from jobflow.trainer.training_run import StepReport, TrainingRun

#: beginning of the names of the variables with the statistics: one row per parameter, [sum of squares, largest absolute value, number of zeros]
TABLE = f"{PREFIX}Gradients-"
#: names of logged values; those of single parameters follow the name of the parameter
NORM, LARGEST, ZEROS = "gradient_norm", "gradient_max", "gradient_zeros"


def is_of_parameter(name: str) -> bool:
    """Return True for the name of a value of a single parameter, of which a model may have hundreds."""
    return name.endswith((f"/{NORM}", f"/{LARGEST}", f"/{ZEROS}"))


class GradientStatistics(StepExtension):
    """A callback that logs statistics of the gradients before clipping, in the first step and every `every` steps.

    The statistics are the Euclidean norm, the largest absolute value and the share of zeros.  They are logged for the whole model, and for each
    parameter that matches a pattern in `parameters`.  The ranks reduce their own parts, and only three numbers per parameter leave the devices.
    Other steps compute nothing more.
    """

    def __init__(self, every: int = 10, parameters: Sequence[str] = ("*",)) -> None:
        check_count("GradientStatistics", "every", every)
        self.every, self.parameters = every, check_texts("GradientStatistics", "parameters", parameters)
        #: {name of a variable: names of its rows}, and the number of elements of each parameter
        self._tables: dict[str, list[str]] = {}
        self._sizes: dict[str, int] = {}

    def is_due(self, step: int) -> bool:
        return step == 1 or step % self.every == 0

    def operations(self, parameters: Sequence[Parameter], new: Mapping[str, Value], step: Value, slots: Slots) -> dict[str, Value]:
        groups: dict[Placement, list[Parameter]] = {}
        for parameter in parameters:
            groups.setdefault(parameter.variable.placement, []).append(parameter)
        self._sizes = {parameter.variable.name: parameter.variable.type.size for parameter in parameters}
        tables: dict[str, Any] = {}
        for number, (placement, own) in enumerate(groups.items()):
            name = f"{TABLE}{number}"
            self._tables[name] = [parameter.variable.name for parameter in own]
            slots(name, TensorType((len(own), 3), float32), 0.0, placement)
            tables[name] = concat([_row(parameter) for parameter in own], 0)
        return tables

    def on_step(self, run: TrainingRun, report: StepReport) -> None:
        if self.is_due(report.step):
            rows = {parameter: row for name, names in self._tables.items() for parameter, row in zip(names, run.read(name), strict=True)}
            self._log(run, "", list(rows.values()), sum(self._sizes.values()))
            for parameter, row in rows.items():
                if matches(self.parameters, parameter):
                    self._log(run, f"{parameter}/", [row], self._sizes[parameter])

    @staticmethod
    def _log(run: TrainingRun, prefix: str, rows: Sequence[Any], size: int) -> None:
        table = np.asarray(rows, np.float64)
        run.log(prefix + NORM, math.sqrt(table[:, 0].sum()))
        run.log(prefix + LARGEST, table[:, 1].max())
        run.log(prefix + ZEROS, table[:, 2].sum() / size)


def _row(parameter: Parameter) -> Any:
    """Return the row [1, 3] of a parameter."""
    gradient = ew.cast(apply(ToLayout(parameter.variable.sbp), parameter.gradient), float32)  # a gradient with several addends is summed once
    zeros = ew.cast(equal(gradient, ew.fill_like(gradient, 0.0)), float32)
    values = [apply(SquareSum(), gradient), reduce_max(ew.absolute(gradient)), reduce_sum(zeros)]
    return concat([reshape(value, (1, 1)) for value in values], 1)
