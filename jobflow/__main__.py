"""Entry point of `python -m jobflow`, the command line."""

import sys

from jobflow.cli import main

sys.exit(main())
