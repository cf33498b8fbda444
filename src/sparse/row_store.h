#pragma once

#include <cstddef>
#include <cstdint>
#include <limits>
#include <optional>
#include <string>
#include <vector>

#include "base/file.h"
#include "tensor/device.h"
#include "tensor/host_mapping.h"

namespace segue::sparse {

/// Memory of the host, or a file that is mapped there, which grows in place.
class GrowingStore {
 public:
  /// `folder` empty: memory. The file has no name: nothing is left of it when the process ends.
  GrowingStore(int64_t most_bytes, const std::string& folder, const std::string& table,
               Device device = Device::cpu());
  ~GrowingStore();
  GrowingStore(const GrowingStore&) = delete;
  GrowingStore& operator=(const GrowingStore&) = delete;

  std::byte* data() const { return data_; }
  int64_t bytes() const { return bytes_; }
  /// At least `bytes` from now on. Error(kOutOfMemory, or kIo for a full disk) leaves it as it was:
  /// blocks of a file are taken here, not when they are written to.
  void grow(int64_t bytes);
  /// For memory that is read here and there, and filled without gaps.
  void use_large_pages();
  /// What there is can be used by the device where it lies, from now on. False: it cannot.
  bool map();

 private:
  void take_blocks(int64_t from, int64_t to);

  std::string table_, folder_;
  std::byte* data_ = nullptr;
  int64_t bytes_ = 0, most_bytes_ = 0;
  base::Descriptor file_;
  std::optional<HostMapping> mapping_;
  int64_t mapped_bytes_ = 0;
};

struct RowStoreConfig {
  std::string table;                          // for messages
  int64_t rows = 0;                           // of this rank: the most there can be
  int64_t weight_bytes = 0, state_bytes = 0;  // of a row
  std::string folder;                         // empty: in memory
  int64_t most_bytes = 0;                     // 0: as many as there are
  Device device;                              // that the rows come from and go to
};

/// The rows behind a cache that have a place there, close together in the order in which they came:
/// a table takes what was touched of it, however many rows it has. Addresses stay as they are.
/// One thread at a time; find(), written() and set_written() of different places, and copies of
/// rows that have a place, may be called by several.
class RowStore {
 public:
  explicit RowStore(RowStoreConfig config);

  static constexpr int64_t kNone = -1;
  /// kNone: the row has no place.
  int64_t find(int64_t row) const;
  /// Room for so many more rows. Error(kOutOfMemory) or Error(kIo) that says what to do; nothing
  /// has changed then.
  void reserve(int64_t more);
  /// A place for a row that has none, within what was reserved.
  int64_t add(int64_t row);
  void clear();

  int64_t size() const { return static_cast<int64_t>(rows_.size()); }
  int64_t capacity() const { return capacity_; }
  int64_t row_at(int64_t place) const { return rows_[static_cast<size_t>(place)]; }
  std::byte* weights(int64_t place) const { return weights_.data() + place * config_.weight_bytes; }
  std::byte* state(int64_t place) const { return states_.data() + place * config_.state_bytes; }
  /// Whether there is anything at a place yet.
  bool written(int64_t place) const { return written_[static_cast<size_t>(place)] != 0; }
  void set_written(int64_t place) { written_[static_cast<size_t>(place)] = 1; }
  /// Whether the device can use the rows where they lie: never those of a file, on a GPU those of
  /// memory that the system lets it have. What was true may stop being so when the store grows.
  bool mapped() const { return mapped_ && bytes() <= most_mapped_; }
  void set_most_mapped(int64_t bytes) { most_mapped_ = bytes; }  // for tests
  int64_t bytes() const { return weights_.bytes() + states_.bytes(); }

 private:
  bool pinned() const { return mapped_ && config_.device.is_cuda(); }
  int64_t row_bytes() const { return config_.weight_bytes + config_.state_bytes; }
  int64_t most_leaves() const { return (config_.rows + kLeafRows - 1) / kLeafRows; }
  bool fits(int64_t capacity) const;
  void grow(int64_t capacity);

  /// Places of neighbouring rows; 0: none, otherwise one more than the place.
  static constexpr int64_t kLeafRows = 64;
  struct Leaf {
    uint32_t places[kLeafRows] = {};
  };
  uint32_t& leaf_of(int64_t row) const {
    return reinterpret_cast<uint32_t*>(leaf_of_.data())[row / kLeafRows];
  }
  Leaf& leaf(uint32_t number) const { return reinterpret_cast<Leaf*>(leaves_.data())[number]; }

  RowStoreConfig config_;
  int64_t capacity_ = 0;
  GrowingStore weights_, states_;
  GrowingStore leaf_of_;  // u32 per kLeafRows rows, one more than the number of its leaf
  GrowingStore leaves_;   // by number
  int64_t num_leaves_ = 0;
  std::vector<int64_t> rows_;  // by place
  std::vector<uint8_t> written_;
  bool mapped_ = false;
  int64_t most_mapped_ = std::numeric_limits<int64_t>::max();
};

}  // namespace segue::sparse
