"""Programs that run as several processes: the commands that start them, PyTorch's process groups, and collectives on local tensors.

    mpiexec -n 2 python script.py
    jobflow launch --nproc_per_node 2 script.py          (or python -m jobflow.distributed.launch)
    MASTER_ADDR=127.0.0.1 MASTER_PORT=17789 WORLD_SIZE=2 RANK=0 python script.py, and RANK=1 in another terminal

Importing this package does not start MPI; `init_process_group` and collectives do.  `__init__.pyi` lists the public names.
"""

from jobflow.core.lazy_imports import attach as _attach

__getattr__, __dir__ = _attach(__name__, __file__)
