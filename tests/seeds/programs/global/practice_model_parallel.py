import jobflow as flow

placement = flow.placement("cuda", [0, 1])
x = flow.randn(4, 5, placement=placement, sbp=flow.sbp.broadcast)
w = flow.randn(5, 8, placement=placement, sbp=flow.sbp.split(1))
y = flow.matmul(x, w)
print(y.sbp)
print(y.shape)
