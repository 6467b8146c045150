"""The language of configurations: YAML files that extend each other, references, settings, and a schema that all of it is checked by.

    loaded = load("configs/lenet.yaml", settings=["optimizer.lr=0.1"])
    loaded.config.optimizer.lr, loaded.origin("optimizer.lr")

text -> `reading` -> tree -> `extending` -> one tree -> `references` -> values -> `checking` (the sections of `schema`), `combinations`, `outside`.
"""

from jobflow.trainer.config.loading import Loaded, load
from jobflow.trainer.config.problems import DEFAULT, ConfigErrors, Origin, Problem
from jobflow.trainer.config.schema import TrainConfig

__all__ = ["DEFAULT", "ConfigErrors", "Loaded", "Origin", "Problem", "TrainConfig", "load"]
