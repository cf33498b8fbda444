#include "sparse/row_store.h"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <limits>
#include <optional>
#include <utility>

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/mman.h>
#include <unistd.h>

#include "base/error.h"
#include "base/log.h"
#include "base/memory.h"
#include "base/progress.h"

namespace segue::sparse {
namespace {

using base::format_bytes;

constexpr int64_t kStep = 2 << 20;
/// What a table leaves of memory or disk to others.
constexpr int64_t kLeft = int64_t{64} << 20;

int64_t round_up(int64_t value, int64_t multiple) {
  return (value + multiple - 1) / multiple * multiple;
}

std::string text(int64_t bytes) { return format_bytes(static_cast<double>(bytes)); }

}  // namespace

GrowingStore::GrowingStore(int64_t most_bytes, const std::string& folder, const std::string& table,
                           Device device)
    : table_(table), folder_(folder), most_bytes_(round_up(most_bytes, kStep)) {
  mapping_.emplace(device);
  if (most_bytes == 0) return;
  void* const at = mmap(nullptr, static_cast<size_t>(most_bytes_), PROT_NONE,
                        MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (at == MAP_FAILED) {
    fail(ErrorCode::kOutOfMemory,
         fmt::format("table `{}`: the system gives no addresses for {}; "
                     "lower its `rows` in sparse.tables, or use more ranks",
                     table_, text(most_bytes_)));
  }
  data_ = static_cast<std::byte*>(at);
  if (folder_.empty()) return;
  base::make_folders(folder_);
  const base::TemporaryFile made = base::create_temporary(folder_ + "/segue-table");
  file_ = base::Descriptor(made.descriptor);
  ::unlink(made.path.c_str());
}

GrowingStore::~GrowingStore() {
  mapping_.reset();
  if (data_ != nullptr) munmap(data_, static_cast<size_t>(most_bytes_));
}

void GrowingStore::use_large_pages() {
  // Advice: where it is not taken, nothing is wrong.
  if (folder_.empty() && data_ != nullptr) {
    madvise(data_, static_cast<size_t>(most_bytes_), MADV_HUGEPAGE);
  }
}

bool GrowingStore::map() {
  if (!folder_.empty()) return false;
  if (!mapping_->add(data_ + mapped_bytes_, bytes_ - mapped_bytes_)) return false;
  mapped_bytes_ = bytes_;
  return true;
}

void GrowingStore::take_blocks(int64_t from, int64_t to) {
  const std::optional<base::DiskSpace> disk = base::disk_space(folder_);
  int error = disk && disk->available < to - from + std::min(kLeft, disk->total / 8) ? ENOSPC : 0;
  if (error == 0) error = posix_fallocate(file_.get(), from, to - from);
  if (error == 0) return;
  fail(
      ErrorCode::kIo,
      fmt::format("table `{}` needs {} more in {}: {}, {} are free. Nothing is lost: make room, or "
                  "set sparse.spill_folder to a larger disk, and resume from the last checkpoint",
                  table_, text(to - from), folder_, std::strerror(error),
                  text(disk ? disk->available : 0)));
}

void GrowingStore::grow(int64_t bytes) {
  if (bytes <= bytes_) return;
  SEGUE_ASSERT(bytes <= most_bytes_, "a store grows beyond its addresses");
  const int64_t to = std::min(round_up(bytes, kStep), most_bytes_);
  const auto more = static_cast<size_t>(to - bytes_);
  bool refused = false;
  if (folder_.empty()) {
    refused = mprotect(data_ + bytes_, more, PROT_READ | PROT_WRITE) != 0;
  } else {
    take_blocks(bytes_, to);
    refused = mmap(data_ + bytes_, more, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED,
                   file_.get(), bytes_) == MAP_FAILED;
  }
  if (refused) {
    fail(ErrorCode::kOutOfMemory, fmt::format("table `{}`: the system gives no memory for {} more: "
                                              "{}",
                                              table_, text(to - bytes_), std::strerror(errno)));
  }
  bytes_ = to;
}

RowStore::RowStore(RowStoreConfig config)
    : config_(std::move(config)),
      weights_(config_.rows * config_.weight_bytes, config_.folder, config_.table, config_.device),
      states_(config_.rows * config_.state_bytes, config_.folder, config_.table, config_.device),
      leaf_of_(most_leaves() * static_cast<int64_t>(sizeof(uint32_t)), "", config_.table),
      leaves_(most_leaves() * static_cast<int64_t>(sizeof(Leaf)), "", config_.table),
      mapped_(config_.folder.empty()) {
  leaf_of_.grow(most_leaves() * static_cast<int64_t>(sizeof(uint32_t)));
  weights_.use_large_pages();
  states_.use_large_pages();
}

int64_t RowStore::find(int64_t row) const {
  const uint32_t number = leaf_of(row);
  if (number == 0) return kNone;
  return static_cast<int64_t>(leaf(number - 1).places[row % kLeafRows]) - 1;
}

int64_t RowStore::add(int64_t row) {
  SEGUE_ASSERT(size() < capacity_, "a row without room");
  uint32_t& number = leaf_of(row);
  if (number == 0) {
    number = static_cast<uint32_t>(++num_leaves_);
    leaf(number - 1) = {};
  }
  rows_.push_back(row);
  written_.push_back(0);
  leaf(number - 1).places[row % kLeafRows] = static_cast<uint32_t>(size());
  return size() - 1;
}

void RowStore::clear() {
  for (const int64_t row : rows_) leaf_of(row) = 0;
  num_leaves_ = 0;
  rows_.clear();
  written_.clear();
}

/// Whether memory has room for what is not there yet; a disk is asked when its blocks are taken.
bool RowStore::fits(int64_t capacity) const {
  if (config_.most_bytes > 0 && capacity * row_bytes() > config_.most_bytes) return false;
  if (!config_.folder.empty()) return true;
  const int64_t taken = pinned() ? capacity_ : size();
  const std::optional<int64_t> available = base::available_memory();
  return !available || (capacity - taken) * row_bytes() + kLeft <= *available;
}

void RowStore::grow(int64_t capacity) {
  if (!fits(capacity)) {
    fail(ErrorCode::kOutOfMemory,
         fmt::format("table `{}` has {} rows in host memory ({}) and there is no room for {} more. "
                     "Nothing is lost: give the machine more memory, use more ranks, or set the "
                     "table's placement to \"file\", and resume from the last checkpoint",
                     config_.table, size(), text(size() * row_bytes()), capacity - size()));
  }
  weights_.grow(capacity * config_.weight_bytes);
  states_.grow(capacity * config_.state_bytes);
  leaves_.grow(std::min(most_leaves(), capacity) * static_cast<int64_t>(sizeof(Leaf)));
  capacity_ = capacity;
  if (!mapped_ || (weights_.map() && states_.map())) return;
  mapped_ = false;
  base::log_warning(
      fmt::format("table `{}`: the GPU cannot use {} of host memory where they lie; from now on "
                  "its rows are copied by the host, which is slower",
                  config_.table, text(bytes())));
}

void RowStore::reserve(int64_t more) {
  const int64_t least = std::min(config_.rows, size() + more);
  if (least <= capacity_) return;
  constexpr int64_t kMostPlaces = std::numeric_limits<uint32_t>::max() - 1;
  if (least > kMostPlaces) {
    fail(ErrorCode::kUnsupported,
         fmt::format("table `{}` has more than {} touched rows on this rank; use more ranks",
                     config_.table, kMostPlaces));
  }
  // Some more than is needed, so that this is rare; but nothing fails that would do with less.
  // Pinning takes time, and all of the memory at once.
  const int64_t least_step = 16 * kStep / std::max<int64_t>(1, row_bytes());
  const int64_t most_step = pinned() ? 8 * least_step : kMostPlaces;
  const int64_t step = std::clamp(capacity_ / 8, least_step, most_step);
  const int64_t wanted = std::min({config_.rows, kMostPlaces, std::max(least, capacity_ + step)});
  if (fits(wanted)) {
    try {
      return grow(wanted);
    } catch (const Error&) {
      if (wanted == least) throw;
    }
  }
  grow(least);
}

}  // namespace segue::sparse
