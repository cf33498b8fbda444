#include <algorithm>
#include <type_traits>
#include <utility>

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime.h>

#include "attention/cuda_check.h"
#include "attention/cuda_plan.h"
#include "attention/mma.cuh"
#include "attention/portable_kernel.h"
#include "tensor/launches.h"

// HSTU attention with the tensor-core instructions that every GPU since sm_80 has: for other
// devices and head sizes than the Hopper kernels know. Simple rather than fast.
//
// All four results are sums over a sequence: out_r = sum_c w(r, c) x_c, where rows r stay with a
// block and columns c stream by.
//   o:  r queries, w = p, x = v          dq: r queries, w = ds, x = k
//   dv: r keys,    w = p, x = do         dk: r keys,    w = ds, x = q
// Letters: r1 c1 -> scores (q k^T or its transpose), r2 c2 -> dp (do v^T or its transpose).

namespace segue::attention::portable {
namespace {

using mma::load_4;
using mma::load_4_transposed;
using mma::multiply_add;
using mma::pack;

constexpr int kRows = 64, kColumns = 32, kThreads = 128;

template <class T>
struct Operand {
  const T* data;
  int64_t row, head;

  Operand() = default;
  explicit Operand(const Tensor& t)
      : data(static_cast<const T*>(t.data)), row(t.stride(0)), head(t.stride(1)) {}
};
template <class T>
struct Args {
  WorkList work;
  KernelMask mask;
  Operand<T> r1, r2, c1, c2;
  T* out;
  int64_t out_row, out_head;
  float half_alpha, out_scale;
};

__device__ float tanh_fast(float x) {
  float y;
  asm("tanh.approx.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

/// Rows padded by 16 bytes, so that ldmatrix meets no bank twice.
template <class T, int kDim, int kCount>
struct Panel {
  T x[kCount][kDim + 8];

  /// Rows from `first` on; those from `end` on become zero.
  __device__ void load(const Operand<T>& from, int64_t base, int head, int first, int end) {
    constexpr int kChunks = kDim / 8;
    for (int i = static_cast<int>(threadIdx.x); i < kCount * kChunks; i += kThreads) {
      const int row = i / kChunks;
      const int chunk = i % kChunks;
      uint4 v = make_uint4(0, 0, 0, 0);
      if (first + row < end) {
        v = *reinterpret_cast<const uint4*>(from.data + (base + first + row) * from.row +
                                            head * from.head + chunk * 8);
      }
      *reinterpret_cast<uint4*>(&x[row][chunk * 8]) = v;
    }
  }
};

/// d[16 x kColumns] of this warp = r[16 x kDim] c[kColumns x kDim]^T.
template <class T, int kDim>
__device__ void scores(float (&d)[kColumns / 8][4], const Panel<T, kDim, kRows>& r,
                       const Panel<T, kDim, kColumns>& c) {
  const int lane = threadIdx.x & 31;
  const int row = static_cast<int>(threadIdx.x / 32) * 16 + (lane & 15);
#pragma unroll
  for (auto& four : d) four[0] = four[1] = four[2] = four[3] = 0;
#pragma unroll 4
  for (int k = 0; k < kDim; k += 16) {
    uint32_t a[4];
    load_4(a, &r.x[row][k + (lane >> 4) * 8]);
#pragma unroll
    for (int n = 0; n < kColumns; n += 16) {
      uint32_t b[4];
      load_4(b, &c.x[n + (lane & 7) + (lane >> 4) * 8][k + (lane >> 3 & 1) * 8]);
      multiply_add<T>(d[n / 8], a, b[0], b[1]);
      multiply_add<T>(d[n / 8 + 1], a, b[2], b[3]);
    }
  }
}

template <class T, int kDim>
struct Shared {
  Panel<T, kDim, kRows> r1, r2;
  Panel<T, kDim, kColumns> c1, c2;
};

/// kGradient: w = ds, x = c1; else w = p, x = c2. kKeysStay: rows are keys, columns queries.
template <class T, int kDim, bool kGradient, bool kKeysStay>
__global__ void __launch_bounds__(kThreads)
    attention_kernel(const Args<T> args, const __grid_constant__ FewSequences few) {
  extern __shared__ uint4 raw[];
  auto& sh = *reinterpret_cast<Shared<T, kDim>*>(raw);
  const int lane = static_cast<int>(threadIdx.x & 31);
  const int warp = static_cast<int>(threadIdx.x / 32);
  const int head = static_cast<int>(blockIdx.y);
  const int first = static_cast<int>(blockIdx.x) * kRows;
  for (int b = static_cast<int>(blockIdx.z); b < args.work.sequences;
       b += static_cast<int>(gridDim.z)) {
    const SequenceEntry seq = args.work.table != nullptr ? args.work.table[b] : few.entries[b];
    if (first >= seq.n) continue;
    const int last = min(first + kRows, seq.n);
    __syncthreads();
    sh.r1.load(args.r1, seq.first_row, head, first, last);
    if (kGradient) sh.r2.load(args.r2, seq.first_row, head, first, last);
    float out[kDim / 8][4];
#pragma unroll
    for (auto& four : out) four[0] = four[1] = four[2] = four[3] = 0;

    for (int column = 0; column < seq.n; column += kColumns) {
      const int end = min(column + kColumns, seq.n);
      const bool hidden =
          kKeysStay ? args.mask.rows(column, end, seq.n, seq.targets).none_sees(first, last, end)
                    : args.mask.rows(first, last, seq.n, seq.targets).none_sees(column, end, last);
      if (hidden) continue;
      __syncthreads();
      sh.c1.load(args.c1, seq.first_row, head, column, end);
      sh.c2.load(args.c2, seq.first_row, head, column, end);
      __syncthreads();
      float s[kColumns / 8][4];
      scores<T, kDim>(s, sh.r1, sh.c1);
      float dp[kColumns / 8][4];
      if constexpr (kGradient) scores<T, kDim>(dp, sh.r2, sh.c2);
#pragma unroll
      for (int g = 0; g < kColumns / 8; ++g) {
#pragma unroll
        for (int e = 0; e < 4; ++e) {
          const int r = first + warp * 16 + (e >> 1) * 8 + (lane >> 2);
          const int c = column + g * 8 + (lane & 3) * 2 + (e & 1);
          const int i = kKeysStay ? c : r;
          const int j = kKeysStay ? r : c;
          const bool seen = i < seq.n && j < seq.n && args.mask.allows(i, j, seq.n, seq.targets);
          const float y = args.half_alpha * s[g][e];
          const float t = tanh_fast(y);
          const float p = y + y * t;
          const float w = kGradient ? dp[g][e] * fmaf(p, 1 - t, 1 + t) : p;
          s[g][e] = seen ? w : 0;
        }
      }
      const auto& x = kGradient ? sh.c1 : sh.c2;
#pragma unroll
      for (int k = 0; k < kColumns / 16; ++k) {
        const uint32_t a[4] = {pack<T>(s[2 * k][0], s[2 * k][1]), pack<T>(s[2 * k][2], s[2 * k][3]),
                               pack<T>(s[2 * k + 1][0], s[2 * k + 1][1]),
                               pack<T>(s[2 * k + 1][2], s[2 * k + 1][3])};
#pragma unroll
        for (int n = 0; n < kDim; n += 16) {
          uint32_t v[4];
          load_4_transposed(v, &x.x[16 * k + (lane & 15)][n + (lane >> 4) * 8]);
          multiply_add<T>(out[n / 8], a, v[0], v[1]);
          multiply_add<T>(out[n / 8 + 1], a, v[2], v[3]);
        }
      }
    }
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int r = first + warp * 16 + half * 8 + (lane >> 2);
      if (r >= seq.n) continue;
      T* to = args.out + (seq.first_row + r) * args.out_row + head * args.out_head;
#pragma unroll
      for (int g = 0; g < kDim / 8; ++g) {
        *reinterpret_cast<uint32_t*>(to + g * 8 + (lane & 3) * 2) =
            pack<T>(args.out_scale * out[g][2 * half], args.out_scale * out[g][2 * half + 1]);
      }
    }
  }
}

template <class T, int kDim, bool kGradient, bool kKeysStay>
void launch(const Exec& exec, const HstuAttentionParams& p, const Args<T>& args,
            const FewSequences& few, int64_t longest) {
  constexpr int kBytes = sizeof(Shared<T, kDim>);
  const auto kernel = attention_kernel<T, kDim, kGradient, kKeysStay>;
  check_cuda(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, kBytes));
  const dim3 grid(static_cast<unsigned>((longest + kRows - 1) / kRows),
                  static_cast<unsigned>(p.q.size(1)),
                  static_cast<unsigned>(std::min(args.work.sequences, 65535)));
  kernel<<<grid, kThreads, kBytes, static_cast<cudaStream_t>(exec.stream->handle())>>>(args, few);
  check_cuda(cudaGetLastError());
  count_launches(1);
}

template <class T, bool kGradient, bool kKeysStay>
void run(const Exec& exec, const HstuAttentionParams& p, Args<T> args, const Tensor& out,
         double scale) {
  const CudaPlan plan(exec, p);
  args.work = plan.key_tiles(0, 0);
  args.mask = kernel_mask(p.mask);
  args.out = static_cast<T*>(out.data);
  args.out_row = out.stride(0);
  args.out_head = out.stride(1);
  args.half_alpha = static_cast<float>(p.alpha / 2);
  args.out_scale = static_cast<float>(scale);
  int64_t longest = 0;
  for (size_t b = 0; b + 1 < p.offsets.size(); ++b) {
    longest = std::max(longest, p.offsets[b + 1] - p.offsets[b]);
  }
  switch (p.q.size(2)) {
    case 32:
      return launch<T, 32, kGradient, kKeysStay>(exec, p, args, plan.few(), longest);
    case 64:
      return launch<T, 64, kGradient, kKeysStay>(exec, p, args, plan.few(), longest);
    case 128:
      return launch<T, 128, kGradient, kKeysStay>(exec, p, args, plan.few(), longest);
    default:
      return launch<T, 256, kGradient, kKeysStay>(exec, p, args, plan.few(), longest);
  }
}

template <class F>
void dispatch_element(DType dtype, F&& f) {
  if (dtype == DType::kF16) return f(__half{});
  f(__nv_bfloat16{});
}

}  // namespace

void forward(const Exec& exec, const HstuAttentionParams& p, const Tensor& o) {
  dispatch_element(p.q.dtype, [&](auto zero) {
    using T = decltype(zero);
    Args<T> args{};
    args.r1 = Operand<T>(p.q);
    args.c1 = Operand<T>(p.k);
    args.c2 = Operand<T>(p.v);
    run<T, false, false>(exec, p, args, o, p.scale);
  });
}

void backward(const Exec& exec, const HstuAttentionParams& p, const Tensor& grad_o,
              const Tensor& dq, const Tensor& dk, const Tensor& dv) {
  const double gradient_scale = p.scale * p.alpha / 2;
  dispatch_element(p.q.dtype, [&](auto zero) {
    using T = decltype(zero);
    Args<T> args{};
    args.r1 = Operand<T>(p.q);
    args.r2 = Operand<T>(grad_o);
    args.c1 = Operand<T>(p.k);
    args.c2 = Operand<T>(p.v);
    run<T, true, false>(exec, p, args, dq, gradient_scale);
    std::swap(args.r1, args.c1);
    std::swap(args.r2, args.c2);
    run<T, true, true>(exec, p, args, dk, gradient_scale);
    run<T, false, true>(exec, p, args, dv, p.scale);
  });
}

}  // namespace segue::attention::portable
