template <typename T, int LANES, typename Together> static __device__ T reduced(T mine, Together together) {
  if (LANES > 32) {
    static __shared__ T parts[LANES];
    parts[threadIdx.x] = mine;
    __syncthreads();
    for (int half = LANES / 2; half >= 32; half /= 2) {
      if (threadIdx.x < half) parts[threadIdx.x] = together(parts[threadIdx.x], parts[threadIdx.x + half]);
      __syncthreads();
    }
    mine = parts[threadIdx.x % 32];
    __syncthreads();
  }
  for (int half = LANES > 32 ? 16 : LANES / 2; half > 0; half /= 2)
    mine = together(mine, T(__shfl_xor_sync(0xffffffff, mine, half)));
  return mine;
}

struct Sum {
  template <typename T> __device__ T operator()(T a, T b) const { return a + b; }
};

extern "C" __global__ void __launch_bounds__(256) fused(
    const float *x0, const float *x1, const float *x2, float *y0, float *y1, float *y2, float *sums0, int columns, int n0, int x0_0, int x1_0, int x2_0, int y0_0, int y1_0, int y2_0) {
  const double v0 = (double)columns;
  const float v1 = (float)v0;
  const int rows = n0;
  const int blocks = (rows + 63) / 64;
  for (int first = (int)blockIdx.x * 1; first < blocks; first += (int)gridDim.x * 1) {
    const int block = first + threadIdx.y;
    if (block < blocks) for (int k = threadIdx.x; k < columns; k += 256) {
      sums0[block * columns + k] = (-0.0f);
    }
    for (int step = 0; step < 64; ++step) {
      const int at = block * 64 + step;
      const bool there = at < rows;
      const int width = there ? columns : 0;
      int rest = there ? at : 0;
      const int i0 = rest;
      const float v2 = x2[i0 * x2_0];
      float r3_0 = (-0.0f);
      for (int k = threadIdx.x; k < width; k += 256) {
        const float v3 = x0[i0 * x0_0 + k];
        const float v4 = x1[i0 * x1_0 + k];
        const float v5 = v3 * v4;
        sums0[block * columns + k] = sums0[block * columns + k] + v5;
        r3_0 = r3_0 + v5;
      }
      const float v3 = reduced<float, 256>(r3_0, Sum{});
      const float v4 = v3 / v1;
      for (int k = threadIdx.x; k < width; k += 256) {
        const float v5 = x0[i0 * x0_0 + k];
        const float v6 = x1[i0 * x1_0 + k];
        const float v7 = v6 * v4;
        const float v8 = v5 - v7;
        const float v9 = v8 * v2;
        y0[i0 * y0_0 + k] = v9;
      }
      if (there && threadIdx.x == 0) y1[i0 * y1_0] = v4;
    }
  }
}

extern "C" __global__ void __launch_bounds__(256) fused_columns(
    float *y2, float *sums0, int columns, int n0, int y2_0) {
  const double v0 = (double)columns;
  const float v1 = (float)v0;
  const int blocks = (n0 + 63) / 64;
  for (int k = (int)blockIdx.x * 256 + threadIdx.x; k < columns; k += (int)gridDim.x * 256) {
    float total0 = (-0.0f);
    float lost0 = (-0.0f);
    for (int block = 0; block < blocks; ++block) {
      const float taken = sums0[block * columns + k] - lost0, after = total0 + taken;
      lost0 = (after - total0) - taken;
      if (lost0 != lost0) lost0 = 0.0f;
      total0 = after;
    }
    y2[k] = total0;
  }
}
