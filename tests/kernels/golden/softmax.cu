template <typename T> static __device__ T larger(T a, T b) {  // NaN if one is
  return a > b || a != a ? a : b;
}

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

struct Largest {
  template <typename T> __device__ T operator()(T a, T b) const { return larger<T>(a, b); }
};

extern "C" __global__ void __launch_bounds__(256) fused(
    const float *x0, float *y0, int columns, int n0, int x0_0, int y0_0) {
  const int rows = n0;
  for (int first = (int)blockIdx.x * 8; first < rows; first += (int)gridDim.x * 8) {
    const int at = first + threadIdx.y;
    const bool there = at < rows;
    const int width = there ? columns : 0;
    int rest = there ? at : 0;
    const int i0 = rest;
    float r0_0 = __int_as_float(0xff800000);
    for (int k = threadIdx.x; k < width; k += 32) {
      const float v0 = x0[i0 * x0_0 + k];
      r0_0 = larger<float>(r0_0, v0);
    }
    const float v0 = reduced<float, 32>(r0_0, Largest{});
    float r1_0 = (-0.0f);
    for (int k = threadIdx.x; k < width; k += 32) {
      const float v1 = x0[i0 * x0_0 + k];
      const float v2 = v1 - v0;
      const float v3 = expf(v2);
      r1_0 = r1_0 + v3;
    }
    const float v1 = reduced<float, 32>(r1_0, Sum{});
    for (int k = threadIdx.x; k < width; k += 32) {
      const float v2 = x0[i0 * x0_0 + k];
      const float v3 = v2 - v0;
      const float v4 = expf(v3);
      const float v5 = v4 / v1;
      y0[i0 * y0_0 + k] = v5;
    }
  }
}
