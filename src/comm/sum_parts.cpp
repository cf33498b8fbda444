#include "comm/sum_parts.h"

#include "base/error.h"
#include "base/parallel.h"

namespace segue::comm {

void sum_parts(void* out, const void* parts, int num_parts, int64_t count, DType dtype,
               Device device, const Stream* stream) {
  if (count == 0) return;
  if (device.is_cuda()) {
#if SEGUE_HAS_CUDA
    return detail::sum_parts_cuda(out, parts, num_parts, count, dtype, device, stream);
#else
    require_available(device);
#endif
  }
  static_cast<void>(stream);
  dispatch_real(dtype, [&](auto zero) {
    using Real = decltype(zero);
    constexpr int64_t kGrain = 1 << 16;
    base::parallel_for(count, kGrain, [&](int64_t begin, int64_t end) {
      const auto* from = static_cast<const Real*>(parts);
      auto* to = static_cast<Real*>(out);
      for (int64_t i = begin; i < end; ++i) {
        Real sum = from[i];
        for (int p = 1; p < num_parts; ++p) sum += from[p * count + i];
        to[i] = sum;
      }
    });
  });
}

}  // namespace segue::comm
