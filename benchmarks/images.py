"""Images as for ImageNet, read by a job: JPEG files in records, decoded, a random part of each resized, half of them turned, normalised.

python images.py FOLDER        a worker, as `peers/torch_images.py` is: one step is a batch
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

BATCH, SIZE, COUNT = 32, 224, 96
MEAN, DEVIATION = (123.68, 116.78, 103.94), (58.4, 57.1, 57.4)


def write(folder: Path) -> None:
    """Write `part-0` with images of about 500 x 375 pixels, and `where.json` with the offsets of the JPEG files in it."""
    import io

    import numpy as np
    from PIL import Image

    from jobflow.data.ofrecord import record_classes

    random, kinds, places = np.random.default_rng(0), record_classes(), []
    with open(folder / "part-0", "wb") as file:
        for _ in range(COUNT):
            width, height = (int(n) for n in random.integers((440, 320), (560, 430)))
            smooth = Image.fromarray(random.integers(0, 256, (height // 8, width // 8, 3), np.uint8)).resize(
                (width, height), Image.Resampling.BICUBIC
            )
            content = io.BytesIO()
            smooth.save(content, "JPEG", quality=90)
            feature = kinds["Feature"](bytes_list={"value": [content.getvalue()]})
            record = kinds["OFRecord"](feature={"encoded": feature}).SerializeToString()
            places.append((file.tell() + 8 + record.index(content.getvalue()), len(content.getvalue())))
            file.write(len(record).to_bytes(8, "little") + record)
    (folder / "where.json").write_text(json.dumps(places))


def main() -> None:
    import worker

    import jobflow as flow
    import jobflow.typing as tp

    @flow.global_function()
    def images() -> tp.Numpy:
        record = flow.data.ofrecord_reader(sys.argv[1], batch_size=BATCH)
        part = flow.data.OFRecordImageDecoderRandomCrop(record, "encoded", "RGB", seed=1)
        resized, _, _ = flow.image.Resize(part, target_size=(SIZE, SIZE))
        return flow.image.CropMirrorNormalize(resized, flow.random.CoinFlip(BATCH), "RGB", mean=MEAN, std=DEVIATION)

    def facts() -> dict[str, Any]:
        return {"pillow": __import__("PIL").__version__, "mean": float(images().mean()), "cores": len(os.sched_getaffinity(0))}

    worker.serve(images, lambda x: float(x.mean()), facts)


if __name__ == "__main__":
    main()
