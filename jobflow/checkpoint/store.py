"""Checkpoints as files: a directory with a manifest and safetensors files, written completely or not at all, read lazily, with hashes."""

from jobflow.checkpoint.checkpoint_reader import Checkpoint, Stored, load, problems
from jobflow.checkpoint.file_system import Files
from jobflow.checkpoint.writing import clean, save

__all__ = ["Checkpoint", "Files", "Stored", "clean", "load", "problems", "save"]
