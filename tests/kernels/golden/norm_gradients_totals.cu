extern "C" __global__ void __launch_bounds__(256) fused(
    const float *__restrict__ x0, float *__restrict__ y0, int columns, int n0, int x0_0, int y0_0) {
  static __shared__ float part0[8][32];
  for (int first = (int)blockIdx.x * 32; first < columns; first += (int)gridDim.x * 32) {
    const int k = first + threadIdx.x;
    const int length = (n0 + 7) / 8, begin = threadIdx.y * length, end = min(n0, begin + length);
    float total0 = (-0.0f), lost0 = (-0.0f);
#pragma unroll 8
    for (int i0 = begin; i0 < (k < columns ? end : 0); ++i0) {
      const float taken0 = x0[i0 * x0_0 + k] - lost0, after0 = total0 + taken0;
      lost0 = (after0 - total0) - taken0;
      if (lost0 != lost0) lost0 = 0;
      total0 = after0;
    }
    part0[threadIdx.y][threadIdx.x] = total0;
    __syncthreads();
    lost0 = -0.0, total0 = part0[0][threadIdx.x];
    for (int y = 1; y < 8; ++y) {
      const float taken0 = part0[y][threadIdx.x] - lost0, after0 = total0 + taken0;
      lost0 = (after0 - total0) - taken0;
      if (lost0 != lost0) lost0 = 0;
      total0 = after0;
    }
    __syncthreads();
    if (k < columns && threadIdx.y == 0) {
      y0[k] = total0;
    }
  }
}
