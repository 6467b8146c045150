"""Images as for ImageNet, by a DataLoader of PyTorch with one worker: the calls of Pillow, and the files, that ../images.py has.

python torch_images.py FOLDER
"""

from __future__ import annotations

import io
import json
import math
import os
import random
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

import numpy as np
import torch
import worker
from images import BATCH, DEVIATION, MEAN, SIZE
from PIL import Image
from torch.utils.data import DataLoader, Dataset


class Images(Dataset[torch.Tensor]):
    """torchvision's transforms RandomResizedCrop, RandomHorizontalFlip, ToTensor and Normalize."""

    def __init__(self, folder: str) -> None:
        self.content = np.memmap(Path(folder) / "part-0", np.uint8, "r")
        self.places = json.loads((Path(folder) / "where.json").read_text())
        self.mean, self.deviation = (torch.tensor(values).view(3, 1, 1) for values in (MEAN, DEVIATION))

    def __len__(self) -> int:
        return len(self.places)

    def __getitem__(self, index: int) -> torch.Tensor:
        start, length = self.places[index]
        with Image.open(io.BytesIO(self.content[start : start + length].tobytes()), formats=("JPEG",)) as opened:
            image = opened.convert("RGB")
        left, top, width, height = self.box(*image.size)
        grows = width * height <= SIZE * SIZE
        part = image.crop((left, top, left + width, top + height))
        if grows:
            step = width / SIZE, height / SIZE
            part = part.transform((SIZE, SIZE), Image.Transform.AFFINE, (step[0], 0, 0, 0, step[1], 0), Image.Resampling.BILINEAR)
        else:
            part = part.resize((SIZE, SIZE), Image.Resampling.BOX)
        if random.random() < 0.5:
            part = part.transpose(Image.Transpose.FLIP_LEFT_RIGHT)
        x = torch.from_numpy(np.array(part)).permute(2, 0, 1).contiguous().to(torch.float32)
        return x.sub_(self.mean).div_(self.deviation)

    @staticmethod
    def box(width: int, height: int) -> tuple[int, int, int, int]:
        """(left, top, width, height) of a random part."""
        for _ in range(10):
            area = width * height * random.uniform(0.08, 1.0)
            ratio = math.exp(random.uniform(math.log(0.75), math.log(1.333333)))
            w, h = round(math.sqrt(area * ratio)), round(math.sqrt(area / ratio))
            if 0 < w <= width and 0 < h <= height:
                return random.randint(0, width - w), random.randint(0, height - h), w, h
        return 0, 0, min(width, round(height * 1.333333)), min(height, round(width / 0.75))


def batches(folder: str) -> Iterator[Any]:
    loader = DataLoader(Images(folder), BATCH, num_workers=1, persistent_workers=True, prefetch_factor=4)
    while True:
        yield from loader


def main() -> None:
    torch.set_num_threads(1)
    pictures = batches(sys.argv[1])

    def facts() -> dict[str, Any]:
        return {"pillow": __import__("PIL").__version__, "mean": float(next(pictures).mean()), "cores": len(os.sched_getaffinity(0))}

    worker.serve(lambda: next(pictures), lambda x: float(x.mean()), facts)


if __name__ == "__main__":
    main()
