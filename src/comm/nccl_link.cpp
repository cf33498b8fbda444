#include "comm/nccl_link.h"

namespace segue::comm {

#if !SEGUE_HAS_NCCL
bool has_nccl() { return false; }

std::string gpu_identity(Device) { return "none"; }

std::unique_ptr<Link> nccl_link(std::unique_ptr<Link>, const Group&, Device,
                                std::shared_ptr<Fate>) {
  fail(ErrorCode::kUnsupported, "this segue was built without NCCL");
}
#endif

}  // namespace segue::comm
