"""Data parallel training of local modules: every rank has the whole module and a part of the batch."""

from jobflow.nn.parallel.distributed import DistributedDataParallel as DistributedDataParallel
