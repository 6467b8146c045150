"""What the fifth document types into two consoles, one after the other, and shows."""

import jobflow as flow

# Create Global Tensor Directly
placement = flow.placement("cuda", [0,1])
sbp = flow.sbp.split(0)
x = flow.randn(4,5,placement=placement, sbp=sbp)
print(x.shape)

# Get Local Tensor from Global Tensor
print(x.to_local())

# Convert Local Tensor to Global Tensor
x = flow.randn(2,5)
placement = flow.placement("cuda", [0,1])
sbp = flow.sbp.split(0)
x_global = x.to_global(placement=placement, sbp=sbp)
print(x_global.shape)

# Data Parallelism
placement = flow.placement("cuda", [0,1])
x = flow.randn(4,5,placement=placement, sbp=flow.sbp.split(0))
w = flow.randn(5,8,placement=placement, sbp=flow.sbp.broadcast)
y = flow.matmul(x,w)
print(y.sbp)
print(y.shape)

# Model Parallelism
placement = flow.placement("cuda", [0,1])
x = flow.randn(4,5,placement=placement, sbp=flow.sbp.broadcast)
w = flow.randn(5,8,placement=placement, sbp=flow.sbp.split(1))
y = flow.matmul(x,w)
print(y.sbp)
print(y.shape)

# The older form of a placement: machine 0, devices 0 and 1
placement = flow.placement("cuda", {0: [0, 1]})
x = flow.randn(4,5,placement=placement, sbp=flow.sbp.broadcast)
w1 = flow.randn(5,8,placement=placement, sbp=flow.sbp.split(1))

# Boxing: two layers of the model-parallel product
w2 = flow.randn(8,6,placement=placement, sbp=flow.sbp.split(1))
z = flow.matmul(flow.matmul(x,w1),w2)
print(z.sbp)
print(z.shape)
