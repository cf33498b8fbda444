#pragma once

#include <string>

#include "tensor/exec.h"

namespace segue::ops {

enum class Trans { kNo, kYes };

struct GemmExtra {
  Tensor bias;              // [n], added to every row
  Tensor residual;          // [m, n], added before the one rounding of the result; not c itself
  bool accumulate = false;  // c += instead of c =
  bool wide = false;        // c is float on a GPU too: mode kBf16 does not round the result
};

/// c [m, n] = op(a) op(b) (+ bias) (+ residual). Tensors are row-major with unit column stride;
/// rows may be strided, so slices of packed buffers are operands as they are. Empty m, n or k is
/// legal (k = 0 gives bias + residual).
///
/// Bits depend on shapes alone, never on the number of threads: the product is cut into tiles, long
/// k into pieces, by m, n, k only, and the pieces of one tile are added in order.
///
/// Precision: kF32 and kF64 are what they say (kF64 never uses a library). kBf16 on the CPU rounds
/// a, b and bias to bf16, accumulates in float and, unless it is `wide`, rounds the result once;
/// with `accumulate`, the product is rounded before it is added.
void gemm(const Exec& exec, Trans trans_a, const Tensor& a, Trans trans_b, const Tensor& b,
          const Tensor& c, const GemmExtra& extra = {});

/// One product for each index of dimension 0 of three rank-3 views (unit column stride, any
/// others), all of one shape: c[i] = op(a[i]) op(b[i]), or += . On a GPU one launch does all of
/// them.
void gemm_each(const Exec& exec, Trans trans_a, const Tensor& a, Trans trans_b, const Tensor& b,
               const Tensor& c, bool accumulate = false);

/// y = x w^T + bias, w stored [out, in] as PyTorch's Linear does.
void linear_forward(const Exec& exec, const Tensor& x, const Tensor& weight, const Tensor& bias,
                    const Tensor& y);
/// dx = dy w (skipped if `dx` is absent); dweight += dy^T x; dbias += column sums of dy (if
/// present).
void linear_backward(const Exec& exec, const Tensor& dy, const Tensor& x, const Tensor& weight,
                     const Tensor& dx, const Tensor& dweight, const Tensor& dbias);

/// out [n] += sum over rows of x [m, n], in fixed chunks added in order. In mode kBf16 the sum is
/// rounded once before it is added, like any gradient of a parameter used in bf16.
void column_sum(const Exec& exec, const Tensor& x, const Tensor& out);

/// One single-threaded product: the building block of `gemm` and of blocked attention. Row-major,
/// c = alpha op(a) op(b) + beta c. Must be called from inside parallel_for or from one thread.
/// Uses oneDNN if built in (float only), the vectorised fallback otherwise.
void gemm_tile(Trans trans_a, Trans trans_b, int64_t m, int64_t n, int64_t k, float alpha,
               const float* a, int64_t lda, const float* b, int64_t ldb, float beta, float* c,
               int64_t ldc);
void gemm_tile(Trans trans_a, Trans trans_b, int64_t m, int64_t n, int64_t k, double alpha,
               const double* a, int64_t lda, const double* b, int64_t ldb, double beta, double* c,
               int64_t ldc);

/// "oneDNN 2.6.3 (avx512_core)" or "fallback (avx512)": for logs and benchmarks.
const char* gemm_backend();
/// The same for products on a GPU: "cuBLASLt 13.1.0", or why there are none.
std::string gemm_gpu_backend();

/// Tests and benchmarks only: forces the fallback in a build that has oneDNN.
void force_gemm_fallback(bool fallback);

}  // namespace segue::ops
