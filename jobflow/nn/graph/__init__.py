"""Graphs over tensors: a program of tensors and modules, compiled as jobs are."""

from jobflow.nn.graph.graph import Graph
from jobflow.nn.graph.graph_optimizers import GradScaler, StaticGradScaler
from jobflow.nn.graph.modules import ProxyModule
from jobflow.nn.graph.settings import GraphConfig, GraphModule

__all__ = ["GradScaler", "Graph", "GraphConfig", "GraphModule", "ProxyModule", "StaticGradScaler"]
