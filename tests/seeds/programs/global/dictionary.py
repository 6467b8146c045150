import jobflow as flow

placement = flow.placement("cuda", {0: [0, 1]})
x = flow.randn(4, 5, placement=placement, sbp=flow.sbp.split(0))
print(x.shape, x.placement)
