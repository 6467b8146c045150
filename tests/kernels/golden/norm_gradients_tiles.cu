static __device__ int divided(int i, unsigned int factor, int shift) {  // multiply and shift
  return (int)((__umulhi((unsigned int)i, factor) + (unsigned int)i) >> shift);
}

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

template <int N, typename T> static __device__ void stored(T *to, const Vector<T, N> &values) {
  copied<N * sizeof(T)>(to, &values);
}

extern "C" __global__ void __launch_bounds__(256) fused(
    const float *__restrict__ x0, const float *__restrict__ x1, const float *__restrict__ x2, const float *__restrict__ x3, float *__restrict__ y0, float *__restrict__ sums0, int columns, int n0, unsigned int tiles_m, int tiles_s, int x0_0, int x1_0, int x2_0, int x3_0, int y0_0) {
  const int rows = n0;
  const int blocks = (rows + 63) / 64, tiles = (columns + 31) / 32;
  static __shared__ float part0[64][33];
  for (int tile = blockIdx.x; tile < blocks * tiles; tile += gridDim.x) {
    const int block = divided(tile, tiles_m, tiles_s), left = (tile - block * tiles) * 32;
    const int high = min((int)64, rows - block * 64);
    for (int s = threadIdx.x; s < 256; s += 256) {
      const int r = s / 4, c = s % 4 * 8;
      const int k = left + c, row = block * 64 + r;
      if (r < high && k < columns) {
        const int i0 = row;
        const float v0 = x3[i0 * x3_0];
        const float v1 = x2[i0 * x2_0];
        const Vector<float, 8> c0 = loaded<8>(x0 + i0 * x0_0 + k);
        const Vector<float, 8> c1 = loaded<8>(x1 + i0 * x1_0 + k);
        Vector<float, 8> o0;
#pragma unroll
        for (int j = 0; j < 8; ++j) {
          const float v2 = c0.at[j];
          const float v3 = c1.at[j];
          const float v4 = v3 * v0;
          const float v5 = v2 - v4;
          const float v6 = v5 * v1;
          const float v7 = v2 * v3;
          part0[r][c + j] = v7;
          o0.at[j] = v6;
        }
        stored(y0 + i0 * y0_0 + k, o0);
      }
    }
    __syncthreads();
    if (threadIdx.x / 32 == 0 && left + threadIdx.x % 32 < columns) {
      float total = (-0.0f);
      for (int r = 0; r < high; ++r) total = total + part0[r][threadIdx.x % 32];
      sums0[block * columns + left + threadIdx.x % 32] = total;
    }
    __syncthreads();
  }
}
