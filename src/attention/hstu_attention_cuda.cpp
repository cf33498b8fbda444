#if SEGUE_HAS_CUDA

#include "attention/backends.h"
#include "attention/cuda_check.h"
#include "attention/plain_cuda.h"
#include "attention/portable_kernel.h"
#include "attention/sm90/sm90_kernels.h"

namespace segue::attention::cuda {
namespace {

[[noreturn]] void unsupported() {
  fail(ErrorCode::kUnsupported,
       "attention on a GPU needs heads of at most 256 columns; use --device cpu");
}

}  // namespace

void forward(const Exec& exec, const HstuAttentionParams& p, const Tensor& o) {
  if (p.offsets.back() == p.offsets.front()) return;
  const DeviceScope scope(exec.device);
  const Arena::Mark mark(*exec.arena);
  if (hopper::supports(exec, p)) return hopper::forward(exec, p, o);
  if (portable::supports(p)) return portable::forward(exec, p, o);
  if (plain::supports(p)) return plain::forward(exec, p, o);
  unsupported();
}

bool backward(const Exec& exec, const HstuAttentionParams& p, const Tensor& grad_o,
              const Tensor& dq, const Tensor& dk, const Tensor& dv, const Tensor& dbias) {
  if (p.offsets.back() == p.offsets.front()) return true;
  const DeviceScope scope(exec.device);
  const Arena::Mark mark(*exec.arena);
  if (hopper::supports_backward(exec, p)) {
    hopper::backward(exec, p, grad_o, dq, dk, dv, dbias);
    return true;
  }
  if (portable::supports(p)) {
    portable::backward(exec, p, grad_o, dq, dk, dv);
  } else if (plain::supports(p)) {
    plain::backward(exec, p, grad_o, dq, dk, dv);
  } else {
    unsupported();
  }
  return false;
}

}  // namespace segue::attention::cuda

#endif
