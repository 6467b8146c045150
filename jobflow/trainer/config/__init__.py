"""Configurations: YAML files that extend each other, references, settings, and a schema.

    loaded = load("configs/lenet.yaml", settings=["optimizer.lr=0.1"])
    loaded.config.optimizer.lr, loaded.origin("optimizer.lr")

loading        files and settings -> a checked configuration
python_values  dicts and settings of Python programs -> YAML text
reading        YAML text -> a tree of values with their source positions
tree           the tree, its source positions, and the list of problems
references     replacement of references in a tree by values
schema         all keys; schema_metrics and schema_fields, parts of it
keys           lookup in the schema: defaults and suggestions
validation     checks of a tree against the schema
rules          checks of several keys together, and sweep_rules those of sweeps
functions      checks of builders and readers, and of their arguments
showing        configurations and the schema as text
"""

from jobflow.trainer.config.loading import Loaded, load
from jobflow.trainer.config.schema import TrainConfig
from jobflow.trainer.config.tree import DEFAULT, ConfigErrors, Origin, Problem

__all__ = ["DEFAULT", "ConfigErrors", "Loaded", "Origin", "Problem", "TrainConfig", "load"]
