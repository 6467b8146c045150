static __device__ float from_bfloat(unsigned short bits) {
  return __int_as_float((int)((unsigned int)bits << 16));
}

extern "C" __global__ void __launch_bounds__(256) fused(
    const float *x0, const unsigned short *__restrict__ x1, const float *__restrict__ x2, float *y0, int columns, int x1_k) {
  const float v0 = *x2;
  const int count = columns;
  for (int i = (int)blockIdx.x * 256 + threadIdx.x; i < count; i += (int)gridDim.x * 256) {
    const int k = i;
    const float v1 = x0[k];
    const float v2 = from_bfloat(x1[k * x1_k]);
    const float v3 = v2;
    const float v4 = v0 * v3;
    const float v5 = v1 - v4;
    y0[k] = v5;
  }
}
