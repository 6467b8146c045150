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

extern "C" __global__ void __launch_bounds__(128, 3) fused(
    const float *__restrict__ x0, const float *__restrict__ x1, const float *__restrict__ x2, float *__restrict__ y0, float *__restrict__ y1, float *__restrict__ sums0, int columns, int n0, int x0_0, int x1_0, int x2_0, int y0_0, int y1_0) {
  const double v0 = (double)columns;
  const float v1 = (float)v0;
  const int rows = n0;
  alignas(16) static __shared__ float part0[4][768];
  for (int part = blockIdx.x; part * 4 < rows; part += gridDim.x) {
    Vector<float, 8> s0[3];
#pragma unroll
    for (int c = 0; c < 3; ++c) {
#pragma unroll
      for (int j = 0; j < 8; ++j) {
        s0[c].at[j] = (-0.0f);
      }
    }
    const int stop = min(rows, (part + 1) * 4);
#pragma unroll 1
    for (int first = part * 4; first < stop; first += 4) {
      const int at = first + threadIdx.y;
      const bool there = at < stop;
      const int width = there ? columns : 0;
      const int row = there ? at : 0;
      const int i0 = row;
      Vector<float, 8> c0[3];
      Vector<float, 8> c1[3];
#pragma unroll
      for (int c = 0; c < 3; ++c) {
        const int k = (threadIdx.x + c * 32) * 8;
        if (k < width) {
          c0[c] = loaded<8>(x0 + i0 * x0_0 + k);
          c1[c] = loaded<8>(x1 + i0 * x1_0 + k);
        }
      }
      const float v2 = x2[i0 * x2_0];
      float r3_0 = (-0.0f);
#pragma unroll
      for (int c = 0; c < 3; ++c) {
        const int k = (threadIdx.x + c * 32) * 8;
        if (k < width) {
#pragma unroll
          for (int j = 0; j < 8; ++j) {
            const float v3 = c0[c].at[j];
            const float v4 = c1[c].at[j];
            const float v5 = v3 * v4;
            r3_0 = r3_0 + v5;
            s0[c].at[j] = s0[c].at[j] + v5;
          }
        }
      }
      const float v3 = reduced<float, 32>(r3_0, Sum{});
      const float v4 = v3 / v1;
#pragma unroll
      for (int c = 0; c < 3; ++c) {
        const int k = (threadIdx.x + c * 32) * 8;
        if (k < width) {
          Vector<float, 8> o0;
#pragma unroll
          for (int j = 0; j < 8; ++j) {
            const float v5 = c0[c].at[j];
            const float v6 = c1[c].at[j];
            const float v7 = v6 * v4;
            const float v8 = v5 - v7;
            const float v9 = v8 * v2;
            o0.at[j] = v9;
          }
          stored(y0 + i0 * y0_0 + k, o0);
        }
      }
      if (there && threadIdx.x == 0) y1[i0 * y1_0] = v4;
    }
#pragma unroll
    for (int c = 0; c < 3; ++c) {
      const int k = (threadIdx.x + c * 32) * 8;
      if (k < columns) stored(&part0[threadIdx.y][k], s0[c]);
    }
    __syncthreads();
    for (int k = threadIdx.y * 32 + threadIdx.x; k < columns; k += 128) {
      float total0 = part0[0][k], lost0 = (-0.0f);
      for (int y = 1; y < 4; ++y) {
        const float taken0 = part0[y][k] - lost0, after0 = total0 + taken0;
        lost0 = (after0 - total0) - taken0;
        if (lost0 != lost0) lost0 = 0;
        total0 = after0;
      }
      sums0[part * columns + k] = total0;
    }
    __syncthreads();
  }
}
