#include "ops/gemm_fallback.h"

#include <cstddef>
#include <memory>
#include <new>

#include "base/error.h"
#include "ops/gemm_fallback_kernel.h"

namespace segue::ops {
namespace {

/// One packing workspace per thread and type, kept for the life of the thread: a step allocates
/// nothing.
template <class T>
detail::GemmWorkspace<T> thread_workspace() {
  constexpr std::align_val_t kAlignment{64};
  struct Free {
    void operator()(T* memory) const { ::operator delete[](memory, kAlignment); }
  };
  constexpr int64_t kSizeA = detail::kBlockM * detail::kBlockK;
  constexpr int64_t kSizeB = detail::kBlockK * detail::kBlockN<T>;
  thread_local std::unique_ptr<T[], Free> memory(static_cast<T*>(
      ::operator new[](static_cast<size_t>(kSizeA + kSizeB) * sizeof(T), kAlignment)));
  return {memory.get(), memory.get() + kSizeA};
}

template <class T>
void run(const GemmProblem<T>& problem, GemmIsa isa) {
  if (problem.m == 0 || problem.n == 0) return;
  if (problem.k == 0) {
    for (int64_t i = 0; i < problem.m; ++i) {
      T* row = problem.c + i * problem.ldc;
      for (int64_t j = 0; j < problem.n; ++j)
        row[j] = problem.beta == 0 ? T(0) : problem.beta * row[j];
    }
    return;
  }
#if defined(__x86_64__)
  if (isa == GemmIsa::kAvx512) {
    detail::gemm_avx512(problem, thread_workspace<T>());
    return;
  }
#endif
  SEGUE_ASSERT(isa == GemmIsa::kBaseline, "no such kernel on this CPU");
  detail::blocked_gemm(problem, thread_workspace<T>());
}

}  // namespace

GemmIsa best_gemm_isa() {
#if defined(__x86_64__)
  static const bool kHasAvx512 =
      __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
      __builtin_cpu_supports("avx512cd") && __builtin_cpu_supports("avx512dq") &&
      __builtin_cpu_supports("avx512vl");  // x86-64-v4
  if (kHasAvx512) return GemmIsa::kAvx512;
#endif
  return GemmIsa::kBaseline;
}

const char* to_string(GemmIsa isa) {
  switch (isa) {
    case GemmIsa::kBaseline:
      return "baseline";
    case GemmIsa::kAvx512:
      return "avx512";
  }
  return "?";
}

void gemm_fallback(const GemmProblem<float>& problem, GemmIsa isa) { run(problem, isa); }
void gemm_fallback(const GemmProblem<double>& problem, GemmIsa isa) { run(problem, isa); }

}  // namespace segue::ops
