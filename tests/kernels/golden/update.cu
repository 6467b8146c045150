static __device__ float from_bfloat(unsigned short bits) {
  return __int_as_float((int)((unsigned int)bits << 16));
}

extern "C" __global__ void __launch_bounds__(256) fused(
    const float *x0, const unsigned short *x1, const float *x2, float *y0, long long columns, long long n0, long long x0_0, long long x1_0, long long x1_k, long long y0_0) {
  const float v0 = *x2;
  const long long count = columns * n0;
  for (long long i = (long long)blockIdx.x * 256 + threadIdx.x; i < count; i += (long long)gridDim.x * 256) {
    const long long k = i % columns;
    long long rest = i / columns;
    const long long i0 = rest;
    const float v1 = x0[i0 * x0_0 + k];
    const float v2 = from_bfloat(x1[i0 * x1_0 + k * x1_k]);
    const float v3 = v2;
    const float v4 = v0 * v3;
    const float v5 = v1 - v4;
    y0[i0 * y0_0 + k] = v5;
  }
}
