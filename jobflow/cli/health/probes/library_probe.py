"""The MPI library that mpi4py loads, without starting MPI: {"vendor", "version", "mpi4py"}."""

import json

import mpi4py

mpi4py.rc.initialize = mpi4py.rc.finalize = False

from mpi4py import MPI  # noqa: E402 - the import reads the settings above

name, version = MPI.get_vendor()
print(json.dumps({"vendor": name, "version": ".".join(map(str, version)), "mpi4py": mpi4py.__version__}))
