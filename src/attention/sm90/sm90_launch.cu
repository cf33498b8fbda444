#include <algorithm>

#include <cuda.h>
#include <cudaTypedefs.h>
#include <cuda_runtime.h>

#include "attention/cuda_check.h"
#include "attention/hopper.cuh"
#include "attention/sm90/sm90_kernels.h"
#include "ops/gemm.h"
#include "tensor/launches.h"

namespace segue::attention::hopper {
namespace {

/// From the driver, which only a machine with a GPU has: looked up instead of linked.
PFN_cuTensorMapEncodeTiled_v12000 encode_tiled() {
  static const auto kFunction = [] {
    void* function = nullptr;
    cudaDriverEntryPointQueryResult found{};
    check_cuda(cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &function, 12000,
                                                cudaEnableDefault, &found));
    if (found != cudaDriverEntryPointSuccess) {
      fail(ErrorCode::kUnsupported, "this driver is older than CUDA 12; update it");
    }
    return reinterpret_cast<PFN_cuTensorMapEncodeTiled_v12000>(function);
  }();
  return kFunction;
}

int64_t spill_room(const Exec& exec) {
  return std::min(kMostSpillBytes, exec.arena->capacity() - exec.arena->used() - kWorkListBytes);
}

}  // namespace

BackwardRoom backward_room(const Exec& exec, const HstuAttentionParams& p) {
  if (!is_wide(p)) return {};
  const int64_t rows = p.offsets.back() - p.offsets.front();
  const int64_t sum_rows = most_sum_rows(rows, static_cast<int64_t>(p.offsets.size()) - 1);
  const int64_t sums = sum_rows * 3 * p.q.size(1) * p.q.size(2) * size_of(DType::kF32);
  return {least_spill_bytes(p), std::max<int64_t>(spill_room(exec) - sums, 0)};
}

// Copies move bits: which of the 16-bit types they belong to is all the same.
CUtensorMap tile_map(const Tensor& t, int64_t rows, int box_rows) {
  const auto heads = static_cast<cuuint64_t>(t.size(1));
  const auto bytes = [](int64_t elements) { return static_cast<cuuint64_t>(elements) * 2; };
  const cuuint64_t sizes[3] = {static_cast<cuuint64_t>(t.size(2)), static_cast<cuuint64_t>(rows),
                               heads};
  const cuuint64_t strides[2] = {bytes(t.stride(0)), bytes(heads > 1 ? t.stride(1) : 64)};
  const cuuint32_t box[3] = {kPanelColumns, static_cast<cuuint32_t>(box_rows), 1};
  const cuuint32_t steps[3] = {1, 1, 1};
  CUtensorMap map;
  const CUresult rc =
      encode_tiled()(&map, CU_TENSOR_MAP_DATA_TYPE_BFLOAT16, 3, t.data, sizes, strides, box, steps,
                     CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_128B,
                     CU_TENSOR_MAP_L2_PROMOTION_L2_256B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
  SEGUE_ASSERT(rc == CUDA_SUCCESS, "attention: the driver refuses a tensor map");
  return map;
}

void backward(const Exec& exec, const HstuAttentionParams& p, const Tensor& grad_o,
              const Tensor& dq, const Tensor& dk, const Tensor& dv, const Tensor& dbias) {
  const int64_t width = p.q.size(1) * p.q.size(2);
  Tensor partial;  // sums of dv | dq | dk, as dbias has them
  AttentionSums sums;
  if (dbias) {
    const int64_t rows = p.offsets.back() - p.offsets.front();
    const auto sequences = static_cast<int64_t>(p.offsets.size()) - 1;
    partial = exec.arena->tensor(DType::kF32, {most_sum_rows(rows, sequences), 3 * width});
    sums.v = partial.columns(0, width);
    sums.q = partial.columns(width, width);
    sums.k = partial.columns(2 * width, width);
  }
  const auto finish = [&](const CudaPlan& plan) {
    if (dbias) ops::column_sum(exec, partial.rows(0, plan.sum_rows()), dbias);
  };
  const int64_t spill_bytes = spill_room(exec);
  if (least_spill_bytes(p) > spill_bytes) {
    const CudaPlan plan(exec, p, 0, tile_rows(p));
    backward_dkdv(exec, p, grad_o, dk, dv, plan, 0, nullptr, sums);
    backward_dq(exec, p, grad_o, dq, plan, sums.q);
    return finish(plan);
  }
  const CudaPlan plan(exec, p, spill_bytes, tile_rows(p));
  const Tensor spill = exec.arena->tensor(DType::kU8, {plan.spill_blocks() * kSpillBlockBytes});
  for (int chunk = 0; chunk < plan.chunks(); ++chunk) {
    backward_dkdv(exec, p, grad_o, dk, dv, plan, chunk, spill.data, sums);
    backward_dq_spilled(exec, p, dq, plan, chunk, spill.data, sums.q);
  }
  finish(plan);
}

void launch_kernel(const Exec& exec, const void* kernel, int tiles, int threads, int shared_bytes,
                   void** args) {
  int processors = 0;
  check_cuda(
      cudaDeviceGetAttribute(&processors, cudaDevAttrMultiProcessorCount, exec.device.index));
  check_cuda(
      cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, shared_bytes));
  const dim3 grid(static_cast<unsigned>(std::min(tiles, processors)));
  check_cuda(cudaLaunchKernel(kernel, grid, dim3(static_cast<unsigned>(threads)), args,
                              static_cast<size_t>(shared_bytes),
                              static_cast<cudaStream_t>(exec.stream->handle())));
  count_launches(1);
}

}  // namespace segue::attention::hopper
