"""Datasets, samplers and loaders."""

from jobflow.core.lazy_imports import add_aliases
from jobflow.utils.data.collate import default_collate as default_collate
from jobflow.utils.data.collate import default_convert as default_convert
from jobflow.utils.data.dataset import ChainDataset as ChainDataset
from jobflow.utils.data.dataset import ConcatDataset as ConcatDataset
from jobflow.utils.data.dataset import Dataset as Dataset
from jobflow.utils.data.dataset import IterableDataset as IterableDataset
from jobflow.utils.data.dataset import StackDataset as StackDataset
from jobflow.utils.data.dataset import Subset as Subset
from jobflow.utils.data.dataset import TensorDataset as TensorDataset
from jobflow.utils.data.dataset import random_split as random_split
from jobflow.utils.data.loader import DataLoader as DataLoader
from jobflow.utils.data.sampler import BatchSampler as BatchSampler
from jobflow.utils.data.sampler import DistributedSampler as DistributedSampler
from jobflow.utils.data.sampler import RandomSampler as RandomSampler
from jobflow.utils.data.sampler import Sampler as Sampler
from jobflow.utils.data.sampler import SequentialSampler as SequentialSampler
from jobflow.utils.data.sampler import SubsetRandomSampler as SubsetRandomSampler
from jobflow.utils.data.sampler import WeightedRandomSampler as WeightedRandomSampler
from jobflow.utils.data.workers import get_worker_info as get_worker_info

add_aliases(__name__, "jobflow.utils.data")
