#include "ops/cuda_forms.h"
#include "ops/kernel.cuh"

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

}  // namespace segue::ops::cuda
