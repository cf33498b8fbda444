#include <array>

#include "ops/contextual_shapes.h"
#include "ops/cuda_forms.h"
#include "ops/gemm.cuh"
#include "ops/partial_sums.cuh"

namespace segue::ops::cuda {
namespace {

template <class T>
__global__ void action_forward_kernel(const float* table, const float* target, const int32_t* code,
                                      int bits, int dim, int64_t n, Matrix<T> y) {
  const int width = bits * dim;
  const int64_t total = n * width, step = static_cast<int64_t>(gridDim.x) * kThreads;
  for (int64_t i = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x; i < total;
       i += step) {
    const int64_t r = i / width;
    const auto c = static_cast<int>(i % width);
    require_row(code[r], (int64_t{1} << bits) + 1);
    const bool is_target = code[r] == 1 << bits;
    const bool is_set = (code[r] >> (c / dim) & 1) != 0;
    y.row(r)[c] = from_float<T>(is_target ? target[c] : is_set ? table[c] : 0.f);
  }
}

/// partials[block] = [sum for the table | sum for the target] over the block's rows.
template <class T>
__global__ void action_backward_kernel(Matrix<const T> dy, const int32_t* code, int bits, int dim,
                                       int64_t n, float* partials) {
  const int width = bits * dim;
  const int64_t each = (n + gridDim.x - 1) / gridDim.x;
  const int64_t begin = static_cast<int64_t>(blockIdx.x) * each;
  const int64_t end = begin + each < n ? begin + each : n;
  for (int c = static_cast<int>(threadIdx.x); c < width; c += kThreads) {
    float table_sum = 0, target_sum = 0;
    for (int64_t r = begin; r < end; ++r) {
      require_row(code[r], (int64_t{1} << bits) + 1);
      const float gradient = to_float(dy.row(r)[c]);
      if (code[r] == 1 << bits) {
        target_sum += gradient;
      } else if ((code[r] >> (c / dim) & 1) != 0) {
        table_sum += gradient;
      }
    }
    float* to = partials + static_cast<int64_t>(blockIdx.x) * 2 * width;
    to[c] = table_sum;
    to[width + c] = target_sum;
  }
}

constexpr size_t kMaxPeriods = 8;
struct CyclicArgs {
  std::array<float, kMaxPeriods> unit, count;
  int periods;
  float pi;
};

template <class T>
__global__ void cyclic_kernel(CyclicArgs a, const int64_t* timestamps, int64_t n, Matrix<T> out) {
  const int64_t total = n * a.periods, step = static_cast<int64_t>(gridDim.x) * kThreads;
  for (int64_t i = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x; i < total;
       i += step) {
    const int64_t r = i / a.periods;
    const auto k = static_cast<size_t>(i % a.periods);
    const float unit = floorf(static_cast<float>(timestamps[r]) / a.unit[k]);
    const float remainder = fmodf(unit, a.count[k]);  // negative before the origin of time
    const float place = remainder < 0 ? remainder + a.count[k] : remainder;
    const float angle = place / a.count[k] * 2.0f * a.pi;
    out.row(r)[2 * k] = from_float<T>(cosf(angle));
    out.row(r)[2 * k + 1] = from_float<T>(sinf(angle));
  }
}

unsigned flat_blocks(int64_t n) {
  return static_cast<unsigned>(std::clamp<int64_t>(divide_up(n, kThreads), 1, kMaxBlocks));
}

}  // namespace

void contextual_linear_forward(const Exec& exec, const Tensor& e, const Tensor& weight,
                               const Tensor& bias, const Tensor& y) {
  check_contextual_shapes(e, weight, y);
  if (y.elements() == 0) return;
  const Arena::Mark mark(*exec.arena);
  const Tensor a = product_operand(exec, e), b = product_operand(exec, weight);
  const Tensor used_bias = in_type(exec, bias, y.dtype);
  GemmExtra extra;
  if (bias) extra.bias = used_bias.select(0);
  const Batch batch{weight.size(0), a.stride(0), b.stride(0), y.stride(1),
                    bias ? used_bias.stride(0) : 0};
  gemm_batch(exec, Trans::kNo, a.select(0), Trans::kNo, b.select(0), contextual_slot(y, 0), extra,
             batch);
}

void contextual_linear_backward(const Exec& exec, const Tensor& dy, const Tensor& e,
                                const Tensor& weight, const Tensor& de, const Tensor& dweight,
                                const Tensor& dbias) {
  check_contextual_shapes(e, weight, dy);
  const int64_t slots = weight.size(0);
  if (slots == 0) return;
  const Arena::Mark mark(*exec.arena);
  Tensor gradient = dy;
  if (dy.dtype != (exec.rounds_to_bf16() ? DType::kBf16 : DType::kF32)) {
    SEGUE_ASSERT(dy.is_contiguous(), "contextual_linear: strided gradient of another type");
    gradient = product_operand(exec, dy);
  }
  if (de) {
    const Tensor b = product_operand(exec, weight);
    const Batch batch{slots, gradient.stride(1), b.stride(0), de.stride(0), 0};
    gemm_batch(exec, Trans::kNo, contextual_slot(gradient, 0), Trans::kYes, b.select(0),
               de.select(0), {}, batch);
  }
  if (dweight) {
    const Tensor a = product_operand(exec, e);
    GemmExtra add_to;
    add_to.accumulate = true;
    const Batch batch{slots, a.stride(0), gradient.stride(1), dweight.stride(0), 0};
    gemm_batch(exec, Trans::kYes, a.select(0), Trans::kNo, contextual_slot(gradient, 0),
               dweight.select(0), add_to, batch);
  }
  if (!dbias) return;
  if (dy.stride(1) == dy.size(2) && dbias.is_contiguous()) {  // all slots in one pass
    Tensor rows = contextual_slot(dy, 0);
    rows.sizes[1] = slots * dy.size(2);
    column_sum(exec, rows, dbias.reshape({rows.size(1)}));
    return;
  }
  for (int64_t s = 0; s < slots; ++s) column_sum(exec, contextual_slot(dy, s), dbias.select(s));
}

void action_encode_forward(const Exec& exec, const Tensor& table, const Tensor& target,
                           const Tensor& code, const Tensor& y) {
  const int64_t bits = table.size(0), dim = table.size(1), width = bits * dim;
  SEGUE_ASSERT(code.size(0) == y.size(0) && y.size(1) == width && target.elements() == width,
               "action_encode: shapes differ");
  SEGUE_ASSERT(table.is_contiguous() && target.is_contiguous(), "action_encode: strided table");
  if (y.elements() == 0) return;
  const cudaStream_t stream = stream_of(exec);
  dispatch_type(y.dtype, [&](auto zero_value) {
    using T = decltype(zero_value);
    action_forward_kernel<T><<<flat_blocks(y.elements()), kThreads, 0, stream>>>(
        device_ptr<float>(table), device_ptr<float>(target), device_ptr<int32_t>(code),
        static_cast<int>(bits), static_cast<int>(dim), y.size(0), matrix_of<T>(y));
    check_launch();
  });
}

void action_encode_backward(const Exec& exec, const Tensor& dy, const Tensor& code,
                            const Tensor& dtable, const Tensor& dtarget) {
  const int64_t bits = dtable.size(0), dim = dtable.size(1), width = bits * dim;
  SEGUE_ASSERT(code.size(0) == dy.size(0) && dy.size(1) == width && dtarget.elements() == width,
               "action_encode: shapes differ");
  SEGUE_ASSERT(dtable.is_contiguous() && dtarget.is_contiguous(),
               "action_encode: strided gradient");
  if (dy.elements() == 0) return;
  const cudaStream_t stream = stream_of(exec);
  const Arena::Mark mark(*exec.arena);
  const int64_t blocks = row_blocks(dy.size(0), kPartialBlocks);
  PartialSums partials(exec, blocks, 2 * width);
  dispatch_type(dy.dtype, [&](auto zero_value) {
    using T = decltype(zero_value);
    action_backward_kernel<T><<<static_cast<unsigned>(blocks), kThreads, 0, stream>>>(
        input_of<T>(dy), device_ptr<int32_t>(code), static_cast<int>(bits), static_cast<int>(dim),
        dy.size(0), partials.data());
    check_launch();
  });
  partials.fold(dtable, 0, width);
  partials.fold(dtarget, width, width);
}

void cyclic_time_features(const Exec& exec, const CyclicParams& p, const Tensor& timestamps,
                          const Tensor& out) {
  const size_t periods = p.unit_seconds.size();
  SEGUE_ASSERT(p.units_per_period.size() == periods && periods <= kMaxPeriods,
               "cyclic_time_features: periods");
  SEGUE_ASSERT(
      out.size(0) == timestamps.elements() && out.size(1) == 2 * static_cast<int64_t>(periods),
      "cyclic_time_features: shape of the result");
  if (out.elements() == 0) return;
  CyclicArgs a{};
  a.periods = static_cast<int>(periods);
  a.pi = static_cast<float>(p.pi);
  for (size_t i = 0; i < periods; ++i) {
    a.unit[i] = static_cast<float>(p.unit_seconds[i]);
    a.count[i] = static_cast<float>(p.units_per_period[i]);
  }
  const cudaStream_t stream = stream_of(exec);
  dispatch_type(out.dtype, [&](auto zero_value) {
    using T = decltype(zero_value);
    cyclic_kernel<T><<<flat_blocks(out.size(0) * a.periods), kThreads, 0, stream>>>(
        a, device_ptr<int64_t>(timestamps), out.size(0), matrix_of<T>(out));
    check_launch();
  });
}

}  // namespace segue::ops::cuda
