"""Write jobflow/data/digits.npz from scikit-learn: the test set of the UCI "optical recognition of handwritten digits" data.

    python scripts/make_digits.py

1,797 images of 8x8 pixels with values 0..16 (E. Alpaydin, C. Kaynak, 1998; CC BY 4.0), unchanged in uint8.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
from sklearn.datasets import load_digits

TARGET = Path(__file__).parents[1] / "jobflow" / "data" / "digits.npz"


def main() -> None:
    digits = load_digits()
    np.savez_compressed(TARGET, images=digits.images.astype(np.uint8), labels=digits.target.astype(np.uint8))
    print(f"{TARGET.name}: {len(digits.images)} images, {TARGET.stat().st_size} bytes")


if __name__ == "__main__":
    main()
