#include "tensor/host_mapping.h"

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
  if (!detail::cuda_map_host(device_.index, data, bytes)) return false;
  pieces_.push_back(data);
  return true;
}

}  // namespace segue
