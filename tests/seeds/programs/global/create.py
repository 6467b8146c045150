import jobflow as flow

placement = flow.placement("cuda", [0, 1])
sbp = flow.sbp.split(0)
x = flow.randn(4, 5, placement=placement, sbp=sbp)
print(x.shape)

piece = x.to_local()
print(piece.shape)
