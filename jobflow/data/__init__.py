"""Data for programs: readers of samples, their order, batches of them; and MNIST, or a stand-in for it where it cannot be had."""

from jobflow.data.batch import Batch as Batch
from jobflow.data.batch import Position as Position
from jobflow.data.batch import per_device as per_device
from jobflow.data.batches import Batches as Batches
from jobflow.data.batches import order_of as order_of
from jobflow.data.mnist import load_mnist as load_mnist
from jobflow.data.python_source import samples_of as samples_of
from jobflow.data.readers import READERS as READERS
from jobflow.data.readers import open_reader as open_reader
from jobflow.data.sample_order import Order as Order
from jobflow.data.samples import Columns as Columns
from jobflow.data.samples import Field as Field
from jobflow.data.samples import Samples as Samples
from jobflow.data.samples import Stream as Stream
from jobflow.data.samples import Subset as Subset
