"""The MPI library that mpi4py loads; MPI is not started.

Prints the JSON object {"vendor": name of the library, "version": its version, "mpi4py": version of mpi4py}.
"""

import json

import mpi4py

mpi4py.rc.initialize = mpi4py.rc.finalize = False

from mpi4py import MPI  # noqa: E402 - the import reads the settings above

name, version = MPI.get_vendor()
print(json.dumps({"vendor": name, "version": ".".join(map(str, version)), "mpi4py": mpi4py.__version__}))
