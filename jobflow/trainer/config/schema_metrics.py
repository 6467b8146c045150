"""The schema of the section `metrics`: each kind of metric over a set with its options."""

from __future__ import annotations

from typing import Annotated, Any, ClassVar, Literal

from jobflow.core.imports import IMPORT_PATH
from jobflow.trainer.config.schema_fields import Count, OneOf, Section, key

#: pattern of the name of a metric
METRIC_NAME = r"^[A-Za-z_]\w*$"


class _MetricOptions(Section):
    scores: Annotated[str, key("output of the model with scores or predicted numbers", min_length=1)] = "scores"
    labels: Annotated[str, key("output of the model, or field of the samples, with the labels", "targets", min_length=1)] = "labels"
    name: Annotated[str | None, key("name in files and reports; null: the kind of metric", pattern=METRIC_NAME)] = None


class PlainMetric(_MetricOptions):
    """A metric without options of its own."""


class OfClasses(_MetricOptions):
    """A metric of scores and class labels."""

    ignore: Annotated[int | None, key("label that is not counted, such as -100 for padding; null: all count", "ignore_index ignore_label")] = None


class OfPredictedClasses(OfClasses):
    """A metric of predicted classes and labels."""

    threshold: Annotated[
        float | None, key("probability above which class 1 of two classes is predicted; null: the class with the larger score", gt=0, lt=1)
    ] = None


class ConfusionMatrix(OfPredictedClasses):
    """A confusion matrix."""


class TopK(OfClasses):
    k: Annotated[Count, key("number of largest scores among which the label counts")]


class F1(OfPredictedClasses):
    average: Annotated[
        Literal["macro", "micro", "weighted", "binary"], key("macro: mean of the classes; micro: all samples together; binary: one class")
    ] = "macro"
    positive: Annotated[int, key("the class of binary", "pos_label", ge=0)] = 1


class Auc(OfClasses):
    bins: Annotated[int | None, key("number of intervals in which scores are counted; null: exact", "thresholds", ge=2, le=2**20)] = None
    limit: Annotated[Count, key("largest number of scores that the exact value keeps in memory")] = 1_000_000


class OwnMetric(Section):
    builder: Annotated[str, key('a class of metrics, as "module:Class"', "target", pattern=IMPORT_PATH)]
    arguments: Annotated[dict[str, Any], key("keyword arguments of the class", "args kwargs params", default_factory=dict)]
    name: Annotated[str | None, key("name in files and reports; null: the name of the class", pattern=METRIC_NAME)] = None


class Metric(OneOf):
    """One metric over a set: a map whose only key is its kind, the kind alone, or the import path of a class alone."""

    accuracy: Annotated[OfPredictedClasses | None, key("fraction of labels that are predicted")] = None
    top_k: Annotated[TopK | None, key("fraction of labels among the k largest scores", "topk top_k_accuracy")] = None
    f1: Annotated[F1 | None, key("harmonic mean of precision and recall", "f1_score fscore f_score")] = None
    auc: Annotated[Auc | None, key("area under the ROC curve", "auroc roc_auc")] = None
    confusion_matrix: Annotated[ConfusionMatrix | None, key("number of samples by label and predicted class", "confusion")] = None
    perplexity: Annotated[OfClasses | None, key("exponential of the mean of -log softmax(scores)[label]", "ppl")] = None
    mae: Annotated[PlainMetric | None, key("mean absolute error", "mean_absolute_error")] = None
    rmse: Annotated[PlainMetric | None, key("root of the mean squared error", "root_mean_squared_error")] = None
    r2: Annotated[PlainMetric | None, key("coefficient of determination", "r2_score")] = None
    own: Annotated[OwnMetric | None, key("a class with reset, update and compute", "custom")] = None

    _such: ClassVar[str] = "one metric, such as f1: {average: macro}"
