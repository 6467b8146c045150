"""Graphs over tensors: a program of tensors and modules, compiled as jobs are."""

from jobflow.nn.amp import GradScaler, StaticGradScaler
from jobflow.nn.graph.graph import Graph
from jobflow.nn.graph.settings import GraphConfig, GraphModule, ProxyModule

__all__ = ["GradScaler", "Graph", "GraphConfig", "GraphModule", "ProxyModule", "StaticGradScaler"]
