#include <cstdint>

#include "attention/plain_cuda.h"
#include "ops/kernel.cuh"

// A block owns one head of one sequence, its warps take rows in turn. Every sum runs over rows in
// order, inside one warp.

namespace segue::attention::cuda::plain {
namespace {

using ops::cuda::check_launch;
using ops::cuda::device_ptr;
using ops::cuda::kThreads;
using ops::cuda::kWarp;
using ops::cuda::kWarpsPerBlock;
using ops::cuda::Silu;
using ops::cuda::warp_sum;

constexpr int kMostColumns = 256;
using Row = ops::cuda::Lanes<1, kMostColumns / kWarp>;

/// Rows of one head of a [rows, heads, dim] view.
template <class T>
struct Heads {
  T* data = nullptr;
  int64_t row_stride = 0, head_stride = 0;
  int dim = 0;
  __device__ T* row(int64_t r, int head) const {
    return data + r * row_stride + head * head_stride;
  }
};
template <class T>
Heads<T> heads_of(const Tensor& t) {
  return {device_ptr<T>(t), t.stride(0), t.stride(1), static_cast<int>(t.size(2))};
}

template <class T>
struct Args {
  Heads<T> q, k, v;
  const int64_t *offsets, *num_targets;  // the second may be null
  HstuMask mask;
  float alpha, scale;

  struct Sequence {
    int64_t first, n, targets;
  };
  __device__ Sequence sequence(int64_t b) const {
    return {offsets[b], offsets[b + 1] - offsets[b], num_targets != nullptr ? num_targets[b] : 0};
  }
};

__device__ float dot(const Row& a, const Row& b, int columns) {
  float sum = 0;
  Row::for_each(columns, [&](int i, int) { sum += a.v[i][0] * b.v[i][0]; });
  return warp_sum(sum);
}
__device__ void add_scaled(Row& to, float factor, const Row& x, int columns) {
  Row::for_each(columns, [&](int i, int) { to.v[i][0] += factor * x.v[i][0]; });
}

/// f(j) for the rows that row i sees.
template <class F>
__device__ void for_visible(const HstuMask::Row& row, int64_t i, F&& f) {
  for (int64_t j = 0; j < row.prefix; ++j) f(j);
  for (int64_t j = row.lo; j < row.hi; ++j) f(j);
  for (int64_t j = row.group_lo; j <= i; ++j) f(j);
}

template <class T>
__global__ void __launch_bounds__(kThreads) forward_kernel(Args<T> a, Heads<T> o) {
  const auto s = a.sequence(blockIdx.x);
  const int head = static_cast<int>(blockIdx.y);
  for (int64_t i = threadIdx.x / kWarp; i < s.n; i += kWarpsPerBlock) {
    Row q{}, sum{};
    q.load_row(a.q.row(s.first + i, head), a.q.dim);
    for_visible(a.mask.row(i, s.n, s.targets), i, [&](int64_t j) {
      Row k{}, v{};
      k.load_row(a.k.row(s.first + j, head), a.k.dim);
      v.load_row(a.v.row(s.first + j, head), a.v.dim);
      const float p = Silu<float>(a.alpha * dot(q, k, a.q.dim)).value * a.scale;
      add_scaled(sum, p, v, a.v.dim);
    });
    sum.store_row(o.row(s.first + i, head), a.v.dim);
  }
}

template <class T>
__global__ void __launch_bounds__(kThreads) dq_kernel(Args<T> a, Heads<T> grad_o, Heads<T> dq) {
  const auto s = a.sequence(blockIdx.x);
  const int head = static_cast<int>(blockIdx.y);
  for (int64_t i = threadIdx.x / kWarp; i < s.n; i += kWarpsPerBlock) {
    Row q{}, g{}, sum{};
    q.load_row(a.q.row(s.first + i, head), a.q.dim);
    g.load_row(grad_o.row(s.first + i, head), a.v.dim);
    for_visible(a.mask.row(i, s.n, s.targets), i, [&](int64_t j) {
      Row k{}, v{};
      k.load_row(a.k.row(s.first + j, head), a.k.dim);
      v.load_row(a.v.row(s.first + j, head), a.v.dim);
      const float derivative = Silu<float>(a.alpha * dot(q, k, a.q.dim)).derivative;
      add_scaled(sum, dot(g, v, a.v.dim) * derivative * a.scale * a.alpha, k, a.k.dim);
    });
    sum.store_row(dq.row(s.first + i, head), a.q.dim);
  }
}

template <class T>
__global__ void __launch_bounds__(kThreads)
    dkdv_kernel(Args<T> a, Heads<T> grad_o, Heads<T> dk, Heads<T> dv) {
  const auto s = a.sequence(blockIdx.x);
  const int head = static_cast<int>(blockIdx.y);
  for (int64_t j = threadIdx.x / kWarp; j < s.n; j += kWarpsPerBlock) {
    Row k{}, v{}, dk_sum{}, dv_sum{};
    k.load_row(a.k.row(s.first + j, head), a.k.dim);
    v.load_row(a.v.row(s.first + j, head), a.v.dim);
    for (int64_t i = 0; i < s.n; ++i) {
      if (!a.mask.allows(i, j, s.n, s.targets)) continue;
      Row q{}, g{};
      q.load_row(a.q.row(s.first + i, head), a.q.dim);
      g.load_row(grad_o.row(s.first + i, head), a.v.dim);
      const Silu<float> silu(a.alpha * dot(q, k, a.q.dim));
      add_scaled(dv_sum, silu.value * a.scale, g, a.v.dim);
      add_scaled(dk_sum, dot(g, v, a.v.dim) * silu.derivative * a.scale * a.alpha, q, a.q.dim);
    }
    dk_sum.store_row(dk.row(s.first + j, head), a.k.dim);
    dv_sum.store_row(dv.row(s.first + j, head), a.v.dim);
  }
}

const int64_t* on_device(const Exec& exec, std::span<const int64_t> values) {
  if (values.empty()) return nullptr;
  const Tensor there = exec.arena->tensor(DType::kI64, {static_cast<int64_t>(values.size())});
  copy(there, host_view(values), exec.stream);
  return device_ptr<int64_t>(there);
}

template <class T>
Args<T> arguments(const Exec& exec, const HstuAttentionParams& p) {
  return {heads_of<T>(p.q),
          heads_of<T>(p.k),
          heads_of<T>(p.v),
          on_device(exec, p.offsets),
          on_device(exec, p.num_targets),
          p.mask,
          static_cast<float>(p.alpha),
          static_cast<float>(p.scale)};
}

dim3 grid_of(const HstuAttentionParams& p) {
  return {static_cast<unsigned>(p.offsets.size() - 1), static_cast<unsigned>(p.q.size(1))};
}

}  // namespace

void forward(const Exec& exec, const HstuAttentionParams& p, const Tensor& o) {
  ops::cuda::dispatch_storage(p.q.dtype, [&](auto zero_value) {
    using T = decltype(zero_value);
    forward_kernel<T><<<grid_of(p), kThreads, 0, ops::cuda::stream_of(exec)>>>(
        arguments<T>(exec, p), heads_of<T>(o));
    check_launch();
  });
}

void backward(const Exec& exec, const HstuAttentionParams& p, const Tensor& grad_o,
              const Tensor& dq, const Tensor& dk, const Tensor& dv) {
  ops::cuda::dispatch_storage(p.q.dtype, [&](auto zero_value) {
    using T = decltype(zero_value);
    const Args<T> a = arguments<T>(exec, p);
    const cudaStream_t stream = ops::cuda::stream_of(exec);
    dq_kernel<T><<<grid_of(p), kThreads, 0, stream>>>(a, heads_of<T>(grad_o), heads_of<T>(dq));
    check_launch();
    dkdv_kernel<T><<<grid_of(p), kThreads, 0, stream>>>(a, heads_of<T>(grad_o), heads_of<T>(dk),
                                                        heads_of<T>(dv));
    check_launch();
  });
}

}  // namespace segue::attention::cuda::plain
