#include "ops/gemm_fallback_kernel.h"

// Compiled for AVX-512; runs only where best_gemm_isa() says so.

namespace segue::ops::detail {

void gemm_avx512(const GemmProblem<float>& problem, const GemmWorkspace<float>& workspace) {
  blocked_gemm(problem, workspace);
}
void gemm_avx512(const GemmProblem<double>& problem, const GemmWorkspace<double>& workspace) {
  blocked_gemm(problem, workspace);
}

}  // namespace segue::ops::detail
