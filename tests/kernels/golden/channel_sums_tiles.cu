static __device__ float from_bfloat(unsigned short bits) {
  return __int_as_float((int)((unsigned int)bits << 16));
}

static __device__ unsigned short to_bfloat(float x) {  // the nearest, to even where two are
#if __CUDA_ARCH__ >= 800
  unsigned short bits;
  asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(bits) : "f"(x));
  return bits;
#else
  unsigned int bits = (unsigned int)__float_as_int(x);
  return x != x ? 0x7fc0 : (unsigned short)((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
#endif
}

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
    const unsigned short *__restrict__ x0, const float *__restrict__ x1, unsigned short *__restrict__ y0, float *__restrict__ sums0, int columns, int n0, unsigned int tiles_m, int tiles_s, int x0_0, int x1_0, int y0_0) {
  const int rows = n0;
  const int blocks = (rows + 63) / 64, tiles = (columns + 63) / 64;
  static __shared__ float part0[4][64];
  for (int tile = blockIdx.x; tile < (blocks + 3) / 4 * tiles; tile += gridDim.x) {
    const int down = divided(tile, tiles_m, tiles_s), left = (tile - down * tiles) * 64;
    const int k = left + threadIdx.x * 2, first = down * 4 + threadIdx.y;
    if (k < columns && first < blocks) {
      float f0[2];
      const Vector<float, 2> c1 = loaded<2>(x1 + k);
#pragma unroll
      for (int j = 0; j < 2; ++j) {
        const int e = k + j;
        const float v0 = c1.at[j];
        f0[j] = v0;
      }
      const int block = first;
      float sum0[2];
#pragma unroll
      for (int j = 0; j < 2; ++j) {
        sum0[j] = (-0.0f);
      }
      const int stop = min(rows, (block + 1) * 64);
#pragma unroll 1
      for (int at = block * 64; at < stop; at += 16) {
        Vector<unsigned short, 2> c0[16];
#pragma unroll
        for (int u = 0; u < 16; ++u) {
          const int row = min(at + u, stop - 1);
          const int i0 = row;
          c0[u] = loaded<2>(x0 + i0 * x0_0 + k);
        }
#pragma unroll
        for (int u = 0; u < 16; ++u) {
          if (at + u < stop) {
            const int row = at + u;
            const int i0 = row;
            Vector<unsigned short, 2> o0;
#pragma unroll
            for (int j = 0; j < 2; ++j) {
              const float v1 = from_bfloat(c0[u].at[j]);
              const float v2 = v1;
              const float v3 = v2 - f0[j];
              const float v4 = from_bfloat(to_bfloat(v3));
              sum0[j] = sum0[j] + v3;
              o0.at[j] = to_bfloat(v4);
            }
            stored(y0 + i0 * y0_0 + k, o0);
          }
        }
      }
#pragma unroll
      for (int j = 0; j < 2; ++j) {
        part0[threadIdx.y][j * 32 + threadIdx.x] = sum0[j];
      }
    }
    __syncthreads();
    for (int s = threadIdx.y * 32 + threadIdx.x; s < 64; s += 128) {
      const int place = s % 64, y = s / 64 * 4;
      const int k = left + place % 32 * 2 + place / 32;
      const int first = down * 4 + y;
      if (k < columns && first < blocks) {
        const int members = min((int)4, blocks - first);
        float total0 = part0[y][place], lost0 = (-0.0f);
        for (int m = 1; m < members; ++m) {
          const float taken0 = part0[y + m][place] - lost0, after0 = total0 + taken0;
          lost0 = (after0 - total0) - taken0;
          if (lost0 != lost0) lost0 = 0;
          total0 = after0;
        }
        sums0[first / 4 * columns + k] = total0;
      }
    }
    __syncthreads();
  }
}
