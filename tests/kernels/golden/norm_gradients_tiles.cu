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

extern "C" __global__ void __launch_bounds__(128, 4) fused(
    const float *__restrict__ x0, const float *__restrict__ x1, const float *__restrict__ x2, const float *__restrict__ x3, float *__restrict__ y0, float *__restrict__ sums0, int columns, int n0, unsigned int tiles_m, int tiles_s, int x0_0, int x1_0, int x2_0, int x3_0, int y0_0) {
  const int rows = n0;
  const int blocks = (rows + 63) / 64, tiles = (columns + 63) / 64;
  for (int tile = blockIdx.x; tile < (blocks + 0) / 1 * tiles; tile += gridDim.x) {
    const int down = divided(tile, tiles_m, tiles_s), left = (tile - down * tiles) * 64;
    const int k = left + threadIdx.x * 2, first = down * 1 + threadIdx.y;
    if (k < columns && first < blocks) {
      const int block = first;
      float sum0[2];
#pragma unroll
      for (int j = 0; j < 2; ++j) {
        sum0[j] = (-0.0f);
      }
      const int stop = min(rows, (block + 1) * 64);
#pragma unroll 1
      for (int at = block * 64; at < stop; at += 8) {
        Vector<float, 1> c3[8];
        Vector<float, 1> c2[8];
        Vector<float, 2> c0[8];
        Vector<float, 2> c1[8];
#pragma unroll
        for (int u = 0; u < 8; ++u) {
          const int row = min(at + u, stop - 1);
          const int i0 = row;
          c3[u].at[0] = x3[i0 * x3_0];
          c2[u].at[0] = x2[i0 * x2_0];
          c0[u] = loaded<2>(x0 + i0 * x0_0 + k);
          c1[u] = loaded<2>(x1 + i0 * x1_0 + k);
        }
#pragma unroll
        for (int u = 0; u < 8; ++u) {
          if (at + u < stop) {
            const int row = at + u;
            const int i0 = row;
            const float v0 = c3[u].at[0];
            const float v1 = c2[u].at[0];
            Vector<float, 2> o0;
#pragma unroll
            for (int j = 0; j < 2; ++j) {
              const float v2 = c0[u].at[j];
              const float v3 = c1[u].at[j];
              const float v4 = v3 * v0;
              const float v5 = v2 - v4;
              const float v6 = v5 * v1;
              const float v7 = v2 * v3;
              sum0[j] = sum0[j] + v7;
              o0.at[j] = v6;
            }
            stored(y0 + i0 * y0_0 + k, o0);
          }
        }
      }
#pragma unroll
      for (int j = 0; j < 2; ++j) {
        sums0[block * columns + k + j] = sum0[j];
      }
    }
  }
}
