"""Callbacks that show samples in the report at evaluations: text that the model generates, and images of the samples or of the model."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, ClassVar

import numpy as np

from jobflow.core.errors import ArgumentError, ConfigError, did_you_mean_or
from jobflow.core.types import Array
from jobflow.data.vocabulary import Vocabulary, vocabulary_of
from jobflow.models.generation.decoding import tokens_after
from jobflow.models.generation.token_sampling import Sampling
from jobflow.trainer.callback_arguments import check_count, check_texts
from jobflow.trainer.callbacks import Callback
from jobflow.trainer.jobs import TOKENS
from jobflow.trainer.predict import is_of_text, texts
from jobflow.trainer.training_run import EvaluationReport, TrainingRun


class PeriodicSamples(Callback):
    """Base class of callbacks that show samples at every `every`-th evaluation; a checkpoint saves the number of evaluations."""

    changes_rate: ClassVar[bool] = False

    def __init__(self, count: int, every: int) -> None:
        check_count(type(self).__name__, "count", count)
        check_count(type(self).__name__, "every", every)
        self.count, self.every, self.evaluations = count, every, 0

    def on_evaluation(self, run: TrainingRun, report: EvaluationReport) -> None:
        self.evaluations += 1
        if self.evaluations % self.every == 0:
            self.show_samples(run, report)

    def show_samples(self, run: TrainingRun, report: EvaluationReport) -> None:
        """Show the samples in the report of the run."""
        raise NotImplementedError

    def state_dict(self) -> dict[str, Any]:
        return {"evaluations": self.evaluations}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.evaluations = int(state["evaluations"])


class TextSamples(PeriodicSamples):
    """A callback that continues each prompt by `count` characters at evaluations, and shows the texts in the report.

    The model is trained on text, and returns "scores" for "tokens".  The texts depend on the parameters, the arguments and the step alone.  `every`
    is the number of evaluations between two samples.
    """

    def __init__(
        self, prompts: Sequence[str], count: int = 100, temperature: float = 0.8, top_k: int = 0, top_p: float = 1.0, seed: int = 0, every: int = 1
    ) -> None:
        super().__init__(count, every)
        self.prompts = check_texts("TextSamples", "prompts", prompts)
        self.options: dict[str, Any] = {"temperature": temperature, "top_k": top_k, "top_p": top_p}
        self.seed = seed
        try:
            Sampling(**self.options, seed=seed).check()
        except ArgumentError as error:
            raise ConfigError(f"TextSamples: {error}") from None

    def on_start(self, run: TrainingRun) -> None:
        if not is_of_text(run.loaded.config):
            raise ConfigError(f"TextSamples: data.train.reader is {run.loaded.config.data.train.reader}; use a reader of text, or omit the callback")
        for prompt in self.prompts:
            vocabulary_of(run.facts).encode(prompt, f"the prompt {prompt!r:.40}")

    def show_samples(self, run: TrainingRun, report: EvaluationReport) -> None:
        with run.averages():
            for number, prompt in enumerate(self.prompts, 1):
                run.show(f"text {number}", prompt + "".join(self._continued(run, prompt, report.step + number)))

    def _continued(self, run: TrainingRun, prompt: str, number: int) -> Iterator[str]:
        words: Vocabulary = vocabulary_of(run.facts)
        tokens = [int(token) for token in words.encode(prompt, "the prompt")]
        length = run.examples(1)[TOKENS].shape[1]

        def scores_of(window: Array) -> Array:
            outputs = run.predict({TOKENS: window})
            if "scores" not in outputs:
                raise ConfigError(f'TextSamples: the model returned {", ".join(outputs)}; return a dict with "scores" to generate text')
            return np.asarray(outputs["scores"])[..., : words.size]

        seed = int(np.random.SeedSequence([self.seed, number]).generate_state(1)[0])
        return texts(words, tokens_after(scores_of, tokens, self.count, length=length, seed=seed, **self.options))


class ImageSamples(PeriodicSamples):
    """A callback that shows images of the first `count` samples in the report at evaluations: an input field, or an output of the model.

    `show` is the name of a field or of an output, such as "scores" of an autoencoder; the default is the first field.  The samples are those of
    data.validation, or of data.train without it.  `every` is the number of evaluations between two samples.
    """

    def __init__(self, count: int = 16, show: str | None = None, every: int = 1) -> None:
        super().__init__(count, every)
        self.show = show

    def show_samples(self, run: TrainingRun, report: EvaluationReport) -> None:
        fields = run.examples(self.count)
        name = self.show or next(iter(fields))
        with run.averages():
            arrays = fields if name in fields else run.predict(fields)
        if name not in arrays:
            known = [*fields, *arrays]
            raise ConfigError(f'ImageSamples: there is no "{name}"{did_you_mean_or(name, known, f"the samples and the model have {known}")}')
        run.show(name, arrays[name])
