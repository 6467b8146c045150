"""Programs that run as several processes: the commands that start them, and their output.

    mpiexec -n 2 python script.py
    jobflow launch --nproc_per_node 2 script.py          (or python -m jobflow.distributed.launch)
    MASTER_ADDR=127.0.0.1 MASTER_PORT=17789 WORLD_SIZE=2 RANK=0 python script.py, and RANK=1 in another terminal

No function of this package starts MPI.
"""

from jobflow.runtime.world.environment import rank as get_rank
from jobflow.runtime.world.environment import world_size as get_world_size
from jobflow.runtime.world.rendezvous import local_rank as get_local_rank
from jobflow.runtime.world.rendezvous import node_size as get_node_size

__all__ = ["get_rank", "get_local_rank", "get_world_size", "get_node_size"]
