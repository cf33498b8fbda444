#include "tensor/upload.h"

#include <algorithm>

namespace segue {

void UploadBlock::reserve_copy(Device device, int64_t bytes) {
  if (device.is_cpu() || bytes <= copy_.bytes()) return;
  released_.synchronize();
  bytes = std::max(bytes, copy_.bytes() + copy_.bytes() / 2);
  copy_ = {};
  copy_ = Buffer(device, bytes, Purpose::kBatch);
}

void UploadBlock::send(const Stream& stream) {
  sent_ = true;
  if (stream.device().is_cpu()) return;
  reserve_copy(stream.device(), bytes_.size());
  released_.hold(stream);
  copy_bytes(copy_.data(), stream.device(), bytes_.data(), Device::cpu(),
             static_cast<size_t>(bytes_.size()), &stream);
  arrived_.record(stream);
}

UploadBlock::Placed UploadBlock::place(const Exec& exec) {
  Placed placed;
  placed.device_ = exec.device;
  if (exec.device.is_cpu()) {
    placed.base_ = static_cast<char*>(bytes_.tensor().data);
    return placed;
  }
  if (!sent_) send(*exec.stream);
  arrived_.hold(*exec.stream);
  placed.base_ = static_cast<char*>(copy_.data());
  return placed;
}

}  // namespace segue
