"""Graphs over tensors: programs of tensors and modules, compiled like jobs."""

from jobflow.nn.amp import GradScaler, StaticGradScaler
from jobflow.nn.graph.graph import Graph
from jobflow.nn.graph.settings import GraphConfig, GraphModule, ProxyModule

__all__ = ["GradScaler", "Graph", "GraphConfig", "GraphModule", "ProxyModule", "StaticGradScaler"]
