#include "tensor/upload.h"

namespace segue {

UploadBlock::Placed UploadBlock::place(const Exec& exec) const {
  Placed placed;
  placed.device_ = exec.device;
  const Tensor here = bytes_.tensor();
  if (exec.device.is_cpu()) {
    placed.base_ = static_cast<char*>(here.data);
    return placed;
  }
  const Tensor there = exec.arena->tensor(DType::kU8, {bytes_.size()});
  copy(there, here, exec.stream);
  placed.base_ = static_cast<char*>(there.data);
  return placed;
}

}  // namespace segue
