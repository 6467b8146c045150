"""Configurations: YAML files that extend each other, references, settings, and a schema.

    loaded = load("configs/lenet.yaml", settings=["optimizer.lr=0.1"])
    loaded.config.optimizer.lr, loaded.origin("optimizer.lr")

`loading`: files and settings -> a checked configuration.  `reading`: text -> a `tree` of values with their places.  `references`: the same without
references.  `schema`: all keys.  `validation`: checks a tree by it.  `rules`: what is wrong with several keys together.  `functions`: builders
and readers.  `showing`: configurations and keys as text.
"""

from jobflow.trainer.config.loading import Loaded, load
from jobflow.trainer.config.schema import TrainConfig
from jobflow.trainer.config.tree import DEFAULT, ConfigErrors, Origin, Problem

__all__ = ["DEFAULT", "ConfigErrors", "Loaded", "Origin", "Problem", "TrainConfig", "load"]
