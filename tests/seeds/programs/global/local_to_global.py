import jobflow as flow

x = flow.randn(2, 5)
placement = flow.placement("cuda", [0, 1])
sbp = flow.sbp.split(0)
x_global = x.to_global(placement=placement, sbp=sbp)
print(x_global.shape)
