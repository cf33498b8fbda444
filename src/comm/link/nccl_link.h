#pragma once

#include <memory>
#include <string>

#include "comm/communicator.h"

namespace segue::comm {

/// Why NCCL cannot be used here (the build, the library of this machine); empty when it can.
std::string nccl_trouble();

/// Equal for two ranks that use the same card.
std::string gpu_identity(Device device);

/// Device memory by NCCL on the caller's stream, host memory by `host` (null in a group of one).
/// Collective; one GPU per rank. Error(kPeer) or Error(kUnsupported).
std::unique_ptr<Link> nccl_link(std::unique_ptr<Link> host, const Group& group, Device device,
                                std::shared_ptr<WorldFailure> failure);

}  // namespace segue::comm
