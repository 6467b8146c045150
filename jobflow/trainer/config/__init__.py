"""Configurations: YAML files that extend each other, references, settings, and a schema.

    loaded = load("configs/lenet.yaml", settings=["optimizer.lr=0.1"])
    loaded.config.optimizer.lr, loaded.origin("optimizer.lr")

`reading`: text -> a tree of values with their places.  `merging`: files and settings -> one tree.  `references`: the same without references.
`schema`: all keys.  `validation`: checks a tree by it, in the words of `messages`.  `rules`: what is wrong with several keys together.
`functions`: builders and readers.  `describing`: configurations and keys as text.
"""

from jobflow.trainer.config.loading import Loaded, load
from jobflow.trainer.config.problems import DEFAULT, ConfigErrors, Origin, Problem
from jobflow.trainer.config.schema import TrainConfig

__all__ = ["DEFAULT", "ConfigErrors", "Loaded", "Origin", "Problem", "TrainConfig", "load"]
