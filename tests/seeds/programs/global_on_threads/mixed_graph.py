"""The fourth document's mixed parallelism on four ranks, as a graph of two stages."""

import jobflow as flow
import jobflow.nn as nn

P01 = flow.placement(type="cuda", ranks=[0, 1])
P23 = flow.placement(type="cuda", ranks=[2, 3])

class StageModule(nn.Module):
    def __init__(self, in_dims, out_dims, placement=None, sbp=None):
        super().__init__()
        self.w = nn.Parameter(
            flow.randn(in_dims, out_dims, placement=placement, sbp=sbp)
        )
        
    def forward(self, x):
        out = flow.matmul(x, self.w)
        return out
        
class ModuleModel(nn.Module):
    def __init__(self):
        super().__init__()
        
        # The first stage of the model: execute data parallelism on GPU 0 and 1.
        self.m_stage0 = StageModule(5, 8, placement=P01, sbp=flow.sbp.broadcast)
        
        # The second stage of the model: execute model parallelism on GPU 2 and 3.
        self.m_stage1 = StageModule(8, 3, placement=P23, sbp=flow.sbp.split(dim=1))
        
    def forward(self, x):
        # First stage: the data is partitioned across GPU 0 and 1 for data parallelism.
        out_stage0 = self.m_stage0(x)
        
        # Second stage: stitch the data together and pass them to GPU 2 and 3 for model parallelism.
        in_stage1 = out_stage0.to_global(placement=P23, sbp=flow.sbp.broadcast)
        out_stage1 = self.m_stage1(in_stage1)
        
        return out_stage0, out_stage1
        
# Graph
class GraphModel(nn.Graph):
    def __init__(self):
        super().__init__()
        self.model = ModuleModel()
        self.model.m_stage0.to(nn.graph.GraphModule).set_stage(stage_id=0, placement=P01)
        self.model.m_stage1.to(nn.graph.GraphModule).set_stage(stage_id=1, placement=P23)
        
    def build(self, x):
        return self.model(x)
        
if __name__ == "__main__":
    graph = GraphModel()
    # Partition the input data for data parallelism.
    in_stage0 = flow.randn(4, 5, placement=P01, sbp=flow.sbp.split(dim=0))
    out_stage0, out_stage1 = graph(in_stage0)
    print(out_stage0.shape, out_stage1.shape)  # (4, 8) (4, 3)
