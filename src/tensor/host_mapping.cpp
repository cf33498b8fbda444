#include "tensor/host_mapping.h"

#include <sys/mman.h>

#include "base/parallel.h"

namespace segue {

#if !SEGUE_HAS_CUDA
namespace detail {
bool cuda_map_host(int, void*, int64_t) { return false; }
void cuda_unmap_host(int, const std::vector<void*>&) noexcept {}
}  // namespace detail
#endif

HostMapping::~HostMapping() {
  if (!pieces_.empty()) detail::cuda_unmap_host(device_.index, pieces_);
}

bool HostMapping::add(void* data, int64_t bytes) {
  if (device_.is_cpu() || bytes == 0) return true;
  // Advice: threads take pages sooner than the one that pins them. Where it is not followed, that
  // one does.
  constexpr int64_t kPiece = 2 << 20;
  base::parallel_for(bytes, kPiece, [&](int64_t begin, int64_t end) {
    madvise(static_cast<char*>(data) + begin, static_cast<size_t>(end - begin),
            MADV_POPULATE_WRITE);
  });
  if (!detail::cuda_map_host(device_.index, data, bytes)) return false;
  pieces_.push_back(data);
  return true;
}

}  // namespace segue
