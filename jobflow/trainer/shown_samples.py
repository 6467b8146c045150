"""Samples of texts and images that callbacks show: files in the folder of the run, and the section of the report."""

from __future__ import annotations

import base64
import io
import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from jobflow.core.errors import user_line
from jobflow.core.extras import optional
from jobflow.core.notices import notice
from jobflow.core.types import Array
from jobflow.trainer.callbacks import Callback
from jobflow.trainer.training_run import CallbackError, TrainingRun, leave

#: the folder in the run's output, and its folders by step
FOLDER = "samples"
STEP = re.compile(r"step-(\d+)")
#: maximum number of characters of a text, of pixels of a picture along each axis, and of pictures in a sheet
MOST_CHARACTERS, MOST_PIXELS, MOST_PICTURES = 10_000, 1024, 64
#: maximum numbers of steps on the page, of samples of a step, and of bytes of all samples on the page
MOST_STEPS, MOST_SAMPLES, MOST_BYTES = 8, 16, 4 << 20


class SampleFolder(Callback):
    """A callback that removes the samples after the step at which a run begins, so that a resumed run has no samples twice.

    A notice names a folder that cannot be removed.
    """

    observes: ClassVar[bool] = True

    def on_start(self, run: TrainingRun) -> None:
        for step, path in _steps(run.output):
            if step > run.first_step or not run.first_step:
                try:
                    shutil.rmtree(path)
                except OSError as error:
                    notice(f"{path} could not be removed: {error.strerror or error}; remove it, because its samples are of an earlier run")


def write_sample(output: Path, step: int, name: str, value: Any) -> None:
    """Write a text, an image, or a sheet of images to the folder of samples of a step.

    Raises: CallbackError for a value of another type or shape.
    """
    folder = output / FOLDER / f"step-{step:08d}"
    path = folder / re.sub(r"[^\w.-]+", "_", name)
    if isinstance(value, str):
        text = value if len(value) <= MOST_CHARACTERS else f"{value[:MOST_CHARACTERS]}\n... ({len(value):,} characters)"
        leave(path.with_name(f"{path.name}.txt"), text.encode("utf-8", "replace"))
    else:
        leave(path.with_name(f"{path.name}.png"), _png(name, value))


def _png(name: str, value: Any) -> bytes:
    image = optional("PIL.Image", "images in a report")
    buffer = io.BytesIO()
    image.fromarray(_picture(name, np.asarray(value))).save(buffer, "png", optimize=True)
    return buffer.getvalue()


def _picture(name: str, array: Array) -> Array:
    """Return uint8 [height, width] or [height, width, 3] for an image, or for a sheet of several images."""
    if array.ndim not in (2, 3, 4) or array.dtype.kind not in "uifb" or 0 in array.shape:
        raise CallbackError(
            f'run.show at {user_line()}: the sample "{name}" is {array.dtype}{list(array.shape)}; pass a text, an image [height, width] or '
            f"[height, width, 3], or images [count, height, width, 3]"
        )
    if array.dtype != np.uint8:
        scale = 255.0 if array.dtype.kind in "fb" else 1.0  # floats and bools are from 0 to 1
        array = np.clip(np.nan_to_num(array.astype(np.float64)) * scale, 0, 255).round().astype(np.uint8)
    if array.ndim == 3 and array.shape[-1] not in (1, 3) and array.shape[0] not in (1, 3):
        array = array[..., None]  # images without channels
    array = array if array.ndim in (2, 4) else array[None]
    array = array if array.ndim == 4 else array[None, ..., None]
    if array.shape[-1] not in (1, 3) and array.shape[1] in (1, 3):
        array = array.transpose(0, 2, 3, 1)
    if array.shape[-1] not in (1, 3):
        raise CallbackError(f'run.show at {user_line()}: the images "{name}" have {array.shape[-1]} channels; pass images with 1 or 3 channels')
    sheet = _sheet(array[:MOST_PICTURES])
    step = -(-max(sheet.shape[:2]) // MOST_PIXELS)
    sheet = sheet[::step, ::step]
    return sheet[..., 0] if sheet.shape[-1] == 1 else sheet


def _sheet(images: Array) -> Array:
    """Arrange images [count, height, width, channels] in rows of a nearly square sheet, with a gray line between them."""
    count, height, width, channels = images.shape
    columns = int(np.ceil(np.sqrt(count)))
    rows = -(-count // columns)
    sheet = np.full((rows * (height + 1) - 1, columns * (width + 1) - 1, channels), 128, np.uint8)
    for number, image in enumerate(images):
        y, x = (number // columns) * (height + 1), (number % columns) * (width + 1)
        sheet[y : y + height, x : x + width] = image
    return sheet


def _steps(output: Path) -> list[tuple[int, Path]]:
    """Return the steps with samples and their folders, newest first."""
    named = ((STEP.fullmatch(path.name), path) for path in (output / FOLDER).glob("step-*") if path.is_dir())
    return sorted(((int(match[1]), path) for match, path in named if match), reverse=True)


def samples_section(output: Path) -> list[dict[str, Any]]:
    """Return the newest samples for the page: {"step", "samples": [(name, kind, content)]}, where the content is a text or a data URI."""
    left = MOST_BYTES
    section = []
    for step, folder in _steps(output)[:MOST_STEPS]:
        samples = []
        for name, kind, content in _read(folder):
            if len(content) <= left:
                left -= len(content)
                samples.append((name, kind, content))
        if samples:
            section.append({"step": f"{step:,}", "samples": samples})
    return section


def _read(folder: Path) -> Iterator[tuple[str, str, str]]:
    paths = sorted(path for path in folder.iterdir() if path.suffix in (".txt", ".png") and path.is_file())
    for path in paths[:MOST_SAMPLES]:
        if path.stat().st_size <= MOST_BYTES:
            data = path.read_bytes()
            is_text = path.suffix == ".txt"
            yield path.stem, path.suffix[1:], data.decode(errors="replace") if is_text else f"data:image/png;base64,{base64.b64encode(data).decode()}"
