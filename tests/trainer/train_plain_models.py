"""A rank that trains models of `plain_cases`, from a configuration and in a loop; rank 0 prints the losses as JSON.

Arguments: a folder with the data, and names of models.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from plain_cases import CASES

import jobflow as flow


def main() -> None:
    folder, losses = Path(sys.argv[1]), {}
    for name in sys.argv[2:]:
        case = CASES[name]
        losses[name] = [case.train_configuration(folder, folder / "ranks" / name), case.train_in_a_loop(folder)]
    if flow.env.get_rank() == 0:
        print(json.dumps(losses))


if __name__ == "__main__":
    main()
