"""Checkpoints as files: a directory with a manifest and safetensors files, saved all or nothing, loaded lazily and checked."""

from jobflow.checkpoint.files import Files
from jobflow.checkpoint.reading import Checkpoint, Stored, load, problems
from jobflow.checkpoint.writing import clean, save

__all__ = ["Checkpoint", "Files", "Stored", "clean", "load", "problems", "save"]
