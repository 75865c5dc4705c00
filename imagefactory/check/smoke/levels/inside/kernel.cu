// What run-time compilers do in small: a kernel, a header of the CUDA library, a call of the runtime.
#include <cuda_bf16.h>
#include <cuda/std/cstdint>

__global__ void scale(__nv_bfloat16 *values, float factor, cuda::std::uint32_t count) {
    const cuda::std::uint32_t index = blockIdx.x * blockDim.x + threadIdx.x;
    if (index < count) values[index] = __float2bfloat16(__bfloat162float(values[index]) * factor);
}

extern "C" int run(void *values, float factor, unsigned count) {
    scale<<<(count + 255) / 256, 256>>>(static_cast<__nv_bfloat16 *>(values), factor, count);
    return static_cast<int>(cudaGetLastError());
}
