extern "C" __global__ void __launch_bounds__(256) fused(
    const float *__restrict__ x0, float *__restrict__ y0, int columns, int n0, int x0_0, int y0_0) {
  for (int first = (int)blockIdx.x * 32; first < columns; first += (int)gridDim.x * 32) {
    const int k = first + threadIdx.x;
    float total0 = (-0.0f), lost0 = (-0.0f);
#pragma unroll 8
    for (int i0 = 0; i0 < (k < columns ? n0 : 0); ++i0) {
      const float taken0 = x0[i0 * x0_0 + k] - lost0, after0 = total0 + taken0;
      lost0 = (after0 - total0) - taken0;
      if (lost0 != lost0) lost0 = 0;
      total0 = after0;
    }
    if (k < columns) {
      y0[k] = total0;
    }
  }
}
