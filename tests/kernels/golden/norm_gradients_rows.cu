template <typename T, int N> struct alignas(N * sizeof(T) < 16 ? N * sizeof(T) : 16) Vector {
  T at[N];
};

template <int BYTES> static __device__ void copied(void *to, const void *from) {  // by the widest accesses
  if constexpr (BYTES % 16 == 0) {
#pragma unroll
    for (int k = 0; k < BYTES / 16; ++k) ((uint4 *)to)[k] = ((const uint4 *)from)[k];
  } else if constexpr (BYTES == 8) {
    *(uint2 *)to = *(const uint2 *)from;
  } else if constexpr (BYTES == 4) {
    *(unsigned int *)to = *(const unsigned int *)from;
  } else {
    static_assert(BYTES == 2, "a vector of two to eight bytes, or of whole words of sixteen");
    *(unsigned short *)to = *(const unsigned short *)from;
  }
}

template <int N, typename T> static __device__ Vector<T, N> loaded(const T *from) {
  Vector<T, N> values;
  copied<N * sizeof(T)>(&values, from);
  return values;
}

template <typename T, int LANES, typename Together> static __device__ T reduced(T mine, Together together) {
  for (int half = LANES > 32 ? 16 : LANES / 2; half > 0; half /= 2)
    mine = together(mine, T(__shfl_xor_sync(0xffffffff, mine, half)));
  if (LANES > 32) {
    static __shared__ T parts[8];
    const int warp = (threadIdx.y * LANES + threadIdx.x) / 32, first = warp / (LANES / 32) * (LANES / 32);
    if (threadIdx.x % 32 == 0) parts[warp] = mine;
    __syncthreads();
    mine = parts[first];
    for (int k = 1; k < LANES / 32; ++k) mine = together(mine, parts[first + k]);
    __syncthreads();
  }
  return mine;
}

struct Sum {
  template <typename T> __device__ T operator()(T a, T b) const { return a + b; }
};

extern "C" __global__ void __launch_bounds__(256) fused(
    const float *__restrict__ x0, const float *__restrict__ x1, float *__restrict__ y0, int columns, int n0, int x0_0, int x1_0, int y0_0) {
  const double v0 = (double)columns;
  const float v1 = (float)v0;
  const int rows = n0;
  for (int first = (int)blockIdx.x * 8; first < rows; first += (int)gridDim.x * 8) {
    const int at = first + threadIdx.y;
    const bool there = at < rows;
    const int width = there ? columns : 0;
    const int row = there ? at : 0;
    const int i0 = row;
    float r2_0 = (-0.0f);
    for (int k = threadIdx.x * 8; k < width; k += 256) {
      const Vector<float, 8> c0 = loaded<8>(x0 + i0 * x0_0 + k);
      const Vector<float, 8> c1 = loaded<8>(x1 + i0 * x1_0 + k);
#pragma unroll
      for (int j = 0; j < 8; ++j) {
        const float v2 = c0.at[j];
        const float v3 = c1.at[j];
        const float v4 = v2 * v3;
        r2_0 = r2_0 + v4;
      }
    }
    const float v2 = reduced<float, 32>(r2_0, Sum{});
    const float v3 = v2 / v1;
    if (there && threadIdx.x == 0) y0[i0 * y0_0] = v3;
  }
}
