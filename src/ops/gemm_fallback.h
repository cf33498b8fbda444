#pragma once

#include <cstdint>

namespace segue::ops {

/// The matrix product that needs no library: packed panels and a register-blocked kernel, written
/// once (gemm_fallback_kernel.h) and compiled for each instruction set. Every element is one chain
/// of multiply-adds over blocks of k that do not depend on the instruction set, so with fused
/// multiply-add (AVX2 and up) all of them give the same bits.
enum class GemmIsa { kBaseline, kAvx512 };

/// The fastest that this CPU can run.
GemmIsa best_gemm_isa();
const char* to_string(GemmIsa isa);

/// c = alpha op(a) op(b) + beta c, row-major. With beta = 0, c is not read.
template <class T>
struct GemmProblem {
  bool trans_a, trans_b;
  int64_t m, n, k;
  T alpha;
  const T* a;
  int64_t lda;
  const T* b;
  int64_t ldb;
  T beta;
  T* c;
  int64_t ldc;
};

/// Single-threaded; `isa` must be one that this CPU can run.
void gemm_fallback(const GemmProblem<float>& problem, GemmIsa isa = best_gemm_isa());
void gemm_fallback(const GemmProblem<double>& problem, GemmIsa isa = best_gemm_isa());

namespace detail {

// Block sizes, in elements: b is packed kBlockK x kBlockN (half of a 1 MiB L2), a kBlockM x
// kBlockK. kBlockK decides the order of additions and is therefore the same everywhere.
inline constexpr int64_t kBlockM = 252;  // a multiple of 6 and 14, the rows of the kernels
template <class T>
inline constexpr int64_t kBlockN = 2048 / static_cast<int64_t>(sizeof(T));
inline constexpr int64_t kBlockK = 256;

/// Room for one packed block of each operand, 64-byte aligned.
template <class T>
struct GemmWorkspace {
  T* a;  // [kBlockM * kBlockK]
  T* b;  // [kBlockK * kBlockN<T>]
};

void gemm_avx512(const GemmProblem<float>& problem, const GemmWorkspace<float>& workspace);
void gemm_avx512(const GemmProblem<double>& problem, const GemmWorkspace<double>& workspace);

}  // namespace detail
}  // namespace segue::ops
