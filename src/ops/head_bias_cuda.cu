#include "ops/cuda_forms.h"
#include "ops/partial_sums.cuh"

namespace segue::ops::cuda {
namespace {

/// A warp takes one head of one row.
template <class From, class To>
__global__ void __launch_bounds__(kThreads)
    dot_kernel(Matrix<const From> x, float factor, const float* bias, int64_t rows, int heads,
               int width, Matrix<To> y, float* dot) {
  const int64_t i = static_cast<int64_t>(blockIdx.x) * kWarpsPerBlock + threadIdx.x / kWarp;
  if (i >= rows * heads) return;
  const int64_t r = i / heads;
  const int first = static_cast<int>(i % heads) * width;
  float sum = 0;
  for (int c = first + static_cast<int>(threadIdx.x % kWarp); c < first + width; c += kWarp) {
    const float value = factor * to_float(x.row(r)[c]);
    y.row(r)[c] = from_float<To>(value);
    sum += value * bias[c];
  }
  sum = warp_sum(sum);
  if (threadIdx.x % kWarp == 0) dot[i] = sum;
}

template <class From, class To>
__global__ void __launch_bounds__(kThreads)
    add_kernel(Matrix<const From> x, const float* weights, const float* bias, float factor,
               int64_t rows, int heads, int width, Matrix<To> y) {
  const int columns = heads * width;
  const int64_t i = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  if (i >= rows * columns) return;
  const int64_t r = i / columns;
  const auto c = static_cast<int>(i % columns);
  const float value = to_float(x.row(r)[c]) + weights[r * heads + c / width] * bias[c];
  y.row(r)[c] = from_float<To>(factor * value);
}

constexpr int kMaxParts = 4;

struct GradientParts {
  struct Part {
    const void* x;
    int64_t stride;
    const float* weights;
    bool is_bf16;
    int heads, columns;
    int first_block, first_column;
  };
  Part parts[kMaxParts];
  int count = 0;
};

/// partials[blockIdx.x][column] = the sum over this block's rows; a thread has one column.
__global__ void __launch_bounds__(kThreads)
    gradients_kernel(const __grid_constant__ GradientParts list, int64_t rows, int64_t rows_each,
                     int64_t stride, float* partials) {
  const auto block = static_cast<int>(blockIdx.y);
  int which = list.count - 1;
  while (block < list.parts[which].first_block) --which;
  const GradientParts::Part& p = list.parts[which];
  const int c = (block - p.first_block) * kThreads + static_cast<int>(threadIdx.x);
  if (c >= p.columns) return;
  const int64_t begin = blockIdx.x * rows_each, end = min(begin + rows_each, rows);
  const int head = p.weights != nullptr ? c / (p.columns / p.heads) : 0;
  const auto sum = [&](const auto* x) {
    float result = 0;
#pragma unroll 8
    for (int64_t r = begin; r < end; ++r) {
      const float weight = p.weights != nullptr ? p.weights[r * p.heads + head] : 1.f;
      result += weight * to_float(x[r * p.stride + c]);
    }
    return result;
  };
  float* to = partials + blockIdx.x * stride + p.first_column + c;
  *to = p.is_bf16 ? sum(static_cast<const bf16*>(p.x)) : sum(static_cast<const float*>(p.x));
}

void check_shapes(const Tensor& x, const Tensor& by_head, const Tensor& bias, const Tensor& y) {
  SEGUE_ASSERT(x.size(0) == y.size(0) && x.size(1) == y.size(1) && x.size(0) == by_head.size(0) &&
                   x.size(1) % by_head.size(1) == 0 && bias.elements() == x.size(1) &&
                   bias.is_contiguous() && by_head.is_contiguous(),
               "head_bias: shapes differ");
}

template <class F>
void dispatch_both(const Tensor& x, const Tensor& y, F&& f) {
  dispatch_type(x.dtype, [&](auto x_zero) {
    dispatch_type(y.dtype, [&](auto y_zero) { f(x_zero, y_zero); });
  });
}

}  // namespace

void head_bias_dot(const Exec& exec, const Tensor& x, double factor, const Tensor& bias,
                   const Tensor& y, const Tensor& dot) {
  check_shapes(x, dot, bias, y);
  const int64_t rows = x.size(0), heads = dot.size(1);
  if (rows == 0) return;
  dispatch_both(x, y, [&](auto x_zero, auto y_zero) {
    using From = decltype(x_zero);
    using To = decltype(y_zero);
    const auto blocks = static_cast<unsigned>(divide_up(rows * heads, kWarpsPerBlock));
    dot_kernel<From, To><<<blocks, kThreads, 0, stream_of(exec)>>>(
        input_of<From>(x), static_cast<float>(factor), device_ptr<float>(bias), rows,
        static_cast<int>(heads), static_cast<int>(x.size(1) / heads), matrix_of<To>(y),
        device_ptr<float>(dot));
    check_launch();
  });
}

void head_bias_add(const Exec& exec, const Tensor& x, const Tensor& weights, const Tensor& bias,
                   double factor, const Tensor& y) {
  check_shapes(x, weights, bias, y);
  const int64_t rows = x.size(0), heads = weights.size(1);
  if (rows == 0) return;
  dispatch_both(x, y, [&](auto x_zero, auto y_zero) {
    using From = decltype(x_zero);
    using To = decltype(y_zero);
    const auto blocks = static_cast<unsigned>(divide_up(x.elements(), kThreads));
    add_kernel<From, To><<<blocks, kThreads, 0, stream_of(exec)>>>(
        input_of<From>(x), device_ptr<float>(weights), device_ptr<float>(bias),
        static_cast<float>(factor), rows, static_cast<int>(heads),
        static_cast<int>(x.size(1) / heads), matrix_of<To>(y));
    check_launch();
  });
}

void head_bias_gradients(const Exec& exec, std::span<const HeadBiasGradient> parts) {
  SEGUE_ASSERT(!parts.empty() && parts.size() <= kMaxParts, "head_bias_gradients: 1 to 4 parts");
  const int64_t rows = parts.front().x.size(0);
  if (rows == 0) return;
  GradientParts list;
  int blocks = 0, columns = 0;
  for (const HeadBiasGradient& p : parts) {
    SEGUE_ASSERT(p.x.rank == 2 && p.x.size(0) == rows && p.to.is_contiguous() &&
                     p.to.elements() == p.x.size(1) &&
                     (!p.weights || (p.weights.is_contiguous() && p.weights.size(0) == rows &&
                                     p.x.size(1) % p.weights.size(1) == 0)),
                 "head_bias_gradients: shapes differ");
    GradientParts::Part& to = list.parts[list.count++];
    dispatch_type(p.x.dtype, [&](auto zero_value) {
      const auto x = input_of<decltype(zero_value)>(p.x);
      to.x = x.data;
      to.stride = x.stride;
    });
    to.is_bf16 = p.x.dtype == DType::kBf16;
    to.weights = device_ptr<float>(p.weights);
    to.heads = p.weights ? static_cast<int>(p.weights.size(1)) : 1;
    to.columns = static_cast<int>(p.x.size(1));
    to.first_block = blocks;
    to.first_column = columns;
    blocks += static_cast<int>(divide_up(to.columns, kThreads));
    columns += to.columns;
  }
  constexpr int64_t kRowsEach = 16;
  const int64_t rows_each = std::max(kRowsEach, divide_up(rows, kPartialBlocks));
  const int64_t row_groups = divide_up(rows, rows_each);
  const Arena::Mark mark(*exec.arena);
  PartialSums partials(exec, row_groups, columns);
  const dim3 grid(static_cast<unsigned>(row_groups), static_cast<unsigned>(blocks));
  gradients_kernel<<<grid, kThreads, 0, stream_of(exec)>>>(list, rows, rows_each, columns,
                                                           partials.data());
  check_launch();
  for (size_t i = 0; i < parts.size(); ++i) {
    partials.fold(parts[i].to, list.parts[i].first_column, list.parts[i].columns);
  }
}

}  // namespace segue::ops::cuda
