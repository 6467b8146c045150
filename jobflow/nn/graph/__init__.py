"""Programs of tensors and modules that are compiled like jobs."""

from jobflow.nn.amp import GradScaler, StaticGradScaler
from jobflow.nn.graph.graph import Graph
from jobflow.nn.graph.settings import GraphConfig, GraphModule, ProxyModule

__all__ = ["GradScaler", "Graph", "GraphConfig", "GraphModule", "ProxyModule", "StaticGradScaler"]
