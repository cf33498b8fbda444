#pragma once

#include <cstdint>
#include <vector>

#include "tensor/device.h"

namespace segue {

/// Host memory that kernels of a GPU read and write where it lies, over the bus, by the addresses
/// that it has on the host. It is pinned as long as this exists. The CPU needs nothing for that.
class HostMapping {
 public:
  explicit HostMapping(Device device) : device_(device) {}
  /// Waits for the device. The memory is given back after this.
  ~HostMapping();
  HostMapping(const HostMapping&) = delete;
  HostMapping& operator=(const HostMapping&) = delete;

  /// False: the system or the GPU refuses; nothing has changed then.
  bool add(void* data, int64_t bytes);

 private:
  Device device_;
  std::vector<void*> pieces_;  // of a GPU
};

namespace detail {
bool cuda_map_host(int index, void* data, int64_t bytes);
void cuda_unmap_host(int index, const std::vector<void*>& pieces) noexcept;
}  // namespace detail

}  // namespace segue
