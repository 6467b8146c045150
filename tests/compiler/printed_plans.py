"""A script for test_determinism that prints the plans of both ranks for some training programs."""

from growing import grown
from programs import graph_of
from test_memory import MODELS, plan_of
from traced import first, trace

from jobflow.plan.plan_text import plan_text

if __name__ == "__main__":
    graphs = [trace(model, first(2), train=True) for model in MODELS.values()] + [graph_of(grown(seed, ((2,),))) for seed in range(5)]
    for graph in graphs:
        for rank in (0, 1):
            plan = plan_of(graph, rank)
            print(plan_text(plan), *plan.schedule, sep="\n")
