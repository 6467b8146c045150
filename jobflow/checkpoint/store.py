"""Checkpoints as files: a directory with a manifest and safetensors files, saved all or nothing, loaded lazily and checked."""

from jobflow.checkpoint.checkpoint_reader import Checkpoint, Stored, load, problems
from jobflow.checkpoint.file_system import Files
from jobflow.checkpoint.writing import clean, save

__all__ = ["Checkpoint", "Files", "Stored", "clean", "load", "problems", "save"]
