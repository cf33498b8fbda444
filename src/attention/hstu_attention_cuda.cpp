#if SEGUE_HAS_CUDA

#include "attention/backends.h"
#include "attention/cuda_check.h"
#include "attention/portable_kernel.h"
#include "attention/sm90_kernels.h"

namespace segue::attention::cuda {
namespace {

void require_supported(const HstuAttentionParams& p) {
  if (portable::supports(p)) return;
  fail(
      ErrorCode::kUnsupported,
      "attention on a GPU needs bf16 activations and heads of 32, 64, 128 or 256 columns, the same "
      "for queries and values, in rows aligned to 16 bytes; got queries " +
          p.q.shape_string() + " and values " + p.v.shape_string() + " of " + to_string(p.q.dtype) +
          "; change model.heads or run on the CPU");
}

}  // namespace

void forward(const Exec& exec, const HstuAttentionParams& p, const Tensor& o) {
  require_supported(p);
  if (p.offsets.back() == p.offsets.front()) return;
  const DeviceScope scope(exec.device);
  const Arena::Mark mark(*exec.arena);
  if (hopper::supports(exec, p)) return hopper::forward(exec, p, o);
  portable::forward(exec, p, o);
}

void backward(const Exec& exec, const HstuAttentionParams& p, const Tensor& grad_o,
              const Tensor& dq, const Tensor& dk, const Tensor& dv) {
  require_supported(p);
  if (p.offsets.back() == p.offsets.front()) return;
  const DeviceScope scope(exec.device);
  const Arena::Mark mark(*exec.arena);
  if (hopper::supports(exec, p)) return hopper::backward(exec, p, grad_o, dq, dk, dv);
  portable::backward(exec, p, grad_o, dq, dk, dv);
}

}  // namespace segue::attention::cuda

#endif
