#include "attention/hstu_attention.h"

#include "attention/backends.h"
#include "ops/gemm.h"

namespace segue::attention {
namespace {

void check_operand(const Exec& exec, const HstuAttentionParams& p, const Tensor& t, int64_t dim) {
  SEGUE_ASSERT(t.rank == 3 && t.stride(2) == 1, "attention: [rows, heads, dim] with dense heads");
  SEGUE_ASSERT(t.size(0) >= p.offsets.back(), "attention: a tensor ends before the last sequence");
  SEGUE_ASSERT(t.size(1) == p.q.size(1) && t.size(2) == dim, "attention: shapes differ");
  // A GPU's 16-bit mode is bf16; these kernels take IEEE half as well.
  const bool half = exec.dtype() == DType::kBf16 && t.dtype == DType::kF16;
  SEGUE_ASSERT(t.dtype == p.q.dtype && (t.dtype == exec.dtype() || half), "attention: wrong type");
}

void check(const Exec& exec, const HstuAttentionParams& p) {
  SEGUE_ASSERT(exec.arena != nullptr, "attention: needs an arena for scratch");
  SEGUE_ASSERT(!p.offsets.empty(), "attention: offsets have one entry more than sequences");
  SEGUE_ASSERT(p.num_targets.empty() || p.num_targets.size() + 1 == p.offsets.size(),
               "attention: one number of targets per sequence");
  check_operand(exec, p, p.q, p.q.size(2));
  check_operand(exec, p, p.k, p.q.size(2));
  check_operand(exec, p, p.v, p.v.size(2));
}

/// [rows, heads, dim] of all sequences, heads side by side, as [rows, heads * dim].
Tensor join_heads(const HstuAttentionParams& p, const Tensor& t) {
  SEGUE_ASSERT(t.size(1) == 1 || t.stride(1) == t.size(2), "attention: dbias of scattered heads");
  Tensor matrix = t.rows(p.offsets.front(), p.offsets.back() - p.offsets.front());
  matrix.rank = 2;
  matrix.sizes = {matrix.size(0), t.size(1) * t.size(2)};
  matrix.strides = {t.stride(0), 1};
  return matrix;
}

/// dbias, if it is wanted, from the finished gradients: one more pass over them.
void sum_columns(const Exec& exec, const HstuAttentionParams& p, const Tensor& dq, const Tensor& dk,
                 const Tensor& dv, const Tensor& dbias) {
  if (!dbias) return;
  int64_t first = 0;
  for (const Tensor& heads : {dv, dq, dk}) {
    const Tensor t = join_heads(p, heads);
    ops::column_sum(exec, t, dbias.narrow(0, first, t.size(1)));
    first += t.size(1);
  }
  SEGUE_ASSERT(first == dbias.elements(), "attention: dbias has the columns of v, q and k");
}

}  // namespace

void hstu_attention_forward(const Exec& exec, const HstuAttentionParams& p, const Tensor& o) {
  check(exec, p);
  check_operand(exec, p, o, p.v.size(2));
#if SEGUE_HAS_CUDA
  if (exec.device.is_cuda()) return cuda::forward(exec, p, o);
#endif
  require_cpu(exec, "hstu_attention");
  cpu::forward(exec, p, o);
}

void hstu_attention_backward(const Exec& exec, const HstuAttentionParams& p, const Tensor& grad_o,
                             const Tensor& dq, const Tensor& dk, const Tensor& dv,
                             const Tensor& dbias) {
  check(exec, p);
  check_operand(exec, p, grad_o, p.v.size(2));
  check_operand(exec, p, dq, p.q.size(2));
  check_operand(exec, p, dk, p.q.size(2));
  check_operand(exec, p, dv, p.v.size(2));
#if SEGUE_HAS_CUDA
  if (exec.device.is_cuda()) {
    const bool summed = cuda::backward(exec, p, grad_o, dq, dk, dv, dbias);
    if (!summed) sum_columns(exec, p, dq, dk, dv, dbias);
    return;
  }
#endif
  require_cpu(exec, "hstu_attention");
  cpu::backward(exec, p, grad_o, dq, dk, dv);
  sum_columns(exec, p, dq, dk, dv, dbias);
}

}  // namespace segue::attention
