"""flow.amp: loss scales for graphs of mixed precision."""

from jobflow.nn.graph.graph_optimizers import GradScaler as GradScaler
from jobflow.nn.graph.graph_optimizers import StaticGradScaler as StaticGradScaler
