"""The class `nn.Graph`: programs of tensors and modules that are traced and compiled like jobs."""

from jobflow.nn.amp import GradScaler, StaticGradScaler
from jobflow.nn.graph.graph import Graph
from jobflow.nn.graph.settings import GraphConfig, GraphModule, ProxyModule

__all__ = ["GradScaler", "Graph", "GraphConfig", "GraphModule", "ProxyModule", "StaticGradScaler"]
