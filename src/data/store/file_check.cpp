#include "data/store/file_check.h"

#include <algorithm>
#include <utility>

#include <fmt/format.h>

#include "base/npy.h"

namespace segue::data {
namespace {

constexpr int64_t kBuffer = 256 << 10;  // what is read is hashed before it leaves the cache
constexpr int64_t kAhead = 8 << 20;     // what the disk has to do meanwhile

}  // namespace

std::vector<Checksum> checksums_of(const base::FileRecord& record) {
  if (record.dtype.empty()) return {{0, record.bytes, record.xxh64}};
  const int64_t shape[] = {record.count};
  const std::string header = base::npy_header(record.dtype, shape);
  const auto elements = static_cast<int64_t>(header.size());
  return {{0, elements, base::xxh64(header)}, {elements, record.bytes, record.xxh64}};
}

FileCheck::FileCheck(base::InputFile file, int64_t bytes, std::vector<Checksum> checksums)
    : file_(std::move(file)), checksums_(std::move(checksums)) {
  if (file_.size() != bytes) {
    problem_ = fmt::format("has {} bytes, should have {}", file_.size(), bytes);
    return;
  }
  buffer_.resize(static_cast<size_t>(std::min(kBuffer, bytes)));
  if (!checksums_.empty()) at_ = checksums_.front().begin;
}

FileCheck::FileCheck(const CheckedFile& file)
    : FileCheck(base::InputFile(file.path), file.bytes, file.checksums) {
  if (!file_.identity().same_file(file.identity)) {
    problem_ = "was replaced since it was opened: start again";
  }
}

bool FileCheck::advance() {
  if (!problem_.empty() || current_ == checksums_.size()) return false;
  const Checksum& wanted = checksums_[current_];
  if (at_ >= asked_ahead_) {
    file_.read_ahead(at_ + kAhead, kAhead);
    asked_ahead_ = at_ + kAhead;
  }
  const auto most = std::min(static_cast<int64_t>(buffer_.size()), wanted.end - at_);
  const size_t n = file_.read_at(at_, buffer_.data(), static_cast<size_t>(most));
  hash_.update(buffer_.data(), n);
  at_ += static_cast<int64_t>(n);
  bytes_read_ += static_cast<int64_t>(n);
  if (static_cast<int64_t>(n) < most) {
    problem_ = "became shorter while it was read";
    return false;
  }
  if (at_ < wanted.end) return true;
  if (hash_.digest() != wanted.xxh64) {
    problem_ = fmt::format("was changed: bytes {} to {} have a wrong checksum", wanted.begin,
                           wanted.end - 1);
    return false;
  }
  hash_ = base::Xxh64Stream();
  if (++current_ < checksums_.size()) at_ = checksums_[current_].begin;
  return current_ < checksums_.size();
}

}  // namespace segue::data
