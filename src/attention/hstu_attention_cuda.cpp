#if SEGUE_HAS_CUDA

#include <cstdint>
#include <string>

#include <fmt/format.h>

#include "attention/backends.h"
#include "attention/cuda_check.h"
#include "attention/plain_cuda.h"
#include "attention/portable_kernel.h"
#include "attention/sm90/sm90_kernels.h"
#include "base/error.h"
#include "base/log.h"

namespace segue::attention::cuda {
namespace {

bool aligned(const Tensor& t) {
  return reinterpret_cast<uintptr_t>(t.data) % 16 == 0 && t.stride(0) % 8 == 0 &&
         t.stride(1) % 8 == 0;
}

}  // namespace

/// Rows that are not aligned are nothing for tensor cores.
Kernel choose(const Exec& exec, const HstuAttentionParams& p) {
  const HeadShape head{p.q.size(2), p.v.size(2), p.q.dtype};
  const Kernel kernel = choose_kernel(p.kernel, head, compute_major(exec.device));
  if (kernel == Kernel::kPlain || (aligned(p.q) && aligned(p.k) && aligned(p.v))) return kernel;
  SEGUE_ASSERT(p.kernel == Kernel::kAuto, "attention: rows are not aligned to 16 bytes");
  return choose_kernel(Kernel::kPlain, head, compute_major(exec.device));
}

namespace {

/// Without room for what the fastest kernels leave behind, the next ones do it, unless the fastest
/// were asked for.
Kernel choose_backward(const Exec& exec, const HstuAttentionParams& p) {
  const Kernel kernel = choose(exec, p);
  if (kernel != Kernel::kSm90) return kernel;
  const hopper::BackwardRoom room = hopper::backward_room(exec, p);
  if (room.suffices()) return kernel;
  const HeadShape head{p.q.size(2), p.v.size(2), p.q.dtype};
  const std::string lacks = fmt::format(
      "backward of the attention kernel `sm90` for heads of {} needs {} MiB of scratch for the "
      "score gradients of the longest sequence, of which {} MiB are there ({} at most)",
      head.qk_dim, room.needed >> 20, room.free >> 20, kMostSpillBytes >> 20);
  if (p.kernel == Kernel::kSm90) {
    fail(ErrorCode::kConfig, lacks +
                                 "; use shorter sequences or fewer heads, or "
                                 "model.attention.kernel = \"auto\", which takes slower "
                                 "kernels then");
  }
  const bool portable = kernel_fits(Kernel::kPortable, head, compute_major(exec.device));
  const Kernel other = portable ? Kernel::kPortable : Kernel::kPlain;
  base::log_once(
      base::LogLevel::kWarning, "attention: no room for backward of sm90",
      fmt::format("{}; kernel `{}`, which is much slower, does it", lacks, to_string(other)));
  return other;
}

}  // namespace

void forward(const Exec& exec, const HstuAttentionParams& p, const Tensor& o) {
  if (p.offsets.back() == p.offsets.front()) return;
  const DeviceScope scope(exec.device);
  const Arena::Mark mark(*exec.arena);
  switch (choose(exec, p)) {
    case Kernel::kSm90:
      return hopper::forward(exec, p, o);
    case Kernel::kPortable:
      return portable::forward(exec, p, o);
    default:
      return plain::forward(exec, p, o);
  }
}

bool backward(const Exec& exec, const HstuAttentionParams& p, const Tensor& grad_o,
              const Tensor& dq, const Tensor& dk, const Tensor& dv, const Tensor& dbias) {
  if (p.offsets.back() == p.offsets.front()) return true;
  const DeviceScope scope(exec.device);
  const Arena::Mark mark(*exec.arena);
  switch (choose_backward(exec, p)) {
    case Kernel::kSm90:
      hopper::backward(exec, p, grad_o, dq, dk, dv, dbias);
      return true;
    case Kernel::kPortable:
      portable::backward(exec, p, grad_o, dq, dk, dv);
      return false;
    default:
      plain::backward(exec, p, grad_o, dq, dk, dv);
      return false;
  }
}

}  // namespace segue::attention::cuda

#endif
