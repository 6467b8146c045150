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

extern "C" __global__ void __launch_bounds__(256) fused(
    const unsigned short *__restrict__ x0, const unsigned short *__restrict__ x1, unsigned short *__restrict__ y0, int columns, int n0, unsigned int columns_m, int columns_s, int x0_0, int x1_0, int y0_0) {
  const int count = columns / 8 * n0;
  for (int i = (int)blockIdx.x * 256 + threadIdx.x; i < count; i += (int)gridDim.x * 256) {
    const int row = divided(i, columns_m, columns_s);
    const int k = (i - row * (columns / 8)) * 8;
    const int i0 = row;
    const Vector<unsigned short, 8> c0 = loaded<8>(x0 + i0 * x0_0 + k);
    const Vector<unsigned short, 8> c1 = loaded<8>(x1 + i0 * x1_0 + k);
    Vector<unsigned short, 8> o0;
#pragma unroll
    for (int j = 0; j < 8; ++j) {
      const float v0 = from_bfloat(c0.at[j]);
      const float v1 = v0;
      const float v2 = from_bfloat(c1.at[j]);
      const float v3 = v2;
      const float v4 = v1 + v3;
      const float v5 = from_bfloat(to_bfloat(v4));
      o0.at[j] = to_bfloat(v5);
    }
    stored(y0 + i0 * y0_0 + k, o0);
  }
}
